"""Storing how far each outbox has come: after the log, never before it.

Fenced by the shard's epoch, so that an owner that was taken over, and whose records the mailbox
drops, can't mark an event done before its successor has produced it again.
"""

from collections.abc import Sequence
from typing import Final, assert_never

from qimd.core.outcome import Applied, NotApplied, Refusal, Unknown
from qimd.core.parameters import FANOUT_BATCH_RECORDS_MAX
from qimd.fanout.logic import Outbox
from qimd.fanout.shard import Shard
from qimd.ports.runtime import Runtime
from qimd.ports.store import ConversationStore, Progress
from qimd.telemetry.logs import logger

RETRY_MIN_S: Final = 0.05
RETRY_MAX_S: Final = 2.0
"""An engine that is away is asked this often: it does not notice, and the backlog goes on soon."""

TERM_CHECK_INTERVAL_S: Final = 1.0
"""How soon an idle loop notices that somebody else ended its term."""

_log = logger("fanout")


def backoff_s(tries: int, chance: float) -> float:
    """Doubling and jittered; `tries` begins at 1."""
    longest = min(RETRY_MAX_S, RETRY_MIN_S * (1 << min(tries - 1, 10)))
    return longest * (0.5 + 0.5 * chance)


async def store_progress(shard: Shard, conversations: ConversationStore, runtime: Runtime) -> None:
    """Store the shard's progress until its term has ended, all of its outboxes a call."""
    tries = 0
    try:
        while not shard.term.ended:
            moved = shard.to_store()[:FANOUT_BATCH_RECORDS_MAX]
            if not moved:
                await _moved_on(shard, runtime)
                continue
            stored = shard.may_write() and await _advance(shard, conversations, moved)
            tries = 0 if stored else tries + 1
            if tries:
                await runtime.sleep(backoff_s(tries, runtime.random()))
    finally:
        shard.progress_ended.set()
        shard.wake.set()


async def _moved_on(shard: Shard, runtime: Runtime) -> None:
    try:
        await runtime.wait_for(shard.moved_on.wait(), TERM_CHECK_INTERVAL_S)
    except TimeoutError:
        return


async def _advance(shard: Shard, conversations: ConversationStore, moved: Sequence[Outbox]) -> bool:
    """One round trip; whether all of it is stored. What is not is tried again with the next."""
    asked = [Progress(outbox.key, outbox.durable) for outbox in moved]
    outcomes = await conversations.advance(shard.term.shard, shard.term.epoch, asked)
    complete = True
    for outbox, progress, outcome in zip(moved, asked, outcomes, strict=True):
        match outcome:
            case Applied():
                shard.stored(outbox, progress.through)
            case NotApplied(refusal=Refusal.STALE_EPOCH):
                step_down(shard)
                return False
            case NotApplied() | Unknown():
                # Repeating it changes nothing if it was applied.
                complete = False
            case _:
                assert_never(outcome)
    if not complete:
        _log.warning("outbox progress is not stored yet", writer_shard=shard.term.shard)
    return complete


def step_down(shard: Shard) -> None:
    """Another owner raised the shard's epoch: nothing more may be written under this term."""
    if not shard.term.ended:
        _log.warning(
            "another owner raised the shard's epoch; stepping down",
            writer_shard=shard.term.shard,
            fencing_epoch=shard.term.epoch,
        )
    shard.term.end()
    shard.wake.set()
    shard.moved_on.set()
