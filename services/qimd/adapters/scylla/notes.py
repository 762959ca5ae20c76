"""Notes: which conversations may have an outbox, and which may have events that nobody audited.

A note is written before what it tells of, and says up to where that may go. So there is never an
outbox without a note, and a note without an outbox costs whoever finds it one look at the head. Its
value only rises (see `rising`): a drop takes no note of something later with it, such as that of a
commit which is under way while progress drains what came before.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from qimd.adapters.scylla.conversation_rows import bucket_of
from qimd.adapters.scylla.rising import rising
from qimd.adapters.scylla.session import Session, Write
from qimd.core.outcome import Outcome
from qimd.core.records import ConversationKey
from qimd.ports.store import Progress, key_of

_NOTE_PENDING: Final = """
INSERT INTO pending (deployment, writer_shard, tenant, conversation, version)
VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?
"""
_PENDING: Final = """
SELECT tenant, conversation, version FROM pending WHERE deployment = ? AND writer_shard = ?
"""
_DROP_PENDING: Final = """
DELETE FROM pending USING TIMESTAMP ?
WHERE deployment = ? AND writer_shard = ? AND tenant = ? AND conversation = ?
"""
_NOTE_UNAUDITED: Final = """
INSERT INTO unaudited (deployment, bucket, tenant, conversation, through)
VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?
"""
_DROP_UNAUDITED: Final = """
DELETE FROM unaudited USING TIMESTAMP ?
WHERE deployment = ? AND bucket = ? AND tenant = ? AND conversation = ?
"""


class Notes:
    """Those of one deployment."""

    def __init__(self, session: Session, deployment: str) -> None:
        self._session = session
        self._deployment = deployment

    async def note_pending(
        self, writer_shard: int, key: ConversationKey, version: int
    ) -> Outcome[None]:
        """It may have an outbox up to `version`."""
        place = (self._deployment, writer_shard, key.tenant, key.conversation)
        return await self._session.write([Write(_NOTE_PENDING, (*place, version, rising(version)))])

    async def pending(self, writer_shard: int) -> Sequence[tuple[ConversationKey, int]]:
        """(conversation, version) of a writer shard's notes. Raises QimError(UNAVAILABLE)."""
        rows = await self._session.rows(_PENDING, self._deployment, writer_shard)
        return [(key_of(tenant, conversation), version) for tenant, conversation, version in rows]

    async def drop_pending(self, writer_shard: int, done: Iterable[Progress]) -> Outcome[None]:
        """Drop the notes that the progress covers."""
        shard = (self._deployment, writer_shard)
        drops = [
            Write(
                _DROP_PENDING, (rising(one.through), *shard, one.key.tenant, one.key.conversation)
            )
            for one in done
        ]
        return await self._session.write(drops)

    async def note_unaudited(self, progress: Iterable[Progress]) -> Outcome[None]:
        """They may have events up to there that were dispatched and not audited."""
        buckets: dict[int, list[Write]] = {}
        for one in progress:
            bucket = bucket_of(one.key)
            place = (self._deployment, bucket, one.key.tenant, one.key.conversation)
            values = (*place, one.through, rising(one.through))
            buckets.setdefault(bucket, []).append(Write(_NOTE_UNAUDITED, values))
        return await self._session.write_all(list(buckets.values()))

    async def drop_unaudited(self, key: ConversationKey, through: int) -> Outcome[None]:
        """Drop its note, unless that goes beyond `through`."""
        place = (self._deployment, bucket_of(key), key.tenant, key.conversation)
        return await self._session.write([Write(_DROP_UNAUDITED, (rising(through), *place))])
