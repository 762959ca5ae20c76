"""The one catalogue of metrics, each under exactly the name that dashboards and alerts use.

`prometheus_client.Counter` appends `_total` to a name: what does not end in it is a Gauge that only
rises. The five zeros (seed 07, section 6.1) exist from the start, at 0.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from qimd.telemetry.rates import EntryRates

ZEROS: Final = (
    "mailbox_seq_regression_count",
    "cursor_advanced_by_push_total",
    "event_id_nondeterminism_total",
    "orphan_dispatch_total",
    "covered_through_unmaterialized_total",
)
"""Counters that must stay zero: non-zero is a P1 and stops a release."""

_LATENCY_BUCKETS_S: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip


class Metrics:
    """One process's metrics. Rooms hold it and call `inc`, `set`, `observe`."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        r = self.registry = registry or CollectorRegistry(auto_describe=True)

        # The five zeros.
        self.mailbox_seq_regression_count = Gauge(
            "mailbox_seq_regression_count",
            "Mailbox commits whose seq was not above the last recorded for the lane",
            registry=r,
        )
        self.cursor_advanced_by_push_total = Counter(
            "cursor_advanced_by_push",
            "Device positions found beyond every covered_through handed to the device",
            registry=r,
        )
        self.event_id_nondeterminism_total = Counter(
            "event_id_nondeterminism",
            "Dispatches whose content differs from what was kept under their dispatch_id",
            registry=r,
        )
        self.orphan_dispatch_total = Counter(
            "orphan_dispatch",
            "Events without dispatches, or dispatches without event, found by the auditor",
            registry=r,
        )
        self.covered_through_unmaterialized_total = Counter(
            "covered_through_unmaterialized",
            "Client reports of a gap below covered_through that the server found true",
            registry=r,
        )

        # What is refused, dropped or set aside.
        self.stale_epoch_dispatch_dropped_total = Counter(
            "stale_epoch_dispatch_dropped",
            "Dispatches dropped whole because a larger fencing epoch came before them",
            ["shard"],
            registry=r,
        )
        self.quarantined_total = Counter(
            "quarantined", "Records kept in quarantine, by the stage that met them", ["stage"],
            registry=r,
        )  # fmt: skip
        self.errors_total = Counter("errors", "Refusals to clients, by code", ["code"], registry=r)
        self.reports_total = Counter(
            "reports", "Client reports, by kind and whether they were true", ["kind", "confirmed"],
            registry=r,
        )  # fmt: skip
        self.defects_total = Counter(
            "defects", "Exceptions that escaped a task", ["task"], registry=r
        )

        self.spans_dropped_total = Counter(
            "spans_dropped", "Spans that reached no collector: queue_full, or not_taken by it",
            ["reason"], registry=r,
        )  # fmt: skip

        # Stages: commit, dispatch, mailbox, session, push, page.
        self.stage_records_total = Counter(
            "stage_records", "Records (events, dispatches) a stage finished", ["stage"], registry=r
        )
        self.stage_entries_total = Counter(
            "stage_entries", "Entries (one a recipient) a stage finished", ["stage"], registry=r
        )
        self.stage_latency_seconds = Histogram(
            "stage_latency_seconds", "Time one batch spends in a stage", ["stage"],
            buckets=_LATENCY_BUCKETS_S, registry=r,
        )  # fmt: skip
        self.duplicates_total = Counter(
            "duplicates", "Lane blocks absorbed by dispatch_id", ["shard"], registry=r
        )
        self.dispatch_progress_collected_total = Counter(
            "dispatch_progress_collected",
            "Dispatches whose progress was dropped behind the replay safety window",
            registry=r,
        )

        # The seed's SLIs (section 6.2).
        self.send_ack_latency = Histogram(
            "send_ack_latency", "Seconds from a SEND's arrival to its SEND_ACK",
            buckets=_LATENCY_BUCKETS_S, registry=r,
        )  # fmt: skip
        self.online_ready_latency = Histogram(
            "online_ready_latency",
            "Seconds from AUTH to the page that leaves nothing more to pull",
            ["backlog"], buckets=_LATENCY_BUCKETS_S, registry=r,
        )  # fmt: skip
        self.lane_watermark_stall_ms = Gauge(
            "lane_watermark_stall_ms", "How long a lane's watermark has stood behind its shard",
            ["shard", "lane"], registry=r,
        )  # fmt: skip
        self.projection_lag_seq = Gauge(
            "projection_lag_seq", "Records between the projection's checkpoint and the log's end",
            ["partition"], registry=r,
        )  # fmt: skip
        self.projection_lag_seconds = Gauge(
            "projection_lag_seconds", "Age of the oldest record that is not projected yet",
            ["partition"], registry=r,
        )  # fmt: skip
        self.unread_drift_ratio = Gauge(
            "unread_drift_ratio",
            "Share of sampled session rows whose unread differs from a recount",
            registry=r,
        )  # fmt: skip
        self.fanout_entries_per_sec = Gauge(
            "fanout_entries_per_sec", "Mailbox entries a second, over the last ten seconds",
            ["tenant", "shard"], registry=r,
        )  # fmt: skip
        self.entry_rates = EntryRates(self.fanout_entries_per_sec)
        """What the mailbox counts for it; housekeeping publishes."""
        self.conversation_active_member_ratio = Gauge(
            "conversation_active_member_ratio",
            "Members with a live stream over members, of conversations dispatched lately",
            ["size_bucket"], registry=r,
        )  # fmt: skip

        self.mailbox_store_shadow_mismatch = Gauge(
            "mailbox_store_shadow_mismatch",
            "Answers of the mailbox store's shadow that differ from the primary's",
            registry=r,
        )

        # Between processes.
        self.hop_frames_total = Counter(
            "hop_frames", "Frames that were sent to other processes", registry=r
        )
        self.hop_items_total = Counter(
            "hop_items", "Calls, answers and hints that those frames carried", registry=r
        )
        self.hints_dropped_total = Counter(
            "hints_dropped", "Hints dropped because a connection process does not read",
            registry=r,
        )  # fmt: skip

        # State.
        self.dependency_up = Gauge(
            "dependency_up", "1 if the dependency answered its last probe, else 0",
            ["dependency"], registry=r,
        )  # fmt: skip
        self.connections = Gauge("connections", "Authenticated streams", registry=r)
        self.outbox_backlog = Gauge(
            "outbox_backlog", "Committed events not dispatched yet", ["shard"], registry=r
        )
        self.mailbox_lag_records = Gauge(
            "mailbox_lag_records", "Records between the shard's position and the log's end",
            ["shard"], registry=r,
        )  # fmt: skip
        self.shard_halted = Gauge(
            "shard_halted", "1 while a mailbox shard or projection partition refuses, else 0",
            ["kind", "shard"], registry=r,
        )  # fmt: skip
        self.epoch = Gauge(
            "epoch", "The fencing epoch or term owned here", ["kind", "shard"], registry=r
        )
