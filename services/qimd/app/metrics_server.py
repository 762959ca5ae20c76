"""The metrics endpoint: `/metrics` for Prometheus, `/healthz` (alive) and `/readyz` (serving).

It answers from a thread of its own, so that a scrape is answered while the event loop is busy, and
shows a stuck loop instead of hanging with it. On loopback: metrics name tenants.
"""

import errno
import threading
from collections.abc import Callable, Iterable, Sequence
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import make_wsgi_app

from qimd.app.setting_kinds import SettingRefused
from qimd.telemetry.metrics import Metrics

LOOPBACK: Final = "127.0.0.1"
_TEXT: Final = [("Content-Type", "text/plain; charset=utf-8")]


class _Server(ThreadingMixIn, WSGIServer):
    """One thread a scrape; a slow reader holds up nobody."""

    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    """Scrapes every few seconds are no news."""

    # Of a request line that does not come: else each idle connection would keep its thread.
    timeout = 10.0

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class MetricsServer:
    """Serves from `start` to `stop`; `port` is the real one.

    `failing` gives what /readyz says, a line each, while `ready` says no.
    """

    def __init__(
        self,
        metrics: Metrics,
        port: int,
        ready: Callable[[], bool],
        failing: Callable[[], Sequence[object]] = tuple,
    ) -> None:
        self._scrape = make_wsgi_app(metrics.registry)
        self._ready = ready
        self._failing = failing
        try:
            self._server = make_server(
                LOOPBACK, port, self._answer, server_class=_Server, handler_class=_QuietHandler
            )
        except OSError as error:
            told = "is in use" if error.errno == errno.EADDRINUSE else f"is refused: {error}"
            raise SettingRefused(
                "--metrics-port", f"port {port} of {LOOPBACK} {told}; choose another, or 0"
            ) from None
        self.port: int = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )

    @property
    def address(self) -> str:
        """host:port."""
        return f"{LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more; returns at once if it never began."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def _answer(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            scraped: Iterable[bytes] = self._scrape(environ, start)
            return scraped
        if path == "/healthz":
            return _plain(start, "200 OK", "alive")
        if path == "/readyz":
            if self._ready():
                return _plain(start, "200 OK", "ready")
            told = "\n".join(["not ready", *map(str, self._failing())])
            return _plain(start, "503 Service Unavailable", told)
        return _plain(start, "404 Not Found", "see /metrics, /healthz and /readyz")


def _plain(start: StartResponse, status: str, text: str) -> list[bytes]:
    start(status, list(_TEXT))
    return [f"{text}\n".encode()]
