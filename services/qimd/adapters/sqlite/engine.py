"""One writer thread with group commit, and a few reader threads, behind asyncio.

The writer takes what is queued (`write_queue` says in which order), runs it in one transaction and
commits once: the cost of a sync is shared by all that wait for it. Of several jobs each has a
savepoint, so that one that fails leaves its neighbours alone. Futures are resolved only after
COMMIT, all of a transaction by one call into the loop.

A caller that is cancelled does not take its job back: it runs all the same, and its outcome is
unknown to that caller alone. Readers start their snapshot after they took a job, so that a read
that is issued after a write's future resolved sees that write.

Each step of a statement lets go of the interpreter and must win it back, which takes the switch
interval (5 ms unless set) whenever the loop is busy: fetching 500 rows was measured to take 0.2 ms
on an idle interpreter and 200 ms beside a busy loop. Statements of this package therefore take and
give sets: one row of JSON in, one row of JSON out (`packing`).
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

from qimd.adapters.sqlite.file import BUSY_TIMEOUT_MS, open_reader, open_writer
from qimd.adapters.sqlite.write_queue import WriteQueue
from qimd.core.errors import unavailable
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown

T = TypeVar("T")

READS_PER_SNAPSHOT_MAX: Final = 16
READER_THREADS: Final = 2
"""One for long reads, one that is free meanwhile; they share an interpreter, so more add nothing.
"""

WAL_BYTES_MAX: Final = 256 * 1024 * 1024
"""Reads that always overlap keep a WAL from starting over; above this the writer waits for them."""

WAL_CHECK_TRANSACTIONS: Final = 64
WAL_TRUNCATE_WAIT_MS: Final = 100


@dataclass(frozen=True, slots=True)
class _Write(Generic[T]):
    run: Callable[[sqlite3.Connection], Outcome[T]]
    future: asyncio.Future[Outcome[T]]
    weight: int
    on_applied: Callable[[T], None] | None
    on_lost: Callable[[], None] | None
    urgent: bool


@dataclass(frozen=True, slots=True)
class _Read(Generic[T]):
    run: Callable[[sqlite3.Connection], T]
    future: asyncio.Future[T]


class _TransactionLost(Exception):
    """The engine failed under a job: nothing of the transaction will be applied."""

    def __init__(self, outcome: NotApplied) -> None:
        super().__init__(outcome.detail)
        self.outcome = outcome


class Engine:
    """The threads over one file. Made and used on one event loop."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises OpenRefused."""
        self._loop = asyncio.get_running_loop()
        self._wal = path.with_name(path.name + "-wal")
        self._db = open_writer(path)
        self._rollback_hooks: list[Callable[[], None]] = []
        self._commit_hooks: list[Callable[[], None]] = []
        self._writes: WriteQueue[_Write[Any]] = WriteQueue()
        self._reads: SimpleQueue[_Read[Any] | None] = SimpleQueue()
        self._closed = False
        self._transactions = 0
        # Daemons: a process that dies of a defect without `close` must not hang on them, and what
        # they have answered is durable.
        self._writer = threading.Thread(
            target=self._write_all, name="qim-sqlite-writer", daemon=True
        )
        self._readers = [
            threading.Thread(
                target=self._read_all,
                args=(open_reader(path),),
                name=f"qim-sqlite-reader-{number}",
                daemon=True,
            )
            for number in range(READER_THREADS)
        ]
        for thread in (self._writer, *self._readers):
            thread.start()

    def watch(self, *, committed: Callable[[], None], rolled_back: Callable[[], None]) -> None:
        """Have these called on the writer thread, the second after each rollback, a job's too."""
        self._commit_hooks.append(committed)
        self._rollback_hooks.append(rolled_back)

    async def write(
        self,
        run: Callable[[sqlite3.Connection], Outcome[T]],
        *,
        weight: int = 1,
        on_applied: Callable[[T], None] | None = None,
        on_lost: Callable[[], None] | None = None,
        urgent: bool = False,
    ) -> Outcome[T]:
        """Run a job in the writer; its changes stand only if it returns Applied and that commits.

        `weight` is about how many rows it writes; it is `urgent` if a client waits for it.
        `on_applied` is called on the loop once it is durable, even if the caller is gone; `on_lost`
        on the writer thread, before any later job runs, if it isn't applied or its outcome is not
        known.
        """
        if self._closed:
            return NotApplied(Refusal.UNREACHABLE, "the store is closed")
        future: asyncio.Future[Outcome[T]] = self._loop.create_future()
        self._writes.put(_Write(run, future, weight, on_applied, on_lost, urgent))
        return await future

    async def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run a reading job on one snapshot. Raises QimError(UNAVAILABLE) if the engine fails."""
        if self._closed:
            raise unavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._reads.put(_Read(run, future))
        return await future

    async def close(self) -> None:
        """Finish what is queued, then let go of the file."""
        if self._closed:
            return
        self._closed = True
        for _ in self._readers:
            self._reads.put(None)
        for reader in self._readers:
            await asyncio.to_thread(reader.join)
        # The writer goes last: closing the last connection checkpoints the WAL into the file.
        self._writes.close()
        await asyncio.to_thread(self._writer.join)

    # --- the writer thread --------------------------------------------------------------------

    def _write_all(self) -> None:
        while batch := self._writes.next():
            outcomes = self._transact(batch)
            # Before the answers: who is told that there is no room must find what could be freed.
            self._tend_wal(outcomes)
            self._call(_settle_writes, list(zip(batch, outcomes, strict=True)))
        self._db.close()

    def _transact(self, batch: Sequence[_Write[Any]]) -> list[Outcome[Any] | Exception]:
        """Run the jobs in one transaction; an outcome for each, final when this returns."""
        outcomes: list[Outcome[Any] | Exception] = []
        alone = len(batch) == 1
        try:
            self._execute("BEGIN IMMEDIATE")
            for job in batch:
                outcomes.append(self._run(job) if alone else self._attempt(job))
        except _TransactionLost as lost:
            self._roll_back(batch)
            return [lost.outcome] * len(batch)
        if alone and not isinstance(outcomes[0], Applied):
            self._roll_back(batch)
            return outcomes
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back(batch)
            return [_commit_failure(error)] * len(batch)
        for hook in self._commit_hooks:
            hook()
        return outcomes

    def _attempt(self, job: _Write[Any]) -> Outcome[Any] | Exception:
        """Run one job of several: if it is not applied, what it did is undone alone."""
        self._execute("SAVEPOINT job")
        outcome = self._run(job)
        if not isinstance(outcome, Applied):
            self._execute("ROLLBACK TO job")
            for hook in self._rollback_hooks:
                hook()
            # Here and not at the end: the next job of the transaction may depend on it.
            _lose(job)
        self._execute("RELEASE job")
        return outcome

    def _run(self, job: _Write[Any]) -> Outcome[Any] | Exception:
        try:
            return job.run(self._db)
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            # A constraint, a trigger's ABORT or a value too big: this very content is refused.
            return NotApplied(Refusal.REJECTED, str(error))
        except sqlite3.Error as error:
            if _primary(error) != sqlite3.SQLITE_ERROR:
                raise _TransactionLost(_engine_failure(error)) from error
            return error
        except Exception as defect:  # noqa: BLE001  # supervising: a defect in one job stays there
            return defect

    def _execute(self, statement: str) -> None:
        try:
            self._db.execute(statement)
        except sqlite3.Error as error:
            raise _TransactionLost(_engine_failure(error)) from error

    def _roll_back(self, batch: Sequence[_Write[Any]]) -> None:
        # Some failures have the engine roll back by itself. If this fails too, the transaction
        # stays open, so the next can't begin and comes here again: nothing of it is ever committed.
        if self._db.in_transaction:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
        for hook in (*self._rollback_hooks, *self._commit_hooks):
            hook()
        for job in batch:
            _lose(job)

    def _tend_wal(self, outcomes: Sequence[Outcome[Any] | Exception]) -> None:
        """Shrink the WAL when it grew too large, or when the disk is full and it may give room."""
        self._transactions += 1
        full = any(isinstance(o, NotApplied) and o.refusal is Refusal.NO_SPACE for o in outcomes)
        if not full and self._transactions % WAL_CHECK_TRANSACTIONS:
            return
        try:
            if full or self._wal.stat().st_size > WAL_BYTES_MAX:
                self._db.execute(f"PRAGMA busy_timeout = {WAL_TRUNCATE_WAIT_MS:d}")
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except (sqlite3.Error, OSError):
            # Still no room, or no WAL yet: the next transactions try again.
            pass
        finally:
            self._db.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS:d}")

    # --- a reader thread ----------------------------------------------------------------------

    def _read_all(self, db: sqlite3.Connection) -> None:
        running = True
        while running:
            jobs: list[_Read[Any]] = []
            job = self._reads.get()
            while job is not None:
                jobs.append(job)
                if len(jobs) == READS_PER_SNAPSHOT_MAX:
                    break
                try:
                    job = self._reads.get_nowait()
                except Empty:
                    break
            running = job is not None
            self._call(_settle_reads, [(job, _attempt_read(db, job)) for job in jobs])
        db.close()

    def _call(self, settle: Callable[[Any], None], settled: Sequence[object]) -> None:
        try:
            self._loop.call_soon_threadsafe(settle, settled)
        except RuntimeError:
            # The loop is closed: nobody is left to be told.
            return


def _attempt_read(db: sqlite3.Connection, job: _Read[T]) -> T | Exception:
    try:
        db.execute("BEGIN")
        try:
            return job.run(db)
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
    except sqlite3.Error as error:
        if _primary(error) == sqlite3.SQLITE_ERROR:
            return error
        return unavailable(f"the store can't be read now ({_name(error)})")
    except Exception as defect:  # noqa: BLE001  # supervising: a defect in one job stays there
        return defect


def _lose(job: _Write[Any]) -> None:
    if job.on_lost is not None:
        job.on_lost()


def _settle_writes(settled: Sequence[tuple[_Write[Any], Outcome[Any] | Exception]]) -> None:
    for job, outcome in settled:
        if job.on_applied is not None and isinstance(outcome, Applied):
            job.on_applied(outcome.value)
        _resolve(job.future, outcome)


def _settle_reads(settled: Sequence[tuple[_Read[Any], object]]) -> None:
    for job, result in settled:
        _resolve(job.future, result)


def _resolve(future: asyncio.Future[Any], result: object) -> None:
    if future.done():
        return  # its caller was cancelled meanwhile
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def _primary(error: sqlite3.Error) -> int:
    """The primary result code. An error that the engine did not raise itself has none: misuse."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF


def _name(error: sqlite3.Error) -> str:
    name: str = getattr(error, "sqlite_errorname", type(error).__name__)
    return name


def _engine_failure(error: sqlite3.Error) -> NotApplied:
    """What a failure before COMMIT means: rolled back, whatever it was."""
    if _primary(error) == sqlite3.SQLITE_FULL:
        return NotApplied(Refusal.NO_SPACE, "no room in the data folder")
    return NotApplied(Refusal.UNREACHABLE, _name(error))


def _commit_failure(error: sqlite3.Error) -> NotApplied | Unknown:
    """What a failed COMMIT means.

    Full: its last page, which alone makes it a commit, was not written. An I/O error may come after
    that page was written (a sync that failed): a crash may bring the transaction back.
    """
    if _primary(error) in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY}:
        return _engine_failure(error)
    return Unknown(_name(error))
