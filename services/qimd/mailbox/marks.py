"""The fencing epochs of the conversations that a shard meets: a bounded cache over the store."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from qimd.core.records import ConversationKey
from qimd.mailbox.logic import Marks
from qimd.ports.mailbox import EpochMark, MailboxStore

CONVERSATIONS_MAX: Final = 65_536
"""About 20 MB; a conversation that is not here costs its share of one read a batch."""


class MarkCache:
    """A shard's epoch marks. Only its owner changes them, so what is here is what is stored.

    Folding in the store needs no notice: it changes no verdict above the folded range.
    """

    def __init__(self, store: MailboxStore, shard: int) -> None:
        self._store = store
        self._shard = shard
        self._marks: OrderedDict[ConversationKey, tuple[EpochMark, ...]] = OrderedDict()

    async def of(self, keys: Iterable[ConversationKey]) -> Marks:
        """The history of each conversation, in one read for those that are not cached."""
        wanted = dict.fromkeys(keys)
        missing = [key for key in wanted if key not in self._marks]
        if missing:
            stored = await self._store.epoch_marks(self._shard, missing)
            for key in missing:
                self._marks[key] = tuple(stored.get(key, ()))
        found = {}
        for key in wanted:
            self._marks.move_to_end(key)
            found[key] = self._marks[key]
        while len(self._marks) > max(CONVERSATIONS_MAX, len(wanted)):
            self._marks.popitem(last=False)
        return found

    def add(self, marks: Iterable[tuple[ConversationKey, EpochMark]]) -> None:
        """Marks that are durable now."""
        for key, mark in marks:
            self._marks[key] = (*self._marks.get(key, ()), mark)
