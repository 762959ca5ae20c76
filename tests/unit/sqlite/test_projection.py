"""The set statements give, for any history, what folding event by event gives."""

import random
from itertools import pairwise
from pathlib import Path

import pytest
from tests.contract.builders import ids, key, user, value
from tests.support.runtime import ManualRuntime

from qimd.adapters.sqlite import open_sqlite
from qimd.adapters.sqlite.projection_steps import SenderRow, fold
from qimd.core.ids import UserId
from qimd.core.outcome import Applied
from qimd.core.records import EventKind
from qimd.ports.projection import (
    CheckpointMeta,
    PartitionCheckpoint,
    ProjectedEvent,
    ProjectionGroup,
    ProjectionStore,
    ProjectStep,
    RestoredRow,
    RestoreStep,
    SessionRow,
)

USERS = ids(f"user {number}" for number in range(6))
META = CheckpointMeta(1, "qim.dispatch", 2, "cluster", "topic")
NOBODY = SenderRow(0, 0, 0, 0)


def history(chance: random.Random) -> list[ProjectedEvent]:
    return [
        ProjectedEvent(
            conversation_seq=seq,
            kind=chance.choice((EventKind.MESSAGE, EventKind.MESSAGE, EventKind.REACTION)),
            sender=chance.choice((*USERS, None)),
            created_at_ms=chance.randrange(1_000, 1_100),
        )
        for seq in range(1, 40)
    ]


@pytest.mark.parametrize("seed", range(12))
async def test_any_cut_of_any_history_gives_the_rows_of_the_fold(
    seed: int, path: Path, runtime: ManualRuntime
) -> None:
    """SES-06: rows equal a from-scratch replay at every point; a replay changes nothing."""
    chance = random.Random(seed)
    store = await open_sqlite(path, runtime)
    projection = store.backends.projection
    value(await projection.open_partition(0, 1, PartitionCheckpoint(META, 0)))
    events = history(chance)
    expected: dict[UserId, SenderRow] = {}
    for offset in range(12):
        cuts = sorted(chance.sample(range(len(events) + 1), 4))
        groups = []
        for first, last in pairwise(cuts):
            members = ids(chance.sample(USERS, chance.randrange(1, 7)))
            groups.append(ProjectionGroup(key(), events[first:last], members))
            for member in members:
                expected[member] = fold(expected.get(member, NOBODY), member, events[first:last])
        step = ProjectStep(0, 1, offset, offset + 1, groups)
        value(await projection.project(step))
        if chance.random() < 0.5:
            await _mark_some_read(projection, chance, expected)
        for member, row in expected.items():
            found = await projection.row(user(member), key())
            assert found is not None
            assert (
                SenderRow(found.activity_ms, found.applied_seq, found.unread, found.read_through)
                == row
            ), member
    await store.close()


async def _mark_some_read(
    projection: ProjectionStore, chance: random.Random, expected: dict[UserId, SenderRow]
) -> None:
    member = chance.choice(sorted(expected))
    row = expected[member]
    mark = chance.randrange(row.read_through, 45)
    outcome = await projection.mark_read(user(member), key(), mark, row.applied_seq, 0)
    assert isinstance(outcome, Applied)
    expected[member] = SenderRow(row.activity_ms, row.applied_seq, 0, mark)


async def test_a_rebuild_keeps_read_marks_and_touches_its_partition_alone(
    path: Path, runtime: ManualRuntime
) -> None:
    store = await open_sqlite(path, runtime)
    projection = store.backends.projection
    messages = [ProjectedEvent(seq, EventKind.MESSAGE, None, seq) for seq in range(1, 6)]
    for partition, name in ((0, "anna"), (1, "ben")):
        value(await projection.open_partition(partition, 1, PartitionCheckpoint(META, 0)))
        group = ProjectionGroup(key(), messages, ids([name]))
        value(await projection.project(ProjectStep(partition, 1, 0, 1, [group])))
        value(await projection.mark_read(user(name), key(), 3, 5, 2))
    kept = await projection.row(user("ben"), key())
    restored = [
        RestoredRow(UserId(name), SessionRow(key(), 9, 9, 6, 3)) for name in ("anna", "carl")
    ]
    assert value(await projection.restore(RestoreStep(0, 1, restored))) == [1]
    assert await projection.row(user("anna"), key()) == SessionRow(key(), 9, 9, 6, 3)
    assert await projection.row(user("ben"), key()) == kept
    assert await projection.read_marks([(user(name), key()) for name in ("ben", "anna")]) == [3, 3]
    await store.close()
