"""One conversation's events, folded into what the rows of its users are made of. Pure.

A row is a function of the events that the user's memberships see, and of the read mark: so a
conversation is read once, and each user's row costs a few bisections, however many there are.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence

from qimd.core.ids import UserId
from qimd.core.records import ConversationKey, Event, EventKind, Interval
from qimd.ports.projection import SessionRow


class Recount:
    """Takes all events of a conversation in order, from 1 on; then gives the rows.

    `concerns` says whose rows are wanted: one partition's users.
    """

    def __init__(self, key: ConversationKey, concerns: Callable[[UserId], bool]) -> None:
        self.key = key
        self._concerns = concerns
        self._times = array("Q")
        self._messages = array("Q")
        self._sent: dict[UserId, array[int]] = {}
        self._intervals: dict[UserId, list[Interval]] = {}

    @property
    def head(self) -> int:
        """The conversation_seq of the last event taken."""
        return len(self._times)

    @property
    def users(self) -> Sequence[UserId]:
        """Those that have a row: whoever was a member at any time."""
        return list(self._intervals)

    def take(self, event: Event) -> None:
        """Raises ValueError unless the event is the next one."""
        if event.conversation_seq != self.head + 1:
            raise ValueError(f"event {event.conversation_seq} does not follow event {self.head}")
        self._times.append(event.created_at_ms)
        if event.kind == EventKind.MESSAGE:
            self._messages.append(event.conversation_seq)
            if event.sender is not None and self._concerns(event.sender):
                self._sent.setdefault(event.sender, array("Q")).append(event.conversation_seq)
        for user in event.added:
            if self._concerns(user) and self._member(user) is None:
                added = Interval(event.conversation_seq)
                self._intervals.setdefault(user, []).append(added)
        # Behind the additions, as the store has it.
        for user in event.removed:
            if (member := self._member(user)) is not None:
                member[-1] = Interval(member[-1].added_seq, event.conversation_seq)

    def row(self, user: UserId, read_through: int) -> SessionRow:
        """The row of one of `users` whose read mark is `read_through`."""
        intervals = self._intervals[user]
        # The events at an interval's ends are membership changes: what counts lies between them.
        seen = [(one.added_seq, one.removed_seq or self.head) for one in intervals]
        unread = sum(
            _count(self._messages, max(first, read_through), last)
            - _count(self._sent.get(user, ()), max(first, read_through), last)
            for first, last in seen
        )
        applied_seq = seen[-1][1]
        return SessionRow(self.key, self._times[applied_seq - 1], applied_seq, unread, read_through)

    def _member(self, user: UserId) -> list[Interval] | None:
        """The user's intervals if the last one is open."""
        intervals = self._intervals.get(user)
        return intervals if intervals and intervals[-1].removed_seq == 0 else None


def _count(seqs: Sequence[int], after: int, through: int) -> int:
    """How many of the increasing seqs are in (after, through]."""
    return max(0, bisect_right(seqs, through) - bisect_right(seqs, after))
