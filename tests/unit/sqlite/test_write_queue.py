"""Which jobs share a transaction: heavy ones never hold up light ones, nor are kept out by them;
what a client waits for shares one with neither.
"""

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

from tests.unit.sqlite.scenes import counted, executed, held, message, owned, queued

from qimd.adapters.sqlite import SqliteBackends
from qimd.adapters.sqlite.write_queue import (
    JOBS_PER_TRANSACTION_MAX,
    LIGHT_WEIGHT_MAX,
    WEIGHT_PER_TRANSACTION_MAX,
    WriteQueue,
)
from qimd.core.parameters import FANOUT_BATCH_RECORDS_MAX, MAILBOX_BATCH_ENTRIES_MAX


@dataclass(frozen=True)
class Job:
    name: str
    weight: int = 1
    urgent: bool = False


def urgent(name: str) -> Job:
    return Job(name, urgent=True)


def heavy(name: str, weight: int = MAILBOX_BATCH_ENTRIES_MAX) -> Job:
    return Job(name, weight)


def filled(*jobs: Job) -> WriteQueue[Job]:
    queue = WriteQueue[Job]()
    for job in jobs:
        queue.put(job)
    return queue


def taken(queue: WriteQueue[Job], transactions: int) -> list[list[str]]:
    return [[job.name for job in queue.next()] for _ in range(transactions)]


def test_a_light_job_waits_for_one_heavy_transaction_at_most() -> None:
    queue = filled(*map(heavy, ("a", "b", "c")))
    assert taken(queue, 1) == [["a"]]
    queue.put(Job("renewal"))
    assert taken(queue, 3) == [["renewal"], ["b"], ["c"]]


def test_light_jobs_that_keep_coming_never_keep_a_heavy_one_out() -> None:
    queue = filled(heavy("a"), heavy("b"), Job("1"))
    order = []
    for name in ("2", "3", "4"):
        order += taken(queue, 1)
        queue.put(Job(name))
    assert order == [["1"], ["a"], ["2", "3"]]
    assert taken(queue, 2) == [["b"], ["4"]]


def test_what_a_client_waits_for_goes_first_and_alone() -> None:
    queue = filled(Job("1"), heavy("a"), urgent("x"), Job("2"), urgent("y"))
    assert taken(queue, 3) == [["x", "y"], ["1", "2"], ["a"]]


def test_what_a_client_waits_for_waits_for_one_transaction_at_most() -> None:
    queue = filled(heavy("a"), heavy("b"), Job("1"))
    assert taken(queue, 1) == [["1"]]
    queue.put(urgent("x"))
    assert taken(queue, 1) == [["x"]]


def test_clients_that_keep_asking_keep_nothing_else_out() -> None:
    queue = filled(Job("1"), heavy("a"), urgent("0"))
    order = []
    for name in ("x", "y", "z"):
        order += taken(queue, 1)
        queue.put(urgent(name))
    assert order == [["0"], ["1"], ["x", "y"]]
    assert taken(queue, 2) == [["a"], ["z"]]


def test_each_line_keeps_the_order_of_its_calls_and_shares_transactions() -> None:
    queue = filled(Job("1"), heavy("a", 9_000), Job("2"), heavy("b", 7_000), heavy("c", 2_000))
    assert taken(queue, 3) == [["1", "2"], ["a", "b"], ["c"]]


def test_a_transaction_is_bounded_in_jobs_and_in_weight() -> None:
    many = filled(*(Job(str(number)) for number in range(JOBS_PER_TRANSACTION_MAX + 1)))
    assert [len(names) for names in taken(many, 2)] == [JOBS_PER_TRANSACTION_MAX, 1]
    fits = WEIGHT_PER_TRANSACTION_MAX // LIGHT_WEIGHT_MAX
    wide = filled(*(Job(str(number), LIGHT_WEIGHT_MAX) for number in range(fits + 1)))
    assert [len(names) for names in taken(wide, 2)] == [fits, 1]


def test_a_job_above_the_bound_goes_alone() -> None:
    queue = filled(heavy("huge", 10 * WEIGHT_PER_TRANSACTION_MAX), heavy("b"))
    assert taken(queue, 2) == [["huge"], ["b"]]


def test_a_closed_queue_hands_out_what_it_holds_and_then_nothing() -> None:
    queue = filled(Job("1"), heavy("a"))
    queue.close()
    assert taken(queue, 4) == [["1"], ["a"], [], []]


def test_what_must_keep_its_order_is_light() -> None:
    """A producer's batches."""
    assert FANOUT_BATCH_RECORDS_MAX <= LIGHT_WEIGHT_MAX


def test_the_taker_waits_for_a_job() -> None:
    queue = WriteQueue[Job]()
    found: list[str] = []
    taker = threading.Thread(target=lambda: found.extend(job.name for job in queue.next()))
    taker.start()
    queue.put(Job("late"))
    taker.join()
    assert found == ["late"]


async def test_a_lease_is_renewed_before_the_steps_that_were_queued_for_a_large_group(
    store: SqliteBackends,
) -> None:
    done: list[str] = []
    async with held(store):
        calls = [
            asyncio.ensure_future(
                store.engine.write(
                    executed("SELECT 1"),
                    weight=weight,
                    on_applied=lambda _, name=name: done.append(name),
                )
            )
            for name, weight in (("step 1", 16_384), ("step 2", 16_384), ("renewal", 1))
        ]
        await queued(*calls)
    await asyncio.gather(*calls)
    assert done.index("renewal") < done.index("step 2")


async def test_a_commit_shares_no_transaction_with_what_follows_other_messages(
    store: SqliteBackends,
) -> None:
    epoch = await owned(store)
    with counted(store) as ends:
        async with held(store):
            calls: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(store.engine.write(executed("SELECT 1"))),
                asyncio.ensure_future(store.backends.conversations.commit(message(epoch, 1))),
            ]
            await queued(*calls)
        await asyncio.gather(*calls)
    assert ends == ["ended"] * 3
