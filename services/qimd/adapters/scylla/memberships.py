"""How events open and close memberships: pure."""

from collections.abc import Iterable, Mapping, Sequence

from qimd.core.ids import UserId
from qimd.core.records import Event, EventKind, Interval


def touched(events: Iterable[Event]) -> set[UserId]:
    """The users whose membership the events may change."""
    return {user for event in _changes(events) for user in (*event.added, *event.removed)}


def changed(
    before: Mapping[UserId, Sequence[Interval]], events: Iterable[Event]
) -> tuple[Mapping[UserId, Sequence[Interval]], int]:
    """(the intervals of each user that begin or end, by how many the members grow).

    `before` holds the intervals of the users that are `touched`, oldest first. Who is (or is not) a
    member already stays so.
    """
    since = {
        user: intervals[-1].added_seq
        for user, intervals in before.items()
        if intervals[-1].removed_seq == 0
    }
    growth = -len(since)
    ends: dict[UserId, dict[int, Interval]] = {}
    for event in _changes(events):
        seq = event.conversation_seq
        for user in event.added:
            if user not in since:
                since[user] = seq
                ends.setdefault(user, {})[seq] = Interval(seq)
        for user in event.removed:
            if (added_seq := since.pop(user, None)) is not None:
                ends.setdefault(user, {})[added_seq] = Interval(added_seq, seq)
    growth += len(since)
    return {user: list(intervals.values()) for user, intervals in ends.items()}, growth


def _changes(events: Iterable[Event]) -> Iterable[Event]:
    return (event for event in events if event.kind == EventKind.MEMBERSHIP)
