"""Every limit and default of qim, each with its reason; relations between them hold at import.

Source: design section 13 (limits), section 5 (lease inequality), seed 07 section 1.3.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from qimd.core.errors import ErrorCode, QimError

# --- ids and messages -------------------------------------------------------------------------

ID_BYTES_MAX: Final = 128
"""An id is part of every key; this bounds a key, and with it a record of the dispatch log."""

BODY_BYTES_MAX: Final = 64 * 1024
"""A body is stored once and travels in pages of 1 MiB: at least 15 of the largest fit a page."""

REACTION_BYTES_MAX: Final = 128
"""Longer than any emoji sequence in use; a reaction is shown whole in a session summary."""

SEND_EVENTS_MAX: Final = 100
"""One SEND commits as one step: this bounds the step, and how long it holds its conversation."""

COMMIT_EVENTS_MAX: Final = 256
"""Events that one commit step takes: several SENDs of a conversation fold into one durable write.
"""

# --- conversations ----------------------------------------------------------------------------

CONVERSATION_MEMBERS_MAX: Final = 100_000
"""What fans out from one message; the cached recipient blocks of such a group take about 5 MB."""

MEMBERSHIP_CHANGE_USERS_MAX: Final = 1_000
"""A membership event is a row and a body like any other: 1,000 ids of 128 bytes stay near 128 KiB.
"""

OUTBOX_BACKLOG_MAX: Final = 10_000
"""Committed but not dispatched events of a writer shard: above it SEND is refused, so that an
outage of the log ends in a clear refusal and a takeover has a bounded outbox to drain."""

IDEMPOTENCY_WINDOW_MS: Final = 24 * 3600 * 1000
"""A client that was offline for a day may still ask again with the same client_msg_id."""

CLOCK_REGRESSION_REJECT_MS: Final = 2_000
"""A step back of the clock up to here is clamped; beyond it the writer refuses until it caught up.
"""

# --- dispatch ---------------------------------------------------------------------------------

DISPATCH_CHUNK_RECIPIENTS: Final = 512
"""Recipients of one GroupDispatch: the cost of a record is shared by its recipients, and a record
of 512 ids of 128 bytes still stays under 80 KiB."""

LANES: Final = 64
"""Independent progress domains of a shard: a stuck user blocks at most 1/64 of one; the done-mask
of a dispatch fits one 64-bit word."""

SLOTS: Final = 1 << 14
"""Routing slots of a tenant: enough to move 1/16384 of the users at a time."""

READER_VERSION: Final = 1
"""The GroupDispatch version that this build reads; a record that demands more halts its partition.
"""

LOG_IDENTITY_CHECK_INTERVAL_S: Final = 10.0
"""How long a re-created topic can go unseen by a producer."""

FANOUT_BATCH_RECORDS_MAX: Final = 512
"""Records produced and awaited together; with the largest records this is 40 MiB in flight."""

# --- leases (seed 07, section 1.3) ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseParameters:
    """The lease's times, in seconds.

    `writer_failover_wait > shard_lease_ttl > self_fence_deadline`.
    """

    shard_lease_ttl_s: float = 15.0
    lease_renew_interval_s: float = 5.0
    lease_renew_retry_s: float = 1.0
    writer_self_fence_deadline_s: float = 12.0
    writer_failover_wait_s: float = 25.0

    def __post_init__(self) -> None:
        """Raise QimError(INVALID_ARGUMENT) unless the inequality holds."""
        chain = (
            ("writer_failover_wait", self.writer_failover_wait_s),
            ("shard_lease_ttl", self.shard_lease_ttl_s),
            ("writer_self_fence_deadline", self.writer_self_fence_deadline_s),
            ("lease_renew_interval", self.lease_renew_interval_s),
            ("lease_renew_retry", self.lease_renew_retry_s),
        )
        for (name, value), (lower_name, lower) in pairwise(chain):
            if not value > lower:
                raise QimError(
                    ErrorCode.INVALID_ARGUMENT,
                    f"{name} ({value} s) must be above {lower_name} ({lower} s)",
                    field=name,
                )
        if not self.lease_renew_retry_s > 0:
            raise QimError(
                ErrorCode.INVALID_ARGUMENT,
                "lease_renew_retry must be above 0",
                field="lease_renew_retry",
            )

    @property
    def absence_wait_s(self) -> float:
        """How long a successor must have seen the key absent before it takes over."""
        return self.writer_failover_wait_s - self.shard_lease_ttl_s


# --- mailbox ----------------------------------------------------------------------------------

PAGE_EVENTS_MAX: Final = 500
PAGE_BYTES_MAX: Final = 1024 * 1024
"""A page is one gRPC message, well under its 4 MiB default limit, and at least one event fits."""

PAGE_ENTRY_OVERHEAD_BYTES: Final = 64
"""Upper bound of what a page adds to an event's own bytes: the mailbox_seq, tags and lengths."""

MAILBOX_BATCH_RECORDS_MAX: Final = 256
"""Records applied in one atomic step: enough for the small records of small groups to share its
sync, few enough to hold at once (the largest take 20 MiB) and to narrow down one that is refused.
"""

MAILBOX_BATCH_ENTRIES_MAX: Final = 16_384
"""Entries applied in one atomic step: what one step may hold the store's writer for (0.1 s)."""

BUCKET_DAYS_KEPT: Final = 30
LANE_STALL_ALERT_S: Final = 30.0
LANE_STALL_FAILOVER_S: Final = 120.0
LANE_KEEP_INTERVAL_S: Final = 10.0
"""Between two looks at whether the log's retention comes near a lane that lags: a third of the
shortest retention in use is hours."""

LANE_RETRY_MIN_S: Final = 0.2
LANE_RETRY_MAX_S: Final = 10.0

SHARD_EPOCH_MAX: Final = (1 << 12) - 1
LOG_OFFSET_MAX: Final = (1 << 43) - 1
EXACT_INTEGER_MAX: Final = (1 << 53) - 1
"""Epochs and conversation_seq stay below 2^53, so that JSON, Lua and JavaScript hold them exactly.
"""

# --- session list -----------------------------------------------------------------------------

SESSION_PAGE_DEFAULT: Final = 50
SESSION_PAGE_MAX: Final = 200
SESSION_PREVIEW_BYTES: Final = 256
HISTORY_PAGE_DEFAULT: Final = 100
PROJECTION_BATCH_RECORDS_MAX: Final = 256
PROJECTION_STEP_ROWS_MAX: Final = 16_384
"""Rows that one step of the projection writes, as MAILBOX_BATCH_ENTRIES_MAX and for its reason."""

PROJECTION_RETRY_MIN_S: Final = 0.05
PROJECTION_RETRY_MAX_S: Final = 5.0
"""A step that the engine can't take now is tried again within 5 s of there being room."""

PROJECTION_LAG_SAMPLE_INTERVAL_S: Final = 1.0
UNREAD_DRIFT_SAMPLE_INTERVAL_S: Final = 30.0
UNREAD_DRIFT_SAMPLE_ROWS: Final = 8
"""Rows recounted at a time: a recount reads events, and eight of them in 30 s cost nothing."""

MARK_READ_TRIES_MAX: Final = 16
"""Each try lost to a newer event of the row; a conversation that outruns 16 counts is UNAVAILABLE.
"""

SESSION_LISTINGS_MAX: Final = 10_000
"""Session lists that are being paged through at a time; the longest unused one gives way."""

SESSION_LISTING_EXPIRY_S: Final = 600.0
"""How long a client may think about its next page."""

# --- connection -------------------------------------------------------------------------------

PROTOCOL_VERSION: Final = 1
PUSH_EVENTS: Final = "push-events"
"""A device that names it in AUTH is sent PUSH_EVENTS; one that only sends saves itself the work."""

CAPABILITIES: Final[tuple[str, ...]] = (PUSH_EVENTS, "history", "session-list", "report")

CONNECTION_QUEUE_BYTES_MAX: Final = 4 * 1024 * 1024
"""What a reader that does not read can make the server hold; at the bound it is a slow consumer."""

CONNECTION_REQUESTS_MAX: Final = 64
"""Requests of one stream under way; beyond it the stream is not read (back-pressure, no refusal).
"""

PUSH_FRAME_EVENTS_MAX: Final = PAGE_EVENTS_MAX
"""Events of one PUSH_EVENTS, as of a page: a frame costs both sides 0.1 ms, whatever it carries, so
that one for all that a mailbox's step brought carries three times as many events as three frames.
"""

UNAUTH_CONNECTION_TIMEOUT_S: Final = 10.0
REQUEST_TIMEOUT_S: Final = 10.0
"""A request that its room has not answered by then is UNAVAILABLE: no client waits for ever."""

DRAIN_GRACE_S: Final = 5.0
CLIENT_PING_INTERVAL_MIN_MS: Final = 10_000
"""Documented for clients: the server accepts keepalive pings this far apart on an idle stream."""

FRAME_BYTES_MAX: Final = 4 * 1024 * 1024
"""A SEND of 100 bodies of 64 KiB is above it on purpose: such a client sends several frames."""

# --- tokens -----------------------------------------------------------------------------------

ACCESS_TOKEN_BYTES_MAX: Final = 4096
"""Ids of the largest size fit eight times; more is not parsed before the signature is checked."""

TENANT_KEYS_CACHE_S: Final = 5.0
"""A removed key stops working after it."""

TENANT_KEYS_CACHE_MAX: Final = 1024
"""Tenants whose keys are held; a login storm of one tenant reads the store once in 5 s."""

# --- relations --------------------------------------------------------------------------------

GROUP_DISPATCH_BYTES_MAX: Final = (
    4 * (ID_BYTES_MAX + 3) + 1024 + DISPATCH_CHUNK_RECIPIENTS * (ID_BYTES_MAX + 3 + 8)
)
"""No GroupDispatch of the default chunk size is larger; the log's limit must exceed it at start."""

RELATIONS: Final[tuple[tuple[str, bool], ...]] = (
    ("a page holds one largest event", BODY_BYTES_MAX * 2 < PAGE_BYTES_MAX),
    ("a page fits a frame", PAGE_BYTES_MAX * 2 < FRAME_BYTES_MAX),
    ("a SEND fits a commit step", SEND_EVENTS_MAX <= COMMIT_EVENTS_MAX),
    (
        "a largest record fits a batch of entries",
        DISPATCH_CHUNK_RECIPIENTS < MAILBOX_BATCH_ENTRIES_MAX,
    ),
    ("a commit step fits the backlog", COMMIT_EVENTS_MAX < OUTBOX_BACKLOG_MAX),
    ("mailbox_seq fits 63 bits", (SHARD_EPOCH_MAX << 51) | (LOG_OFFSET_MAX << 8) < 1 << 63),
    ("lanes fit one word", LANES == 64),
)
for _meaning, _holds in RELATIONS:
    if not _holds:
        raise AssertionError(f"core/parameters: {_meaning} does not hold")
