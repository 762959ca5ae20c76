"""gRPC's options for hops: what a message may hold, and how soon a peer that is gone is noticed."""

from typing import Final

from qimd.core.parameters import FRAME_BYTES_MAX

MESSAGE_BYTES_MAX: Final = FRAME_BYTES_MAX + 64 * 1024
"""A SEND of the largest frame, and the ids that a call adds to it."""

_PING_INTERVAL_MS: Final = 10_000
_PING_TIMEOUT_MS: Final = 4_000
"""Together below a lease's 15 s: a stopped process is noticed before its shards have another owner.
"""

_BOTH: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", _PING_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
)

CHANNEL_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    *_BOTH,
    # How long an attempt to connect may take: a host that is gone refuses nothing.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    # A new channel tries at once, also to an address that did not answer another one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
"""For the channels of a `ChannelFactory`."""

SERVER_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    *_BOTH,
    # With it, a second server on a used port would start and take half of the connections.
    ("grpc.so_reuseport", 0),
    # Half of what peers do: a ping that arrives early by the network's jitter is no abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", _PING_INTERVAL_MS // 2),
)
"""For a server of `HopHandlers.service`."""
