"""One partition under one term: projected until it is dirty, and rebuilt if an operator asks.

One task does all of a partition's writing, so a rebuild and the projector never meet.
"""

import asyncio
from collections import deque
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Final

from qimd.core.errors import ErrorCode, QimError, invalid
from qimd.core.lease import Term
from qimd.ports.services import RebuildPlan
from qimd.session.ports import RoomPorts
from qimd.session.projector import Projector
from qimd.session.rebuild import Rebuild
from qimd.session.steps import ProjectionDirty, StartedAnew, SteppedDown
from qimd.telemetry.logs import logger

_log = logger("session")
_HALTED_LOOK_S: Final = 0.5
"""How late a dirty partition notices the end of its term."""


@dataclass(slots=True)
class _Asked:
    dry_run: bool
    answer: asyncio.Future[RebuildPlan]


class Partition:
    """See the module. `dirty` holds the reasons of this process's dirty partitions: they outlive a
    term, since only a restart or a rebuild mends them.
    """

    def __init__(self, ports: RoomPorts, term: Term, dirty: MutableMapping[int, str]) -> None:
        self.number = term.shard
        self.term = term
        self.projector = Projector(ports, term)
        self._ports = ports
        self._dirty = dirty
        self._waiting: deque[_Asked] = deque()
        self._asked = asyncio.Event()

    @property
    def dirty(self) -> str:
        """Why it refuses; empty while it does not."""
        return self._dirty.get(self.number, "")

    async def rebuild(self, dry_run: bool) -> RebuildPlan:
        """Ask the partition's task for a rebuild. Raises QimError if it is refused or fails."""
        if not self.dirty:
            raise _not_dirty()
        answer: asyncio.Future[RebuildPlan] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Asked(dry_run, answer))
        self._asked.set()
        return await answer

    async def run(self) -> None:
        """Serve until the term may write no more."""
        self._show()
        try:
            while self.term.may_write(self._ports.runtime.monotonic_s()):
                if not self.dirty:
                    await self._project()
                elif self._waiting:
                    await self._answer(self._waiting.popleft())
                else:
                    await self._wait()
        except SteppedDown:
            self.term.end()
        finally:
            while self._waiting:
                _fail(self._waiting.popleft(), _changed_hands())

    async def _project(self) -> None:
        while self._waiting:
            # Asked while the one before was mending it.
            _fail(self._waiting.popleft(), _not_dirty())
        self.projector = projector = Projector(self._ports, self.term)
        try:
            await projector.run()
        except StartedAnew:
            _log.warning("the store was started anew", mailbox_shard=self.number)
        except ProjectionDirty as fault:
            self._close(str(fault), projector)
        except (QimError, SteppedDown):
            raise
        except Exception as error:
            # No rule foresees it, so nobody knows what it has done in part. It is told where rooms
            # are supervised, which gives the partition up: this process shows it no more.
            self._close(f"an error that no rule foresees ({type(error).__name__})", projector)
            raise
        finally:
            projector.stop()

    def _close(self, reason: str, projector: Projector) -> None:
        self._dirty[self.number] = reason
        self._show()
        _log.error(
            "session projection is dirty",
            mailbox_shard=self.number,
            reason=reason,
            next_offset=projector.next_offset,
        )

    async def _answer(self, asked: _Asked) -> None:
        rebuild = Rebuild(self._ports, self.term)
        try:
            if asked.dry_run:
                plan = await rebuild.plan(self.dirty)
            else:
                plan = await rebuild.run(self.dirty)
                del self._dirty[self.number]
                self._show()
        except QimError as error:
            _fail(asked, error)
        except SteppedDown:
            _fail(asked, _changed_hands())
            raise
        else:
            if not asked.answer.done():
                asked.answer.set_result(plan)

    async def _wait(self) -> None:
        self._asked.clear()
        try:
            await self._ports.runtime.wait_for(self._asked.wait(), _HALTED_LOOK_S)
        except TimeoutError:
            return

    def _show(self) -> None:
        gauge = self._ports.metrics.shard_halted.labels("session", str(self.number))
        gauge.set(bool(self.dirty))


def _not_dirty() -> QimError:
    return invalid("the partition is not dirty: there is nothing to rebuild", "partition")


def _changed_hands() -> QimError:
    return QimError(ErrorCode.NOT_OWNER, "the partition changed hands")


def _fail(asked: _Asked, error: QimError) -> None:
    if not asked.answer.done():
        asked.answer.set_exception(error)
