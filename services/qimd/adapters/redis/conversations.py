"""The authoritative store of conversations.

A conversation is a hash (its head), two streams (its events), a string (who sent them), a sorted
set (its memberships) and a hash (its idempotency keys); `lua/heads.lua`, `rows.lua`, `members.lua`
and `conversation_commit.lua` say how each looks. Over all conversations there are: the epochs, the
pending ones of each writer shard, those with an audit due, all of them in byte order, all by the
age of their oldest idempotency key, and the places of events by id.

All of a step is one script, so the shard's epoch is compared with the head's in the same moment.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from qimd.adapters.redis.conversation_rows import (
    NO_END,
    STATE,
    arguments_of,
    events_of,
    idempotency_field,
    interval_of,
    ranges_of,
    span_of,
    state_of,
    unread_in,
)
from qimd.adapters.redis.engine import Arg, RedisEngine, outcome_of
from qimd.adapters.redis.keys import conversation_at, conversation_of, joined, ordered
from qimd.adapters.redis.packing import rows_of, unsized
from qimd.adapters.redis.scripts import Script, load
from qimd.core.errors import unavailable
from qimd.core.ids import EventId, UserId
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.core.records import ConversationKey, Event, EventRef, Interval
from qimd.ports.store import (
    AuditRange,
    CommitStep,
    ConversationState,
    IdempotencyKey,
    Pending,
    PriorResult,
    Progress,
    key_of,
)

_CLAIM: Final = load("conversation_claim", using=("heads",))
_COMMIT: Final = load("conversation_commit", using=("heads", "members"))
_ADVANCE: Final = load("conversation_advance", using=("heads",))
_AUDITED: Final = load("conversation_audited", using=("heads",))
_EXPIRE_IDEMPOTENCY: Final = load("idempotency_expire", using=("rows",))
_FIND_IDEMPOTENCY: Final = load("idempotency_find", using=("rows",))
_NOTE_FIRST_LOG: Final = load("first_log")
_EVENTS: Final = load("events_in", using=("sized", "rows"))
_BODIES: Final = load("event_bodies", using=("sized", "rows"))
_EVENT_IDS: Final = load("event_ids", using=("sized", "rows"))
_MEMBERS_AT: Final = load("members_at", using=("members",))
_MEMBERS_PAGE: Final = load("members_page", using=("sized", "members"))
_MEMBERS_SINCE: Final = load("members_since", using=("members",))

MEMBERS_PER_CALL: Final = 2_048
"""Memberships that one call looks at: some milliseconds, for which Redis does nothing else."""

_KEYS_OF_A_COMMIT: Final = (
    "head",
    "rows",
    "bodies",
    "members",
    "idempotency",
    "senders",
    "sender_numbers",
)
_VALUES_OF_A_PRIOR_RESULT: Final = 5
_PLACE_BYTES: Final = 2
"""Places of events are in 65,536 hashes by the first bytes of their ids."""


class RedisConversationStore:
    """`ports.store.ConversationStore`."""

    def __init__(self, engine: RedisEngine) -> None:
        self._engine = engine
        keys = engine.keys
        self._keys = keys
        self._epochs = keys.key("epochs")
        self._all = keys.key("conversations")
        self._to_audit = keys.key("audit_due")
        self._idempotency_age = keys.key("idempotency_age")
        self._first_log = keys.key("first_log")
        self._pending = keys.prefix("pending")
        self._places = keys.prefix("places")

    # steps of the writer

    async def create_conversation(
        self, writer_shard: int, epoch: int, key: ConversationKey, created_at_ms: int
    ) -> Outcome[ConversationState]:
        return await self._claim(writer_shard, epoch, key, str(created_at_ms))

    async def claim(
        self, writer_shard: int, epoch: int, key: ConversationKey
    ) -> Outcome[ConversationState]:
        return await self._claim(writer_shard, epoch, key, "")

    async def _claim(
        self, writer_shard: int, epoch: int, key: ConversationKey, created_at_ms: str
    ) -> Outcome[ConversationState]:
        place = ordered(key.tenant, key.conversation)
        keys = (self._epochs, self._keys.of("head", key), self._all)
        args = (writer_shard, epoch, created_at_ms, place, joined(key), self._pending)
        return await self._step(_CLAIM, key, keys, args)

    async def commit(self, step: CommitStep) -> Outcome[ConversationState]:
        numbers = [new.event.conversation_seq for new in step.events]
        first = step.expected_head + 1
        if not numbers or numbers != list(range(first, first + len(numbers))):
            return NotApplied(Refusal.REJECTED, "the events do not continue the head")
        keys = (
            self._epochs,
            *(self._keys.of(kind, step.key) for kind in _KEYS_OF_A_COMMIT),
            self._idempotency_age,
        )
        args = (
            step.writer_shard,
            step.epoch,
            step.request_id,
            step.expected_head,
            joined(step.key),
            self._pending,
            self._places,
            *chain.from_iterable(arguments_of(new, step.epoch) for new in step.events),
        )
        return await self._step(_COMMIT, step.key, keys, args)

    async def _step(
        self, script: Script, key: ConversationKey, keys: Sequence[bytes], args: Sequence[Arg]
    ) -> Outcome[ConversationState]:
        outcome = await self._engine.run(script, keys, args)
        if isinstance(outcome, Applied):
            [state] = outcome.value
            return Applied(state_of(key, state.split()))
        return outcome

    async def prior_results(
        self, key: ConversationKey, keys: Sequence[IdempotencyKey]
    ) -> Mapping[IdempotencyKey, PriorResult]:
        places = (self._keys.of("idempotency", key), self._keys.of("rows", key))
        found = iter(
            await self._engine.read(_FIND_IDEMPOTENCY, places, list(map(idempotency_field, keys)))
        )
        return {
            keys[index]: PriorResult(EventId(event_id), int(seq), int(created_at_ms), digest)
            for index, event_id, seq, created_at_ms, digest in zip(
                *[found] * _VALUES_OF_A_PRIOR_RESULT, strict=True
            )
        }

    async def expire_idempotency(self, before_ms: int, limit: int) -> int:
        prefixes = (self._keys.prefix(kind) for kind in ("head", "rows", "idempotency"))
        match await self._engine.run(
            _EXPIRE_IDEMPOTENCY, [self._idempotency_age], [before_ms, limit, *prefixes]
        ):
            case Applied(values):
                return int(values[0])
            case NotApplied() | Unknown():
                raise unavailable("old idempotency keys can't be dropped now")

    # steps of the fanout

    async def note_first_log(self, log_identity: str) -> Outcome[str]:
        outcome = await self._engine.run(_NOTE_FIRST_LOG, [self._first_log], [log_identity])
        if isinstance(outcome, Applied):
            [noted] = outcome.value
            return Applied(noted.decode())
        return outcome

    async def pending(self, writer_shard: int) -> Sequence[Pending]:
        [names] = await self._engine.fetch([("SMEMBERS", self._pending + b"%d" % writer_shard)])
        keys = [conversation_of(name) for name in names]
        heads = await self._heads(keys, ("dispatched_through", "head_version"))
        return [
            Pending(key, dispatched_through, head_version)
            for key, (dispatched_through, head_version) in zip(keys, heads, strict=True)
            if dispatched_through < head_version
        ]

    async def outbox(self, key: ConversationKey, after: int, limit: int) -> Sequence[Event]:
        return await self._events(key, [(after + 1, after + limit)], limit)

    async def advance(
        self, writer_shard: int, epoch: int, progress: Sequence[Progress]
    ) -> Sequence[Outcome[None]]:
        heads = (self._keys.of("head", one.key) for one in progress)
        each: Iterator[tuple[Arg, ...]] = (
            (one.through, joined(one.key), ordered(one.key.tenant, one.key.conversation))
            for one in progress
        )
        outcome = await self._engine.run(
            _ADVANCE,
            (self._epochs, self._to_audit, *heads),
            (writer_shard, epoch, self._pending, *chain.from_iterable(each)),
        )
        match outcome:
            case Applied(values):
                return [_without_value(outcome_of(answer)) for answer in values[0]]
            case NotApplied() | Unknown():
                return [outcome] * len(progress)

    # reads

    async def first_log(self) -> str | None:
        [noted] = await self._engine.fetch([("GET", self._first_log)])
        return None if noted is None else noted.decode()

    async def conversation(self, key: ConversationKey) -> ConversationState | None:
        [values] = await self._engine.fetch([("HMGET", self._keys.of("head", key), *STATE)])
        return None if values[0] is None else state_of(key, values)

    async def conversation_page(
        self, limit: int, after: ConversationKey | None = None
    ) -> Sequence[ConversationState]:
        keys = await self._page(self._all, limit, after)
        heads = await self._heads(keys, STATE)
        return [ConversationState(key, *head) for key, head in zip(keys, heads, strict=True)]

    async def members_at(self, key: ConversationKey, conversation_seq: int) -> Sequence[UserId]:
        """In pages, lest 100,000 members hold up everybody else. Who was a member at an event that
        is committed never changes, so what is written between two pages changes no answer.
        """
        members = [self._keys.of("members", key)]
        users: list[UserId] = []
        start = b"-"
        while start:
            start, page = await self._engine.read(
                _MEMBERS_AT, members, (start, MEMBERS_PER_CALL, conversation_seq)
            )
            if page:
                users.extend(map(UserId, page.decode().split("\n")))
        return users

    async def current_members(
        self, key: ConversationKey, users: Sequence[UserId]
    ) -> Mapping[UserId, int]:
        if not users:
            return {}
        since = await self._engine.read(_MEMBERS_SINCE, [self._keys.of("members", key)], users)
        return {
            user: int(added) for user, added in zip(users, since.split(b"\n"), strict=True) if added
        }

    async def member_page(
        self, key: ConversationKey, after: str, limit: int
    ) -> Sequence[tuple[UserId, int]]:
        page = await self._engine.read(
            _MEMBERS_PAGE, [self._keys.of("members", key)], (after, limit)
        )
        return [(UserId(user.decode()), int(added)) for user, added in rows_of(page, 2)]

    async def intervals(self, key: ConversationKey, user: UserId) -> Sequence[Interval]:
        first, last = b"[%b\0" % user.encode(), b"(%b\1" % user.encode()
        [found] = await self._engine.fetch(
            [("ZRANGEBYLEX", self._keys.of("members", key), first, last)]
        )
        return list(map(interval_of, found))

    async def events(self, refs: Sequence[EventRef]) -> Mapping[EventId, bytes]:
        if not refs:
            return {}
        bodies = [self._keys.of("bodies", ref.key) for ref in refs]
        found = await self._engine.read(_BODIES, bodies, [ref.conversation_seq for ref in refs])
        return {
            ref.event_id: encoded
            for ref, (event_id, encoded) in zip(refs, rows_of(found, 2), strict=True)
            if event_id == ref.event_id
        }

    async def history(
        self, key: ConversationKey, intervals: Sequence[Interval], before_seq: int, limit: int
    ) -> Sequence[Event]:
        last = before_seq - 1 if before_seq > 0 else NO_END
        return await self._events(key, ranges_of(intervals, 1, last), limit)

    async def count_unread(
        self,
        key: ConversationKey,
        user: UserId,
        intervals: Sequence[Interval],
        after: int,
        through: int,
    ) -> int:
        senders = self._keys.of("senders", key)
        spans = [span_of(*seen) for seen in ranges_of(intervals, after + 1, through)]
        # The number last: whoever sent one of these messages has it by then.
        *found, number = await self._engine.fetch(
            [
                *(("GETRANGE", senders, *span) for span in spans),
                ("HGET", self._keys.of("sender_numbers", key), user),
            ]
        )
        return unread_in(b"".join(found), int(number or 0))

    async def find_event(self, event_id: EventId) -> tuple[Event, int] | None:
        [place] = await self._engine.fetch(
            [("HGET", self._places + event_id[:_PLACE_BYTES], event_id)]
        )
        if place is None:
            return None
        tenant, conversation, seq = (part.decode() for part in unsized(place))
        key = key_of(tenant, conversation)
        [found] = await self._committed(key, [(int(seq), int(seq))], 1)
        return found

    # the auditor's

    async def audit_ranges(
        self, limit: int, after: ConversationKey | None = None
    ) -> Sequence[AuditRange]:
        keys = await self._page(self._to_audit, limit, after)
        heads = await self._heads(keys, ("audited_through", "dispatched_through"))
        return [AuditRange(key, *head) for key, head in zip(keys, heads, strict=True)]

    async def event_ids(
        self, key: ConversationKey, after: int, through: int
    ) -> Sequence[tuple[int, EventId]]:
        found = await self._engine.read(
            _EVENT_IDS, [self._keys.of("rows", key)], (after + 1, through)
        )
        return [(int(seq), EventId(event_id)) for seq, event_id in rows_of(found, 2)]

    async def set_audited(self, key: ConversationKey, through: int) -> Outcome[None]:
        place = ordered(key.tenant, key.conversation)
        return _without_value(
            await self._engine.run(
                _AUDITED, (self._keys.of("head", key), self._to_audit), (through, place)
            )
        )

    # what reads share

    async def _page(
        self, index: bytes, limit: int, after: ConversationKey | None
    ) -> list[ConversationKey]:
        """Up to `limit` conversations of an index in byte order, above `after`."""
        above = b"-" if after is None else b"(" + ordered(after.tenant, after.conversation)
        [page] = await self._engine.fetch([("ZRANGEBYLEX", index, above, "+", "LIMIT", 0, limit)])
        return [conversation_at(member) for member in page]

    async def _heads(
        self, keys: Sequence[ConversationKey], fields: Sequence[str]
    ) -> list[list[int]]:
        """Some numbers of each conversation's head, one round trip."""
        heads = await self._engine.fetch(
            [("HMGET", self._keys.of("head", key), *fields) for key in keys]
        )
        return [list(map(int, head)) for head in heads]

    async def _events(
        self, key: ConversationKey, ranges: Sequence[tuple[int, int]], limit: int
    ) -> Sequence[Event]:
        return [event for event, _ in await self._committed(key, ranges, limit)]

    async def _committed(
        self, key: ConversationKey, ranges: Sequence[tuple[int, int]], limit: int
    ) -> list[tuple[Event, int]]:
        """The newest events of increasing ranges, each with its epoch, in increasing seq."""
        places = (self._keys.of("rows", key), self._keys.of("bodies", key))
        bounds = chain.from_iterable(reversed(ranges))
        return events_of(key, await self._engine.read(_EVENTS, places, (limit, *bounds)))


def _without_value(outcome: Outcome[Any]) -> Outcome[None]:
    return Applied(None) if isinstance(outcome, Applied) else outcome
