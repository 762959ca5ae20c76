"""Rates over the last ten seconds, from counts that a stage adds batch by batch.

`fanout_entries_per_sec{tenant,shard}` is a rate of its own instead of a query over a counter,
since a quota is judged by it: it must not depend on how often somebody scrapes.
"""

from collections import Counter, deque
from typing import Final

from prometheus_client import Gauge

WINDOW_S: Final = 10
"""As the metric's help says."""

PUBLISH_INTERVAL_S: Final = 1.0
"""Between two publications, each of which closes a slice of the window."""

_Key = tuple[str, str]


class EntryRates:
    """Mailbox entries a second by (tenant, shard). `publish` is called every PUBLISH_INTERVAL_S."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._open: Counter[_Key] = Counter()
        self._slices: deque[Counter[_Key]] = deque()
        self._sums: Counter[_Key] = Counter()

    def add(self, tenant: str, shard: int, entries: int) -> None:
        """Count entries that became durable."""
        self._open[(tenant, str(shard))] += entries

    def publish(self) -> None:
        """Close a slice, and set the gauge from the last ten.

        A tenant without entries in all of them has its series removed: tenants come and go, and a
        series for each that ever was would grow for ever.
        """
        self._sums.update(self._open)
        self._slices.append(self._open)
        touched = set(self._open)
        self._open = Counter()
        if len(self._slices) > WINDOW_S:
            oldest = self._slices.popleft()
            self._sums.subtract(oldest)
            touched |= set(oldest)
        for key in touched:
            if self._sums[key] > 0:
                self._gauge.labels(*key).set(self._sums[key] / WINDOW_S)
            else:
                del self._sums[key]
                self._gauge.remove(*key)
