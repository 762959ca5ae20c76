"""Text ids to integers, for the writer thread alone."""

import sqlite3
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final

from qimd.adapters.sqlite.packing import dumps, rows_of
from qimd.core.ids import TenantId, UserId
from qimd.core.records import ConversationKey, LaneBlock

IDS_CACHED_MAX: Final = 262_144
"""About 40 MB of texts and integers; a group of the largest size fits twice."""

_FIND_USERS = """
SELECT json_group_array(json_array(u.user, u.id))
FROM json_each(:users) AS j
CROSS JOIN users AS u ON u.tenant = :tenant AND u.user = j.value AND u.partition = :partition
"""
_ADD_USERS = """
INSERT INTO users (partition, tenant, user)
SELECT :partition, :tenant, value FROM json_each(:users) WHERE true
ON CONFLICT (tenant, user, partition) DO NOTHING
"""
_FIND_CONVERSATIONS = """
SELECT json_group_array(json_array(c.tenant, c.conversation, c.id))
FROM json_each(:keys) AS j
CROSS JOIN conversations AS c
    ON c.tenant = j.value ->> 0 AND c.conversation = j.value ->> 1
"""
_ADD_CONVERSATIONS = """
INSERT INTO conversations (tenant, conversation)
SELECT value ->> 0, value ->> 1 FROM json_each(:keys) WHERE true
ON CONFLICT (tenant, conversation) DO NOTHING
"""


class Interner:
    """Ids of users and conversations, given when they are first asked for, with a cache.

    Rows that a rollback takes back must leave the cache too: after one, all of it is forgotten if
    the transaction had given any id. That is rare, and reading an id again costs microseconds.
    """

    def __init__(self) -> None:
        self._users: dict[tuple[int, str], dict[str, int]] = {}
        self._users_held = 0
        self._conversations: dict[ConversationKey, int] = {}
        self._audiences: OrderedDict[Hashable, tuple[int, str]] = OrderedDict()
        self._audiences_held = 0
        self._given = False

    def committed(self) -> None:
        """The transaction has ended: what it gave is as durable as it will be."""
        self._given = False

    def rolled_back(self) -> None:
        """All or a part of the transaction was taken back."""
        if self._given:
            self._users.clear()
            self._conversations.clear()
            self._audiences.clear()
            self._users_held = self._audiences_held = 0

    def users(
        self, db: sqlite3.Connection, partition: int, tenant: TenantId, users: Sequence[UserId]
    ) -> list[int]:
        """The users' ids, in the order of the users."""
        known = self._users.setdefault((partition, tenant), {})
        missing = [user for user in users if user not in known]
        if missing:
            self._find_users(db, known, partition, tenant, missing)
        ids = [known[user] for user in users]
        if self._users_held > IDS_CACHED_MAX:
            self._users.clear()
            self._users_held = 0
        return ids

    def _find_users(
        self,
        db: sqlite3.Connection,
        known: dict[str, int],
        partition: int,
        tenant: TenantId,
        missing: list[UserId],
    ) -> None:
        asked = {"partition": partition, "tenant": tenant, "users": dumps(missing)}
        held = len(known)
        known.update(_pairs(rows_of(db.execute(_FIND_USERS, asked))))
        if any(user not in known for user in missing):
            self._given = True
            db.execute(_ADD_USERS, asked)
            known.update(_pairs(rows_of(db.execute(_FIND_USERS, asked))))
        self._users_held += len(known) - held

    def audience(
        self,
        db: sqlite3.Connection,
        partition: int,
        tenant: TenantId,
        recipients: tuple[LaneBlock, ...] | tuple[UserId, ...],
    ) -> str:
        """The recipients' ids as a JSON array, increasing: neighbours of the entries' tree.

        Kept by content, since the messages of one membership version repeat the same recipients.
        """
        place = (partition, tenant, recipients)
        kept = self._audiences.get(place)
        if kept is not None:
            self._audiences.move_to_end(place)
            return kept[1]
        ids = self.users(db, partition, tenant, list(_users(recipients)))
        text = dumps(sorted(ids))
        self._audiences[place] = (len(ids), text)
        self._audiences_held += len(ids)
        while self._audiences_held > IDS_CACHED_MAX and len(self._audiences) > 1:
            _, (count, _) = self._audiences.popitem(last=False)
            self._audiences_held -= count
        return text

    def conversations(
        self, db: sqlite3.Connection, keys: Iterable[ConversationKey]
    ) -> dict[ConversationKey, int]:
        """The conversations' ids."""
        wanted = set(keys)
        found = {key: self._conversations[key] for key in wanted if key in self._conversations}
        missing = [key for key in wanted if key not in found]
        if missing:
            asked = {"keys": dumps([(key.tenant, key.conversation) for key in missing])}
            new = _triples(rows_of(db.execute(_FIND_CONVERSATIONS, asked)))
            if len(new) < len(missing):
                self._given = True
                db.execute(_ADD_CONVERSATIONS, asked)
                new = _triples(rows_of(db.execute(_FIND_CONVERSATIONS, asked)))
            by_text: dict[tuple[str, str], ConversationKey] = {
                (key.tenant, key.conversation): key for key in missing
            }
            found.update({by_text[place]: number for place, number in new.items()})
            if len(self._conversations) > IDS_CACHED_MAX:
                self._conversations.clear()
            self._conversations.update(found)
        return found

    def conversation(self, db: sqlite3.Connection, key: ConversationKey) -> int:
        """One conversation's id."""
        known = self._conversations.get(key)
        return known if known is not None else self.conversations(db, (key,))[key]


def _users(recipients: tuple[LaneBlock, ...] | tuple[UserId, ...]) -> Iterable[UserId]:
    for part in recipients:
        if isinstance(part, LaneBlock):
            yield from part.users
        else:
            yield part


def _pairs(rows: list[list[Any]]) -> dict[str, int]:
    return dict(rows)


def _triples(rows: list[list[Any]]) -> dict[tuple[str, str], int]:
    return {(tenant, conversation): number for tenant, conversation, number in rows}
