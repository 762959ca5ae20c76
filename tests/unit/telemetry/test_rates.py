"""Rates over the last ten seconds."""

from qimd.telemetry.metrics import Metrics
from qimd.telemetry.rates import WINDOW_S


def rate(metrics: Metrics, tenant: str = "t", shard: str = "0") -> float | None:
    labels = {"tenant": tenant, "shard": shard}
    return metrics.registry.get_sample_value("fanout_entries_per_sec", labels)


def test_the_rate_is_that_of_the_last_ten_slices() -> None:
    metrics = Metrics()
    rates = metrics.entry_rates
    for _ in range(30):
        rates.add("t", 0, 300)
        rates.add("t", 0, 200)
        rates.publish()
    assert rate(metrics) == 500


def test_tenants_and_shards_are_counted_apart() -> None:
    metrics = Metrics()
    rates = metrics.entry_rates
    rates.add("t", 0, 10)
    rates.add("t", 1, 20)
    rates.add("u", 0, 30)
    rates.publish()
    shown = [rate(metrics, "t", "0"), rate(metrics, "t", "1"), rate(metrics, "u", "0")]
    assert shown == [1.0, 2.0, 3.0]


def test_a_burst_leaves_the_window_and_takes_its_series_with_it() -> None:
    metrics = Metrics()
    rates = metrics.entry_rates
    rates.add("t", 0, 100)
    rates.publish()
    for _ in range(WINDOW_S - 1):
        rates.publish()
        assert rate(metrics) == 10.0
    rates.publish()
    assert rate(metrics) is None
