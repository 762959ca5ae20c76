"""An engine that breaks its port's word is found out, each in its own way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.property.machines import SETTINGS, EngineMachine
from tests.property.test_log import MemoryLog
from tests.property.test_mailbox import MemoryMailbox, SqliteMailbox
from tests.property.test_store import MemoryStore, SqliteStore

from qimd.adapters.memory import control, conversations, log, mailbox
from qimd.adapters.sqlite import conversation_steps, mailbox_apply
from qimd.core.outcome import Applied, NotApplied, Refusal

# To find out is enough: which of the cases is the smallest plays no part.
SEARCH = settings(SETTINGS, max_examples=300, phases=[Phase.generate], print_blob=False)


def _without(refusal: Refusal, judge: Callable[..., Any]) -> Callable[..., Any]:
    """The same judgement, blind to one refusal."""

    def blind(*args: Any, **kwargs: Any) -> Any:
        judged = judge(*args, **kwargs)
        is_it = isinstance(judged, NotApplied) and judged.refusal is refusal
        return None if is_it else judged

    return blind


def _keys_forgotten(disk: Any, step: Any, *, shard_is_stale: bool) -> Any:
    """Commit, and keep no idempotency record."""
    bare = [replace(one, idempotency=None) for one in step.events]
    return _commit(disk, replace(step, events=bare), shard_is_stale=shard_is_stale)


def _head_first(disk: Any, writer_shard: int, epoch: int, key: Any) -> Any:
    """Claim without raising the head's epoch."""
    stored = disk.conversations.get(key)
    return _claim(disk, writer_shard, epoch, key) if stored is None else Applied(stored.state)


def _one_by_one(partition: Any, value: bytes, now_ms: int) -> None:
    """Append, but for what is empty."""
    if value:
        _append(partition, value, now_ms)


def _lane_last_of_all(shard: Any, step: Any) -> bool:
    return step.position < shard.position


def _anew(disk: Any, kind: Any, shard: int, nonce: bytes, now_s: int) -> Any:
    """Draw an epoch for a nonce that has one."""
    return _raise_epoch(disk, kind, shard, disk.counter.to_bytes(16, "little"), now_s)


def _oldest_kept(shard: Any, key: Any, below: int) -> int:
    """Fold, and keep the first mark instead of the largest epoch's."""
    marks = shard.marks[key]
    old = [mark for mark in marks if mark.first_seq <= below]
    shard.marks[key] = [*old[:1], *marks[len(old) :]]
    return max(0, len(old) - 1)


_commit = conversations.ConversationDisk.commit
_claim = conversations.ConversationDisk.claim
_append = log._Partition.append
_raise_epoch = control.EpochDisk.raise_epoch


SPOILED: list[tuple[str, type[EngineMachine], Any, str, Any]] = [
    (
        "a commit behind any head",
        MemoryStore,
        conversations,
        "_refusal",
        _without(Refusal.HEAD_MOVED, conversations._refusal),
    ),
    (
        "a commit under any epoch",
        MemoryStore,
        conversations,
        "_refusal",
        _without(Refusal.STALE_EPOCH, conversations._refusal),
    ),
    (
        "idempotency forgotten",
        MemoryStore,
        conversations.ConversationDisk,
        "commit",
        _keys_forgotten,
    ),
    ("a claim in words", MemoryStore, conversations.ConversationDisk, "claim", _head_first),
    (
        "memberships that stand still",
        MemoryStore,
        conversations._Conversation,
        "change_members",
        lambda *_: None,
    ),
    (
        "a nonce that draws twice",
        MemoryStore,
        control.EpochDisk,
        "raise_epoch",
        _anew,
    ),
    (
        "idempotency unseen, on disk",
        SqliteStore,
        conversation_steps,
        "_add_idempotency",
        lambda *_: True,
    ),
    ("a record that is dropped", MemoryLog, log._Partition, "append", _one_by_one),
    (
        "retention that takes nothing",
        MemoryLog,
        log.Topic,
        "enforce_retention",
        lambda *_: 0,
    ),
    ("watermarks that fall", MemoryMailbox, mailbox.MailboxShard, "lowers", _lane_last_of_all),
    (
        "folding that keeps the oldest mark",
        MemoryMailbox,
        mailbox.MailboxShard,
        "fold",
        _oldest_kept,
    ),
    (
        "marks forgotten",
        MemoryMailbox,
        mailbox.MailboxShard,
        "mark",
        lambda *_: None,
    ),
    (
        "progress forgotten, on disk",
        SqliteMailbox,
        mailbox_apply,
        "_store_progress",
        lambda *_: None,
    ),
]


@pytest.mark.parametrize(
    ("machine", "owner", "attribute", "spoiled"),
    [case[1:] for case in SPOILED],
    ids=[case[0] for case in SPOILED],
)
def test_a_broken_word_is_found_out(
    machine: type[EngineMachine],
    owner: Any,
    attribute: str,
    spoiled: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, attribute, spoiled)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=SEARCH)
