"""Replaying a chat over real streams: every speaker a client of their own, one order for all."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from qimd.client.chat import Line, turns
from qimd.client.client import Client
from qimd.client.model import Message, Sent
from qimd.core.errors import QimError


class Speakers:
    """Live clients by user, at most `streams_max`; the longest silent one makes room."""

    def __init__(self, make: Callable[[str], Client], streams_max: int) -> None:
        self._make = make
        self._streams_max = streams_max
        self._live: OrderedDict[str, Client] = OrderedDict()
        self.reconnects = 0
        """Streams that clients, now closed, had to open anew."""

    async def __aenter__(self) -> "Speakers":
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close them all."""
        live, self._live = self._live, OrderedDict()
        await asyncio.gather(*map(self._close, live.values()))

    async def _close(self, client: Client) -> None:
        self.reconnects += client.connects - 1
        await client.__aexit__(None, None, None)

    async def client(self, user: str) -> Client:
        """The user's client, connected. Raises QimError."""
        client = self._live.get(user)
        if client is None:
            if len(self._live) >= self._streams_max:
                _, longest_silent = self._live.popitem(last=False)
                await self._close(longest_silent)
            client = await self._make(user).__aenter__()
            self._live[user] = client
        self._live.move_to_end(user)
        return client


@dataclass(frozen=True, slots=True)
class Turn:
    """A run of one speaker's lines, durable."""

    lines: Sequence[Line]
    sent: Sequence[Sent]
    began_s: float
    """Monotonic time before its SEND, and after its SEND_ACK."""
    ended_s: float


During = Callable[[Sequence[Line]], Awaitable[None]]


async def replay_turns(
    lines: Sequence[Line],
    speakers: Speakers,
    conversation: str,
    name: str,
    during: During | None = None,
) -> AsyncIterator[Turn]:
    """Send the lines in order; whoever speaks next waits for the last one's SEND_ACK.

    `name` prefixes the client_msg_ids (`name:n`), so that a replay that is repeated sends nothing
    twice. `during` runs beside each SEND, begun after it. Raises QimError for a line that is
    refused.
    """
    for turn in turns(lines):
        client = await speakers.client(turn[0].user)
        messages = [Message(line.body, f"{name}:{line.n}"[-128:]) for line in turn]
        began_s = time.monotonic()
        if during is None:
            results = await client.send_many(conversation, messages)
        else:
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(client.send_many(conversation, messages))
                group.create_task(_beside(during, turn))
            results = sending.result()
        sent = []
        for result in results:
            if isinstance(result, QimError):
                raise result
            sent.append(result)
        yield Turn(turn, sent, began_s, time.monotonic())


async def _beside(during: During, turn: Sequence[Line]) -> None:
    await during(turn)


@dataclass(slots=True)
class Statistics:
    """What a replay came to."""

    sent: int = 0
    duplicates: int = 0
    in_order: bool = True
    _last_seq: int = 0
    _began_s: float | None = None
    _ended_s: float = 0.0
    _ack_s: list[float] = field(default_factory=list)

    def add(self, turn: Turn) -> None:
        """Count a turn in."""
        for sent in turn.sent:
            self.sent += 1
            self.duplicates += sent.duplicate
            self.in_order &= sent.seq > self._last_seq
            self._last_seq = sent.seq
        if self._began_s is None:
            self._began_s = turn.began_s
        self._ended_s = turn.ended_s
        self._ack_s.append(turn.ended_s - turn.began_s)

    @property
    def began_s(self) -> float:
        """Monotonic time of the first SEND."""
        return self._began_s or 0.0

    @property
    def seconds(self) -> float:
        """From the first SEND to the last SEND_ACK."""
        return self._ended_s - self.began_s

    @property
    def sends_per_second(self) -> float:
        """Acknowledged events a second."""
        return self.sent / self.seconds if self.seconds else 0.0

    def ack_ms(self, quantile: float) -> float:
        """A quantile of the time from SEND to SEND_ACK, in milliseconds."""
        if not self._ack_s:
            return 0.0
        ordered = sorted(self._ack_s)
        return 1000 * ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]
