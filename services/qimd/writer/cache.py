"""Who is a member, remembered for as long as it cannot have changed."""

from collections import OrderedDict
from typing import Final

from qimd.core.ids import UserId
from qimd.core.records import ConversationKey

MEMBERS_CACHED_MAX: Final = 65_536
"""Senders remembered at a time, over all conversations: about 20 MB of keys."""


class MemberCache:
    """(conversation, sender) → added_seq, least recently used out first.

    An entry holds for one membership_version: any change of the membership makes a new version, so
    a removed sender is never taken for a member.
    """

    def __init__(self, entries_max: int = MEMBERS_CACHED_MAX) -> None:
        self._entries: OrderedDict[tuple[ConversationKey, UserId], tuple[int, int]] = OrderedDict()
        self._entries_max = entries_max

    def get(self, key: ConversationKey, sender: UserId, version: int) -> int | None:
        """The sender's added_seq (0: not a member); None if it has to be read."""
        entry = self._entries.get((key, sender))
        if entry is None or entry[0] != version:
            return None
        self._entries.move_to_end((key, sender))
        return entry[1]

    def put(self, key: ConversationKey, sender: UserId, version: int, added_seq: int) -> None:
        """Remember what was read under `version`."""
        self._entries[key, sender] = (version, added_seq)
        self._entries.move_to_end((key, sender))
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
