"""A data folder as it looks after months: full mailboxes, written straight into the tables.

What a measure needs is depth: rows behind rows in the trees of the embedded engine, in the places
where months of traffic would have put them. To send them would take hours, so their rows are
written as one set, in states that the server finds consistent: conversations with members, heads
and events; records, dispatch progress and entries at the offsets of a log whose own records have
expired since; session rows. That a server gives them out again, in order, is checked by the
measures that read whole mailboxes.

The newer part of the entries is inserted behind the older one, seq by seq for everybody, as traffic
does it: a tree that was only filled in order has full leaves, which the first new entries would all
have to split.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from bench.rawsqlite import connect
from bench.server import TENANT, DevServer
from qimd.contract.events import encode_event
from qimd.core.dispatch import Chunk, plan_chunks
from qimd.core.ids import (
    ConversationId,
    DeviceId,
    TenantId,
    UserId,
    content_digest,
    dispatch_id,
    event_id,
)
from qimd.core.parameters import DISPATCH_CHUNK_RECIPIENTS, MEMBERSHIP_CHANGE_USERS_MAX
from qimd.core.records import ConversationKey, EventKind
from qimd.core.routing import RoutingTable
from qimd.core.seq import before_offset, mailbox_seq

DATABASE: Final = "qim.sqlite3"
TABLE: Final = RoutingTable(version=1, mailbox_shards=2, writer_shards=2)
"""That of a `qimd dev` with its defaults."""

_AT_MS: Final = 1_700_000_000_000
_ALL_LANES: Final = -1
_SENDER: Final = UserId("someone-who-left")
"""So that every message of the history is unread for each member."""
_RECENT_SHARE: Final = 4
"""One in so many entries comes behind the others."""


@dataclass(frozen=True, slots=True)
class Population:
    """Groups that share no member, each with a history that fills its members' mailboxes."""

    groups: int
    members: int
    entries: int
    """A mailbox."""

    @property
    def users(self) -> int:
        """All of them."""
        return self.groups * self.members

    def conversation(self, group: int) -> str:
        """A group's name."""
        return f"group-{group:05}"

    def names(self, group: int) -> list[UserId]:
        """A group's members."""
        first = group * self.members
        return [UserId(f"user-{number:07}") for number in range(first, first + self.members)]

    def chunks(
        self, group: int, table: RoutingTable, recipients: int = DISPATCH_CHUNK_RECIPIENTS
    ) -> tuple[Chunk, ...]:
        """The records of a message to a group."""
        return plan_chunks(table, TenantId(TENANT), self.names(group), recipients)


def prefill(data: Path, population: Population) -> None:
    """Make the folder with a server's own start and stop, then fill it."""
    with DevServer(data):
        pass
    db = connect(data / DATABASE)
    db.execute("BEGIN IMMEDIATE")
    filling = _Filling(db, TABLE, population)
    for group in range(population.groups):
        filling.add_group(group)
    filling.add_entries()
    filling.move_on()
    db.execute("COMMIT")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()


class _Filling:
    """One folder's filling, within one transaction."""

    def __init__(self, db: sqlite3.Connection, table: RoutingTable, population: Population) -> None:
        self._db = db
        self._table = table
        self._population = population
        self._offsets = [0] * table.mailbox_shards
        self._entries: list[tuple[int, int, int, list[int]]] = []
        """(shard, first user id, last user id, seqs) of each chunk."""

    def add_group(self, group: int) -> None:
        """A conversation, its members, events, records; its entries are remembered."""
        population = self._population
        key = ConversationKey(TenantId(TENANT), ConversationId(population.conversation(group)))
        names = population.names(group)
        chunks = population.chunks(group, self._table)
        joins = -(-len(names) // MEMBERSHIP_CHANGE_USERS_MAX)
        head = joins + population.entries
        conversation = self._add_conversation(key, joins, head)
        self._add_members(conversation, names)
        self._add_events(conversation, key, names, joins, head)
        self._add_records(conversation, key, chunks, joins, head)

    def _add_conversation(self, key: ConversationKey, joins: int, head: int) -> int:
        added = self._db.execute(
            "INSERT INTO conversations (tenant, conversation, writer_shard, fencing_epoch, "
            "head_version, dispatched_through, audited_through, membership_version, member_count, "
            "last_created_at_ms, created_at_ms, last_step_id) "
            "VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, x'')",
            (
                key.tenant,
                key.conversation,
                self._table.writer_shard(key.tenant, key.conversation),
                *(head, head, head, joins, self._population.members),
                *(_AT_MS + head, _AT_MS),
            ),
        )
        return int(added.lastrowid or 0)

    def _add_members(self, conversation: int, names: Sequence[UserId]) -> None:
        self._db.executemany(
            "INSERT INTO memberships (conversation_id, user, added_seq) VALUES (?, ?, ?)",
            (
                (conversation, user, 1 + place // MEMBERSHIP_CHANGE_USERS_MAX)
                for place, user in enumerate(names)
            ),
        )

    def _add_events(
        self,
        conversation: int,
        key: ConversationKey,
        names: Sequence[UserId],
        joins: int,
        head: int,
    ) -> None:
        rows = []
        for seq in range(1, head + 1):
            start = (seq - 1) * MEMBERSHIP_CHANGE_USERS_MAX
            joined = tuple(names[start : start + MEMBERSHIP_CHANGE_USERS_MAX])
            is_join = seq <= joins
            kind = EventKind.MEMBERSHIP if is_join else EventKind.MESSAGE
            sender = None if is_join else _SENDER
            identity = event_id(key.tenant, key.conversation, seq)
            version = min(seq, joins)
            encoded = encode_event(
                key=key,
                conversation_seq=seq,
                event_id=identity,
                kind=kind,
                sender=sender,
                sender_device=None if is_join else DeviceId("phone"),
                created_at_ms=_AT_MS + seq,
                client_msg_id="" if is_join else f"old-{seq}",
                membership_version=version,
                body=b"see you at the harbour at nine",
                added=joined,
            )
            rows.append(
                (
                    *(conversation, seq, int(kind), sender, _AT_MS + seq, identity, None, version),
                    *(self._table.version, DISPATCH_CHUNK_RECIPIENTS, 1, ""),
                    *(json.dumps(joined if is_join else ()), "[]", encoded),
                )
            )
        places = ", ".join("?" * 15)
        self._db.executemany(f"INSERT INTO events VALUES ({places})", rows)  # noqa: S608

    def _add_records(
        self,
        conversation: int,
        key: ConversationKey,
        chunks: Sequence[Chunk],
        joins: int,
        head: int,
    ) -> None:
        records: list[tuple[object, ...]] = []
        progress: list[tuple[object, ...]] = []
        seqs: list[list[int]] = [[] for _ in chunks]
        for seq in range(joins + 1, head + 1):
            identity = event_id(key.tenant, key.conversation, seq)
            for place, chunk in enumerate(chunks):
                shard = chunk.mailbox_shard
                at = mailbox_seq(1, self._offsets[shard])
                self._offsets[shard] += 1
                seqs[place].append(at)
                own = dispatch_id(identity, shard, chunk.index)
                records.append(
                    (
                        *(shard, at, conversation, seq, identity, int(EventKind.MESSAGE)),
                        *(None, _AT_MS + seq, own, 1, chunk.index, len(chunks), _AT_MS + seq),
                    )
                )
                progress.append((own, _ALL_LANES, content_digest(own), at))
        places = ", ".join("?" * 13)
        self._db.executemany(f"INSERT INTO mailbox_records VALUES ({places})", records)  # noqa: S608
        self._db.executemany("INSERT INTO dispatch_progress VALUES (?, ?, ?, ?)", progress)
        for chunk, own_seqs in zip(chunks, seqs, strict=True):
            first, last = self._add_users(chunk)
            self._entries.append((chunk.mailbox_shard, first, last, own_seqs))
            self._db.execute(
                "INSERT INTO projection_rows SELECT id, ?, ?, ?, ? FROM users "
                "WHERE id BETWEEN ? AND ?",
                (conversation, _AT_MS + head, head, head - joins, first, last),
            )

    def _add_users(self, chunk: Chunk) -> tuple[int, int]:
        """Intern a chunk's users as its first record would have; the first and the last id."""
        (before,) = self._db.execute("SELECT coalesce(max(id), 0) FROM users").fetchone()
        users = chain.from_iterable(block.users for block in chunk.blocks)
        self._db.executemany(
            "INSERT INTO users (partition, tenant, user) VALUES (?, ?, ?)",
            ((chunk.mailbox_shard, TENANT, user) for user in users),
        )
        (after,) = self._db.execute("SELECT max(id) FROM users").fetchone()
        return before + 1, after

    def add_entries(self) -> None:
        """All entries, the older ones in the order of their tree."""
        recent = self._population.entries // _RECENT_SHARE
        for _, first, last, seqs in self._entries:
            self._cross(first, last, seqs[: len(seqs) - recent])
        for start in range(0, recent, 32):
            for _, first, last, seqs in self._entries:
                newer = seqs[len(seqs) - recent :]
                self._cross(first, last, newer[start : start + 32])

    def _cross(self, first: int, last: int, seqs: Iterable[int]) -> None:
        self._db.execute(
            "INSERT INTO mailbox_entries SELECT u.id, s.value FROM users AS u "
            "CROSS JOIN json_each(?) AS s WHERE u.id BETWEEN ? AND ? ORDER BY u.id, s.value",
            (json.dumps(list(seqs)), first, last),
        )

    def move_on(self) -> None:
        """Let log, mailbox and projection stand behind what was written."""
        for shard, offset in enumerate(self._offsets):
            if offset == 0:
                continue
            position = before_offset(1, offset)
            last = mailbox_seq(1, offset - 1).to_bytes(8, "big") * 64
            self._db.execute(
                "UPDATE log_partitions SET low = ?, high = ?, last_timestamp_ms = ? "
                "WHERE partition = ?",
                (offset, offset, _AT_MS, shard),
            )
            self._db.execute(
                "UPDATE mailbox_shards SET next_offset = ?, position = ?, lane_last = ? "
                "WHERE shard = ?",
                (offset, position, last, shard),
            )
            self._db.execute(
                "UPDATE projection_partitions SET next_offset = ? WHERE partition = ?",
                (offset, shard),
            )
