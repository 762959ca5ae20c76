"""The session projection in Redis: rows, read marks, checkpoints. A step is one script.

What a restart of Redis may take back (the tail of the log under `appendfsync everysec`; nothing
under `always`) it takes back whole: a step's rows and its checkpoint are one transaction of the
append-only file. So the next step finds another `expected_next` and is refused; whoever steps down
and loads the checkpoint anew projects from there, and each row's applied_seq counts nothing twice.
A read mark that was lost is lost: the user's device marks again what it shows.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from qimd.adapters.redis.engine import Arg, RedisEngine
from qimd.adapters.redis.keys import owner
from qimd.adapters.redis.scripts import Script, load
from qimd.core.ids import ConversationId, sized
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.core.parameters import EXACT_INTEGER_MAX
from qimd.core.records import ConversationKey, EventKind, UserKey
from qimd.ports.projection import (
    CheckpointMeta,
    PagePosition,
    PartitionCheckpoint,
    ProjectionGroup,
    ProjectStep,
    RestoreStep,
    SessionRow,
)

_TOP: Final = PagePosition(EXACT_INTEGER_MAX, "")
"""Above every place in a list."""


def _script(name: str) -> Script:
    return load(f"projection_{name}", using=("projection_layout",))


_OPEN_PARTITION: Final = _script("open_partition")
_PROJECT: Final = _script("project")
_READ_MARKS: Final = _script("read_marks")
_RESTORE: Final = _script("restore")
_RESET_CHECKPOINT: Final = _script("reset_checkpoint")
_ROWS: Final = _script("rows")
_ROW: Final = _script("row")
_MARK_READ: Final = _script("mark_read")


class RedisProjectionStore:
    """`ports.projection.ProjectionStore`."""

    def __init__(self, engine: RedisEngine) -> None:
        self._engine = engine
        self._prefix = engine.keys.prefix("projection")

    async def _step(self, script: Script, *args: Arg) -> Outcome[list[Any]]:
        return await self._engine.run(script, (), (self._prefix, *args))

    async def _read(self, script: Script, *args: Arg) -> Any:
        return await self._engine.read(script, (), (self._prefix, *args))

    async def checkpoint(self, partition: int) -> PartitionCheckpoint | None:
        key = b"%bpartition:%d" % (self._prefix, partition)
        [(meta, next_offset)] = await self._engine.fetch([("HMGET", key, "meta", "next_offset")])
        return None if meta is None else _checkpoint_of(meta, next_offset)

    async def open_partition(
        self, partition: int, term: int, initial: PartitionCheckpoint
    ) -> Outcome[PartitionCheckpoint]:
        outcome = await self._step(_OPEN_PARTITION, partition, term, *_packed(initial))
        return Applied(_checkpoint_of(*outcome.value)) if isinstance(outcome, Applied) else outcome

    async def project(self, step: ProjectStep) -> Outcome[None]:
        groups = [
            part
            for group in step.groups
            if group.events and group.users
            for part in _packed_group(group)
        ]
        return _done(
            await self._step(
                _PROJECT,
                step.partition,
                step.term,
                step.expected_next,
                step.next_offset,
                *groups,
            )
        )

    # a rebuild

    async def read_marks(self, places: Sequence[tuple[UserKey, ConversationKey]]) -> Sequence[int]:
        args = [part for user, key in places for part in (owner(user), key.conversation)]
        marks: bytes = await self._read(_READ_MARKS, *args)
        return [int(mark) for mark in marks.split()]

    async def restore(self, step: RestoreStep) -> Outcome[Sequence[int]]:
        rows: list[Arg] = []
        for restored in step.rows:
            row = restored.row
            user = owner(UserKey(row.key.tenant, restored.user))
            rows += (user, row.key.conversation)
            rows += (row.activity_ms, row.applied_seq, row.unread, row.read_through)
        outcome = await self._step(_RESTORE, step.partition, step.term, *rows)
        return Applied(outcome.value[0]) if isinstance(outcome, Applied) else outcome

    async def reset_checkpoint(
        self, partition: int, term: int, expected: PartitionCheckpoint, wanted: PartitionCheckpoint
    ) -> Outcome[None]:
        return _done(
            await self._step(
                _RESET_CHECKPOINT, partition, term, *_packed(expected), *_packed(wanted)
            )
        )

    # a user's reads

    async def rows(
        self, user: UserKey, below: PagePosition | None, limit: int
    ) -> Sequence[SessionRow]:
        top = below or _TOP
        rows = await self._read(_ROWS, owner(user), top.activity_ms, top.conversation, limit)
        return [
            SessionRow(ConversationKey(user.tenant, ConversationId(name)), *map(int, numbers))
            for name, *numbers in json.loads(rows)
        ]

    async def row(self, user: UserKey, key: ConversationKey) -> SessionRow | None:
        if user.tenant != key.tenant:
            return None
        numbers = await self._read(_ROW, owner(user), key.conversation)
        return None if numbers is None else SessionRow(key, *map(int, numbers))

    async def mark_read(
        self, user: UserKey, key: ConversationKey, read_through: int, applied_seq: int, unread: int
    ) -> Outcome[SessionRow]:
        if user.tenant != key.tenant:
            return NotApplied(Refusal.NOT_FOUND, "no such row")
        outcome = await self._step(
            _MARK_READ, owner(user), key.conversation, read_through, applied_seq, unread
        )
        if not isinstance(outcome, Applied):
            return outcome
        (activity_ms,) = outcome.value
        return Applied(SessionRow(key, int(activity_ms), applied_seq, unread, read_through))


def _packed(checkpoint: PartitionCheckpoint) -> tuple[str, int]:
    """(meta, next_offset); the same meta gives the same text."""
    return json.dumps(asdict(checkpoint.meta), sort_keys=True), checkpoint.next_offset


def _checkpoint_of(meta: bytes, next_offset: bytes) -> PartitionCheckpoint:
    return PartitionCheckpoint(CheckpointMeta(**json.loads(meta)), int(next_offset))


def _packed_group(group: ProjectionGroup) -> tuple[bytes, str]:
    """(the tenant's part of the users' keys, the group as JSON)."""
    events = [
        (
            event.conversation_seq,
            int(event.kind == EventKind.MESSAGE),
            event.sender or "",
            event.created_at_ms,
        )
        for event in group.events
    ]
    told = (group.key.conversation, events, group.users)
    return sized(group.key.tenant), json.dumps(told, ensure_ascii=False)


def _done(outcome: Outcome[list[Any]]) -> Outcome[None]:
    return Applied(None) if isinstance(outcome, Applied) else outcome
