"""SENDs of one conversation on their way into one step, and to a result for each draft.

A client_msg_id that exists has its first result as the answer, and the rest form a new step. A
content that the store refuses is isolated: each event goes alone, so that one bad event refuses no
other.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from qimd.contract.events import draft_digest
from qimd.core.errors import ErrorCode, QimError, unavailable
from qimd.core.ids import UserId
from qimd.core.outcome import Applied, NotApplied, Refusal
from qimd.core.records import Accepted, Interval
from qimd.ports.services import Commit
from qimd.ports.store import ConversationState, IdempotencyKey, NewEvent
from qimd.writer.head import STEP_ATTEMPTS_MAX, Head, backlog_full
from qimd.writer.logic import (
    NOT_A_MEMBER,
    Candidate,
    Place,
    answer_prior,
    looks_back,
    not_member,
    plan,
)
from qimd.writer.shard import refused
from qimd.writer.steps import place_drafts

Result = Accepted | QimError


@dataclass(slots=True, eq=False)
class Send:
    """A SEND that waits. The answer is a result for each draft, or one error for all of them."""

    command: Commit
    answer: asyncio.Future[Sequence[Result] | QimError]

    def give(self, answer: Sequence[Result] | QimError) -> None:
        """Answer, unless the caller gave up."""
        if not self.answer.done():
            self.answer.set_result(answer)


async def commit_sends(head: Head, sends: Sequence[Send]) -> None:
    """Answer every one of the SENDs, committing in one step what may be committed."""
    began = head.tools.runtime.monotonic_s()
    try:
        state = await head.claimed()
        members = await _senders(head, state, sends)
        ours = [send for send in sends if members[send.command.sender] != NOT_A_MEMBER]
        await _answer_strangers(head, [send for send in sends if send not in ours])
        admitted = _within_backlog(head, ours)
        earlier = await _earlier(head, admitted, members)
    except QimError as error:
        told = not_member() if error.code is ErrorCode.NOT_FOUND else error
        for send in sends:
            send.give(told)
        return
    if not admitted:
        return
    commands = [send.command for send in admitted]
    planned = plan(commands, members, earlier, state.head_version, draft_digest)
    batch = _Batch(head, state.membership_version, planned.candidates)
    await batch.commit()
    _hand_out(admitted, {**planned.refused, **batch.results}, batch.failure)
    seconds = head.tools.runtime.monotonic_s() - began
    head.tools.metrics.stage_latency_seconds.labels("commit").observe(seconds)


async def _senders(
    head: Head, state: ConversationState, sends: Sequence[Send]
) -> dict[UserId, int]:
    """The added_seq of each sender, NOT_A_MEMBER for a stranger; one read for those not known."""
    cache, version = head.tools.members, state.membership_version
    members: dict[UserId, int] = {}
    asked: dict[UserId, None] = {}
    for send in sends:
        sender = send.command.sender
        known = cache.get(head.key, sender, version)
        if known is None:
            asked[sender] = None
        else:
            members[sender] = known
    if asked:
        found = await head.tools.store.current_members(head.key, tuple(asked))
        for sender in asked:
            members[sender] = found.get(sender, NOT_A_MEMBER)
            cache.put(head.key, sender, version, members[sender])
    return members


async def _answer_strangers(head: Head, sends: Sequence[Send]) -> None:
    """Answer the SENDs of those who are not members.

    Who was removed after a commit whose reply was lost asks again, and gets its first result: the
    message is in the mailboxes, and NOT_MEMBER would say that it is not.
    """
    if not sends:
        return
    keys = {
        (send, index): IdempotencyKey(send.command.sender, draft.client_msg_id)
        for send in sends
        for index, draft in enumerate(send.command.drafts)
    }
    priors = await head.tools.store.prior_results(head.key, list(dict.fromkeys(keys.values())))
    for send in sends:
        results: list[Result] = []
        for index, draft in enumerate(send.command.drafts):
            prior = priors.get(keys[send, index])
            results.append(answer_prior(draft_digest(draft), prior) if prior else not_member())
        known = any(isinstance(result, Accepted) for result in results)
        send.give(results if known else not_member())


def _within_backlog(head: Head, sends: Sequence[Send]) -> list[Send]:
    """The SENDs that the shard's backlog has room for; the others are refused unwritten."""
    room = head.backlog_room()
    fitting: list[Send] = []
    for send in sends:
        if len(send.command.drafts) > room:
            send.give(backlog_full())
            continue
        room -= len(send.command.drafts)
        fitting.append(send)
    return fitting


async def _earlier(
    head: Head, sends: Sequence[Send], members: Mapping[UserId, int]
) -> dict[UserId, Sequence[Interval]]:
    """The memberships of those who react to something from before their present one."""
    back = dict.fromkeys(
        send.command.sender
        for send in sends
        for draft in send.command.drafts
        if looks_back(draft, members[send.command.sender])
    )
    return {sender: await head.tools.store.intervals(head.key, sender) for sender in back}


class _Batch:
    """The candidates of one step."""

    def __init__(
        self, head: Head, membership_version: int, candidates: Sequence[Candidate]
    ) -> None:
        self._head = head
        self._membership_version = membership_version
        self._open = list(candidates)
        self.results: dict[Place, Result] = {}
        self.failure: QimError | None = None
        """Why the candidates without a result have none."""

    async def commit(self) -> None:
        """Bring every candidate to a result, or leave a `failure`."""
        try:
            for _ in range(STEP_ATTEMPTS_MAX):
                if not self._open:
                    return
                await self._attempt()
            if self._open:
                raise refused(Refusal.HEAD_MOVED)
        except QimError as error:
            self.failure = error

    async def _attempt(self) -> None:
        state = await self._head.claimed()
        if state.membership_version != self._membership_version:
            # Whoever moved the head changed who may send; judged again when it is sent again.
            raise unavailable("the membership changed under the call; nothing was written")
        now_ms = self._head.next_time_ms(state)
        events = place_drafts(state, self._head.tools.pins, now_ms, self._open)
        outcome = await self._head.commit(state, events)
        match outcome:
            case Applied():
                self._accept(self._open, events)
                self._open = []
            case NotApplied(refusal=Refusal.DUPLICATE):
                await self._answer_duplicates()
            case NotApplied(refusal=Refusal.HEAD_MOVED):
                await self._head.reclaimed(state)
            case NotApplied(refusal=Refusal.REJECTED) if len(self._open) > 1:
                await self._isolate()
            case NotApplied(refusal=refusal):
                raise refused(refusal)
            case _:
                assert_never(outcome)

    def _accept(self, candidates: Sequence[Candidate], events: Sequence[NewEvent]) -> None:
        for candidate, new in zip(candidates, events, strict=True):
            event = new.event
            for number, place in enumerate(candidate.places):
                self.results[place] = Accepted(
                    event.event_id,
                    event.conversation_seq,
                    event.created_at_ms,
                    duplicate=number > 0,
                )

    async def _answer_duplicates(self) -> None:
        keys = [candidate.key for candidate in self._open]
        priors = await self._head.tools.store.prior_results(self._head.key, keys)
        rest: list[Candidate] = []
        for candidate in self._open:
            prior = priors.get(candidate.key)
            if prior is None:
                rest.append(candidate)
                continue
            result = answer_prior(candidate.digest, prior)
            self.results.update(dict.fromkeys(candidate.places, result))
        self._open = rest

    async def _isolate(self) -> None:
        """Each candidate alone. What fails with it is its own result."""
        for candidate in self._open:
            alone = _Batch(self._head, self._membership_version, [candidate])
            await alone.commit()
            self.results.update(alone.results)
            if alone.failure is not None:
                self.results.update(dict.fromkeys(candidate.places, alone.failure))
        self._open = []


def _hand_out(
    sends: Sequence[Send], results: Mapping[Place, Result], failure: QimError | None
) -> None:
    """Answer the SENDs. One none of whose drafts was accepted gets the step's failure as a whole,
    if it had one: nothing of it was decided.
    """
    for number, send in enumerate(sends):
        places = [Place(number, index) for index in range(len(send.command.drafts))]
        given = [results.get(place, failure) for place in places]
        complete = [result for result in given if result is not None]
        if failure is not None and not any(place in results for place in places):
            send.give(failure)
        else:
            send.give(complete)
