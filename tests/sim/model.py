"""What must be in the mailboxes, recomputed plainly: from the store's events, and from the log.

Two oracles, on purpose naive, and of no code that they judge:

- `members`, `visible` and `expected_triples` read a conversation's events one by one and know
  nothing but "added" and "removed": who is to get what (design section 6).
- `entries_of_log` reads a partition from its begin and knows nothing but the two rules of design
  section 7: a record is stale if a larger epoch of its conversation came before it, and of a
  dispatch the first record counts. It gives every mailbox_seq that there may be.
"""

from collections import defaultdict

from qimd.adapters.memory import MemoryCluster
from qimd.contract.dispatch import decode_dispatch
from qimd.core.ids import UserId
from qimd.core.records import ConversationKey, EventKind, UserKey
from qimd.core.seq import mailbox_seq
from qimd.ports.mailbox import EpochMark

Triple = tuple[str, str, str, int]
"""(tenant, user, conversation, conversation_seq): event ids are a function of the last three."""


class Model:
    """Over one world's engines, as they are when it is asked."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster

    def recipients(self, key: ConversationKey) -> list[frozenset[UserId]]:
        """Of each event, in order: who gets it."""
        members: frozenset[UserId] = frozenset()
        told: list[frozenset[UserId]] = []
        for event, _ in self._cluster.conversations.conversations[key].events:
            before = members
            if event.kind == EventKind.MEMBERSHIP:
                members = (members | frozenset(event.added)) - frozenset(event.removed)
                told.append(before | members)
            else:
                told.append(members)
        return told

    def visible(self, key: ConversationKey, user: UserId) -> dict[int, None]:
        """The conversation_seqs that the user may see."""
        if key not in self._cluster.conversations.conversations:
            return {}
        return {seq: None for seq, users in enumerate(self.recipients(key), 1) if user in users}

    def expected(self) -> dict[UserKey, dict[tuple[str, int], None]]:
        """(conversation, conversation_seq) of everything that each user must have."""
        mailboxes: dict[UserKey, dict[tuple[str, int], None]] = defaultdict(dict)
        for key in self._cluster.conversations.conversations:
            for seq, users in enumerate(self.recipients(key), 1):
                for user in users:
                    mailboxes[UserKey(key.tenant, user)][key.conversation, seq] = None
        return mailboxes

    def of_log(
        self, partition: int
    ) -> tuple[dict[tuple[UserKey, int], bytes], dict[ConversationKey, list[EpochMark]]]:
        """((user, mailbox_seq) → event_id, epoch marks by conversation) that a partition makes."""
        entries: dict[tuple[UserKey, int], bytes] = {}
        marks: dict[ConversationKey, list[EpochMark]] = {}
        done: dict[bytes, None] = {}
        for record in self._cluster.topic.partition(partition).records:
            dispatch = decode_dispatch(record.value)
            seq = mailbox_seq(1, record.offset)
            seen = marks.setdefault(dispatch.ref.key, [])
            largest = seen[-1].fencing_epoch if seen else 0
            if dispatch.fencing_epoch < largest:
                continue
            if dispatch.fencing_epoch > largest:
                seen.append(EpochMark(dispatch.fencing_epoch, seq))
            if dispatch.dispatch_id in done:
                continue
            done[dispatch.dispatch_id] = None
            for block in dispatch.blocks:
                for user in block.users:
                    place = UserKey(dispatch.ref.key.tenant, user), int(seq)
                    entries[place] = dispatch.ref.event_id
        return entries, marks
