"""A session that loses replies, and lets writes land late, where a test says so; and what a test
begins with.
"""

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.contract.builders import START_MS, key, new, step, value

from qimd.adapters.scylla import ScyllaBackends
from qimd.adapters.scylla.session import Row, Session, Write
from qimd.core.outcome import Outcome, Unknown
from qimd.core.records import Event
from qimd.ports.store import ConversationState, ShardKind


@dataclass
class Fault:
    """What happens to the first write whose CQL begins with `begins`. It is Unknown either way."""

    begins: str
    lands_late: bool
    hits: int = 0
    _held: list[Callable[[], Awaitable[object]]] = field(default_factory=list)

    def takes(self, writes: Sequence[Write]) -> bool:
        """Whether it is this one."""
        if self.hits or not writes or not writes[0].cql.strip().startswith(self.begins):
            return False
        self.hits = 1
        return True

    async def carry(self, send: Callable[[], Awaitable[object]]) -> None:
        """Send it, or keep it until `land`."""
        if self.lands_late:
            self._held.append(send)
        else:
            await send()

    async def land(self) -> None:
        """Send what was kept back."""
        assert self._held, "nothing was kept back"
        for send in self._held:
            await send()


class FaultySession(Session):
    """A session with faults."""

    def __init__(self, cluster: Any, driver: Any) -> None:
        super().__init__(cluster, driver)
        self._faults: list[Fault] = []

    def lose_reply(self, begins: str) -> Fault:
        """The write is made, and nobody hears of it."""
        return self._fault(Fault(begins, lands_late=False))

    def land_late(self, begins: str) -> Fault:
        """The write is made when the test calls `land`."""
        return self._fault(Fault(begins, lands_late=True))

    def _fault(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    async def _write(self, writes: Sequence[Write], *, conditional: bool) -> Outcome[Sequence[Row]]:
        async def send() -> Outcome[Sequence[Row]]:
            return await Session._write(self, writes, conditional=conditional)

        for fault in self._faults:
            if fault.takes(writes):
                await fault.carry(send)
                return Unknown("no reply")
        return await send()


def deployment(session: Session) -> ScyllaBackends:
    """A fresh deployment."""
    return ScyllaBackends.over(session, uuid.uuid4().hex)


async def owner(backends: ScyllaBackends, nonce: bytes = b"n" * 16) -> int:
    """The epoch of a new owner."""
    raised = await backends.epochs.raise_epoch(ShardKind.WRITER, 0, nonce, START_MS // 1000)
    return value(raised)


async def conversation(backends: ScyllaBackends) -> int:
    """A new conversation; its owner's epoch."""
    epoch = await owner(backends)
    value(await backends.conversations.create_conversation(0, epoch, key(), START_MS))
    return epoch


async def commit(backends: ScyllaBackends, epoch: int, one: Event) -> Outcome[ConversationState]:
    seq = one.conversation_seq
    return await backends.conversations.commit(step(epoch, seq - 1, [new(one)]))
