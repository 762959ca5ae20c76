"""Settings of a client, each with its reason."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import grpc

from qimd.core.errors import invalid
from qimd.core.parameters import CLIENT_PING_INTERVAL_MIN_MS, FRAME_BYTES_MAX

TokenProvider = Callable[[], Awaitable[str]]
"""Gives an access token; asked at each connect, so that an expired one is replaced."""

_STREAM_LIFE_S: Final = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Times are seconds. The defaults suit a phone as well as a server."""

    connect_timeout_s: float = 10.0
    """One attempt: transport, AUTH and its answer."""
    open_timeout_s: float = 30.0
    """How long entering the client tries, before it raises."""
    answer_timeout_s: float = 15.0
    """A request without an answer by then means that the stream is dead: the server answers within
    10 s, if only to say that it doesn't know."""
    request_timeout_s: float = 30.0
    """How long a request is tried in all, over reconnects, before the caller hears of it."""
    close_timeout_s: float = 1.0
    """How long leaving waits for the server to end its side of the stream, before it is cut."""
    backoff_first_s: float = 0.1
    backoff_most_s: float = 10.0
    """Pauses between attempts double between these, with jitter: no reconnect storm."""
    stream_life_s: float = _STREAM_LIFE_S
    """The gRPC deadline of a stream; at its end the client connects anew."""
    keepalive_s: float = 20.0
    """HTTP/2 pings on a silent stream. The server refuses those below 10 s apart."""
    keepalive_timeout_s: float = 5.0
    """A ping without an answer by then means that the connection is dead."""
    idle_pull_s: float = 1.0
    """Pushed events are confirmed by a page after this much silence …"""
    idle_pull_events: int = 200
    """… or after so many of them: one page then covers all, instead of one a push."""
    poll_s: float = 60.0
    """A lost push with nothing behind it is found by then."""
    page_events: int = 500
    queue_events_max: int = 2_000
    """Events that wait for the application; pushes beyond it are left to the pages."""
    push_events: bool = True
    """Ask for pushes. A client that only sends goes without, and costs the server less."""
    auto_ack: bool = True
    """Acknowledge an event once the application asked for the next one. False: only
    `Client.ack()` does."""
    credentials: grpc.ChannelCredentials | None = field(default=None, repr=False)
    """TLS; None: plain text, for the loopback."""

    def __post_init__(self) -> None:
        """Raise QimError(INVALID_ARGUMENT) for what the server would refuse or never end."""
        if self.keepalive_s * 1000 < CLIENT_PING_INTERVAL_MIN_MS:
            raise invalid(
                f"keepalive_s must be {CLIENT_PING_INTERVAL_MIN_MS // 1000} or more, which is what "
                f"the server accepts",
                "keepalive_s",
            )
        if not 0 < self.backoff_first_s <= self.backoff_most_s:
            raise invalid("backoff_first_s must be in (0, backoff_most_s]", "backoff_first_s")
        if not 1 <= self.page_events <= 500:
            raise invalid("page_events must be in 1..500", "page_events")
        if self.queue_events_max < self.page_events:
            raise invalid("queue_events_max must hold a page", "queue_events_max")

    def channel_options(self) -> list[tuple[str, int]]:
        """The channel's arguments."""
        return [
            ("grpc.keepalive_time_ms", int(self.keepalive_s * 1000)),
            ("grpc.keepalive_timeout_ms", int(self.keepalive_timeout_s * 1000)),
            # gRPC waits as long for a ping's answer as this one says, whatever the other one says.
            ("grpc.http2.ping_timeout_ms", int(self.keepalive_timeout_s * 1000)),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.max_receive_message_length", 2 * FRAME_BYTES_MAX),
            # A process with many devices must not lose all of them with one shared connection,
            # and closing one client must not disturb another's.
            ("grpc.use_local_subchannel_pool", 1),
        ]
