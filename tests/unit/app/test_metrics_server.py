"""The metrics endpoint, over HTTP on loopback."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from qimd.app import metrics_server
from qimd.app.metrics_server import MetricsServer
from qimd.app.setting_kinds import SettingRefused
from qimd.telemetry.metrics import ZEROS, Metrics


class Site:
    def __init__(self) -> None:
        self.ready = False
        self.metrics = Metrics()
        self.failing: list[str] = []
        self.server = MetricsServer(
            self.metrics, 0, lambda: self.ready, lambda: tuple(self.failing)
        )
        self.server.start()

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(
                f"http://{self.server.address}{path}", timeout=10
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture
def site() -> Iterator[Site]:
    running = Site()
    yield running
    running.server.stop()


def test_a_scrape_shows_the_five_zeros_at_zero(site: Site) -> None:
    status, text = site.get("/metrics")
    assert status == 200
    for name in ZEROS:
        assert f"\n{name} 0.0\n" in text


def test_it_is_alive_at_once_and_ready_only_when_the_node_says_so(site: Site) -> None:
    assert site.get("/healthz") == (200, "alive\n")
    assert site.get("/readyz") == (503, "not ready\n")
    site.ready = True
    assert site.get("/readyz") == (200, "ready\n")


def test_what_is_away_is_named_a_line_each_while_it_is_not_ready(site: Site) -> None:
    site.failing = ["etcd: refused", "redis: no answer"]
    assert site.get("/readyz") == (503, "not ready\netcd: refused\nredis: no answer\n")
    site.ready = True
    assert site.get("/readyz") == (200, "ready\n")


def test_another_path_says_which_ones_there_are(site: Site) -> None:
    status, text = site.get("/")
    assert status == 404
    assert "/metrics" in text


def test_a_port_in_use_is_refused_by_the_name_of_its_flag(site: Site) -> None:
    with pytest.raises(SettingRefused, match=f"--metrics-port: port {site.server.port}"):
        MetricsServer(Metrics(), site.server.port, lambda: True)


def test_it_listens_on_loopback_alone(site: Site) -> None:
    assert site.server.address.startswith("127.0.0.1:")


def test_a_server_that_never_began_stops_at_once() -> None:
    MetricsServer(Metrics(), 0, lambda: True).stop()


def test_a_connection_that_asks_nothing_is_closed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server._QuietHandler, "timeout", 0.05)
    with socket.create_connection(("127.0.0.1", site.server.port), timeout=10) as idle:
        assert idle.recv(1) == b""
