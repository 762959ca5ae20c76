"""The session projection in Redis: rows, read marks, checkpoints.

A large step is several scripts, so that none holds Redis for long; the last one moves the
checkpoint, in one script with its own rows. All of them ask for the checkpoint that is expected,
and each row's applied_seq counts nothing twice: a step that was cut short is projected again whole.

What a restart of Redis may take back (the tail of its log under `appendfsync everysec`; nothing
under `always`) it takes back from the end: never rows that a checkpoint is past. Owners see the
restart (`restarts`), load the checkpoint anew and project from there; a step of several scripts
does not go on over one, since the rows of its first ones may be lost. A read mark that was lost is
lost: the user's device marks again what it shows.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from qimd.adapters.redis.engine import Arg, RedisEngine
from qimd.adapters.redis.keys import owner
from qimd.adapters.redis.scripts import Script, load
from qimd.core.ids import ConversationId, sized
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
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

PART_ROWS_MAX: Final = 2_048
"""Rows that one script brings up to date, but for a single larger group: it takes Redis some 15 ms,
which everybody waits for."""

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

    @property
    def restarts(self) -> int:
        return self._engine.restarts

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
        *parts, last = _parts(step.groups)
        restarts = self.restarts
        for number, part in enumerate(parts):
            outcome = await self._project(step, part, step.expected_next)
            if not isinstance(outcome, Applied):
                return _partly(outcome) if number else outcome
            if self.restarts != restarts:
                return Unknown("Redis was started anew amid the step")
        outcome = await self._project(step, last, step.next_offset)
        return _partly(outcome) if parts else outcome

    async def _project(
        self, step: ProjectStep, groups: Sequence[ProjectionGroup], next_offset: int
    ) -> Outcome[None]:
        packed = [part for group in groups for part in _packed_group(group)]
        return _done(
            await self._step(
                _PROJECT, step.partition, step.term, step.expected_next, next_offset, *packed
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


def _parts(groups: Sequence[ProjectionGroup]) -> list[list[ProjectionGroup]]:
    """The groups in order, in parts of a bounded number of rows; at least one part."""
    parts: list[list[ProjectionGroup]] = [[]]
    rows = 0
    for group in groups:
        if not group.events or not group.users:
            continue
        if parts[-1] and rows + len(group.users) > PART_ROWS_MAX:
            parts.append([])
            rows = 0
        parts[-1].append(group)
        rows += len(group.users)
    return parts


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


def _partly(outcome: Outcome[None]) -> Outcome[None]:
    """What a step says of which rows were written: that there is no room is no longer all."""
    if isinstance(outcome, NotApplied) and outcome.refusal not in {
        Refusal.STALE_EPOCH,
        Refusal.HEAD_MOVED,
    }:
        return Unknown(outcome.detail)
    return outcome


def _done(outcome: Outcome[list[Any]]) -> Outcome[None]:
    return Applied(None) if isinstance(outcome, Applied) else outcome
