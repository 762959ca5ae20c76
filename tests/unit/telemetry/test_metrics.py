"""The metric catalogue's names, as dashboards and alerts use them."""

import re

import pytest
from prometheus_client import generate_latest

from qimd.telemetry.metrics import ZEROS, Metrics


def exposed(metrics: Metrics) -> dict[str, str]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("name", ZEROS)
def test_the_five_zeros_are_there_at_zero_under_exactly_their_names(name: str) -> None:
    assert exposed(Metrics())[name] == "0.0"


@pytest.mark.parametrize("name", ZEROS)
def test_a_zero_that_is_counted_shows_under_its_name(name: str) -> None:
    metrics = Metrics()
    getattr(metrics, name).inc()
    assert exposed(metrics)[name] == "1.0"


def test_the_attribute_of_each_metric_is_the_name_that_it_is_exposed_under() -> None:
    metrics = Metrics()
    types = re.findall(
        r"^# TYPE (\S+)", generate_latest(metrics.registry).decode(), flags=re.MULTILINE
    )
    names = {name for name in types if not name.endswith("_created")}
    assert names == {name for name in vars(metrics) if name not in {"registry", "entry_rates"}}
