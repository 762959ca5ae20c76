"""One conversation's queue: calls take effect in the order in which they were made.

While a step is under way further SENDs wait, and go together into the next one: under load many
SENDs share one durable write.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from qimd.core.errors import QimError
from qimd.core.parameters import COMMIT_EVENTS_MAX
from qimd.core.records import ConversationKey
from qimd.writer.head import Changed, Head, Tools
from qimd.writer.sends import Send, commit_sends
from qimd.writer.shard import OutcomeUnknownError, Shard


@dataclass(slots=True, eq=False)
class Administer:
    """An administrator's call that waits its turn among the SENDs."""

    act: Callable[[Head], Awaitable[Changed]]
    answer: asyncio.Future[Changed | QimError]

    def give(self, answer: Changed | QimError) -> None:
        """Answer, unless the caller gave up."""
        if not self.answer.done():
            self.answer.set_result(answer)


class Conversation:
    """The only one that numbers this conversation's events, under its shard's term."""

    def __init__(self, key: ConversationKey, shard: Shard, tools: Tools) -> None:
        self._head = Head(key, shard, tools)
        self._shard = shard
        self._runtime = tools.runtime
        self._queue: deque[Send | Administer] = deque()
        self._taken: Sequence[Send | Administer] = ()
        self._running = False

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is under way: it may be forgotten."""
        return not self._running

    def submit(self, request: Send | Administer) -> None:
        """Queue a call up; its place among the others is fixed from here on."""
        self._queue.append(request)
        if not self._running:
            self._running = True
            self._shard.began()
            self._runtime.spawn(self._run(), f"writer-{self._shard.term.shard}")

    async def _run(self) -> None:
        try:
            while self._queue:
                head = self._queue[0]
                if head.answer.done():
                    # Its caller gave up, and may be asking again: work for nobody is how a queue
                    # that is full of it never ends.
                    self._queue.popleft()
                elif isinstance(head, Administer):
                    self._queue.popleft()
                    self._taken = (head,)
                    await self._administer(head)
                else:
                    self._taken = sends = self._take_sends()
                    await commit_sends(self._head, sends)
                self._taken = ()
        finally:
            self._running = False
            self._shard.settled()
            self._give_up()

    def _give_up(self) -> None:
        """Answer what a defect or a shutdown left without an answer: its outcome is not known, and
        what was cached of the head may be wrong.
        """
        for request in (*self._taken, *self._queue):
            self._head.forget()
            request.give(OutcomeUnknownError())
        self._taken = ()
        self._queue.clear()

    def _take_sends(self) -> list[Send]:
        """The oldest SENDs that fit one step, without those whose caller gave up."""
        taken: list[Send] = []
        events = 0
        while self._queue and isinstance(send := self._queue[0], Send):
            if send.answer.done():
                self._queue.popleft()
                continue
            events += len(send.command.drafts)
            if taken and events > COMMIT_EVENTS_MAX:
                break
            self._queue.popleft()
            taken.append(send)
        return taken

    async def _administer(self, call: Administer) -> None:
        try:
            call.give(await call.act(self._head))
        except QimError as error:
            call.give(error)
