"""What to show, when to pull, what to report: decisions over events, without I/O or time.

The problem. A device receives its mailbox twice over: by PULL pages, which are complete and
ordered, and by PUSH_EVENTS, which are early, and may be lost, doubled or out of order. The
application must see every event once and each conversation in order, with a push's latency.

The rule. Pages are the truth: a page's events are all looked at, in its order. A pushed event is
shown at once only if it is the very next one of its conversation and no event is known or suspected
to wait unshown in the mailbox; otherwise it is held, and a PULL is due. The page that later covers
a pushed event finds it shown already and leaves it out. Only pages move the position.

What is checked. Inside a membership a conversation's seqs have no gap, so a page that leaves one
out, or brings one twice, breaks the server's promise: that gives a Report. A device that starts
late (a new device, a rebase) has no expectation of what came before its first event. `event_id` is
a function of (tenant, conversation, seq), so the seq alone tells a double.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from qimd.client.model import Event, Head, Report, ReportKind

HELD_EVENTS_MAX: Final = 1_000
"""Pushed events that wait for a page. What exceeds it is dropped, since the pages bring it too."""

HOLES_MAX: Final = 64
"""Gaps remembered per conversation, to tell a late event from a double."""


@dataclass(slots=True)
class _Track:
    """How far one of the two ways has come in a conversation."""

    seq: int
    member: bool = True

    def advance(self, event: Event, user: str) -> None:
        if event.seq > self.seq:
            self.seq = event.seq
            if event.lets_in(user):
                self.member = True
            elif event.lets_out(user):
                self.member = False


@dataclass(slots=True)
class _Conversation:
    shown: _Track
    paged: _Track | None = None
    """None before the first page that brings something of it since the start or a rebase."""
    known_start: bool = False
    """While `paged` is None: whether the first page goes on from what is shown."""
    holes: list[tuple[int, int]] = field(default_factory=list)

    @property
    def expected(self) -> int | None:
        """The next seq of a page; None where any may follow."""
        track = self.paged
        if track is None and self.known_start:
            track = self.shown
        return track.seq + 1 if track is not None and track.member else None


@dataclass(frozen=True, slots=True)
class PageVerdict:
    """What to show of a page, in order, and what to report of it."""

    show: tuple[Event, ...]
    early: tuple[Event, ...]
    """Pushed events that waited for this page: to be shown behind it."""
    reports: tuple[Report, ...]


class Sequencer:
    """The receiving order of one device. Synchronous; its caller does the I/O."""

    def __init__(self, user: str, applied_seq: int = 0, heads: Mapping[str, Head] | None = None):
        self._user = user
        self._conversations = {
            name: _Conversation(_Track(head.seq, head.member), known_start=True)
            for name, head in (heads or {}).items()
        }
        self._held: list[Event] = []
        self._missed_through = 0
        self.covered_through = applied_seq
        """What the next PULL presents: everything at or below it was shown."""
        self.behind = True
        """Events may wait unshown in the mailbox: a PULL is due."""
        self.unconfirmed = 0
        """Events shown by push since the last page: a PULL is due some time."""

    def lost_stream(self) -> None:
        """Pushes may have been lost: only a page tells."""
        self.behind = True
        self._held.clear()

    def rebased(self, applied_seq: int) -> None:
        """Go on at a position that the server gave; what lies before it is gone, and no gap."""
        self.covered_through = applied_seq
        self._missed_through = 0
        for conversation in self._conversations.values():
            conversation.paged = None
            conversation.known_start = False
            conversation.holes.clear()
        self.lost_stream()

    # --- pages --------------------------------------------------------------------------------

    def page(self, events: Sequence[Event], covered_through: int, *, more: bool) -> PageVerdict:
        """Take a page that was asked for at `self.covered_through`."""
        show: list[Event] = []
        reports: list[Report] = []
        through = self.covered_through
        for event in events:
            if event.mailbox_seq <= through:
                reports.append(_report(ReportKind.DISORDER, event, covered_through))
                if not self._is_new(event):
                    continue
            through = max(through, event.mailbox_seq)
            self._page_event(event, covered_through, show, reports)
        self.covered_through = max(through, covered_through)
        self.unconfirmed = 0
        self.behind = more or self.covered_through < self._missed_through
        early: tuple[Event, ...] = ()
        if not self.behind:
            self._missed_through = 0
            held, self._held = self._held, []
            early = self.push(sorted(held, key=_by_mailbox_seq))
        return PageVerdict(tuple(show), early, tuple(reports))

    def _page_event(
        self, event: Event, covered: int, show: list[Event], reports: list[Report]
    ) -> None:
        known = self._conversations.get(event.conversation)
        if known is None:
            known = self._conversations[event.conversation] = _Conversation(_Track(0))
        expected, late = known.expected, False
        if known.paged is not None and event.seq <= known.paged.seq:
            late = _fill(known.holes, event.seq)
            kind = ReportKind.DISORDER if late else ReportKind.DOUBLE
            reports.append(_report(kind, event, covered))
        elif expected is not None and event.seq > expected:
            gap = (expected, event.seq - 1)
            known.holes = [*known.holes, gap][-HOLES_MAX:]
            reports.append(Report(ReportKind.GAP, event.conversation, *gap, covered))
        if late or event.seq > known.shown.seq:
            show.append(event)
        known.shown.advance(event, self._user)
        if known.paged is None:
            known.paged = _Track(0)
        known.paged.advance(event, self._user)

    def _is_new(self, event: Event) -> bool:
        known = self._conversations.get(event.conversation)
        return known is None or event.seq > known.shown.seq

    # --- pushes -------------------------------------------------------------------------------

    def push(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """Take pushed events; the result is to be shown now."""
        show: list[Event] = []
        for event in events:
            if event.mailbox_seq <= self.covered_through:
                continue
            if not self._is_new(event):
                continue
            known = self._conversations.get(event.conversation)
            if not self.behind and self._continues(known, event):
                if known is None:
                    known = self._conversations[event.conversation] = _Conversation(_Track(0))
                known.shown.advance(event, self._user)
                self.unconfirmed += 1
                show.append(event)
            else:
                self.hold(event)
        return tuple(show)

    def hold(self, event: Event) -> None:
        """Leave an event for the pages to bring: there is no room for it, or it came too early."""
        self.behind = True
        if len(self._held) < HELD_EVENTS_MAX:
            self._held.append(event)
        else:
            self._missed_through = max(self._missed_through, event.mailbox_seq)

    def _continues(self, known: _Conversation | None, event: Event) -> bool:
        if known is None or not known.shown.member:
            # Only the event that lets the user in has nothing before it that they may see.
            return event.lets_in(self._user)
        return event.seq == known.shown.seq + 1


def _by_mailbox_seq(event: Event) -> int:
    return event.mailbox_seq


def _report(kind: ReportKind, event: Event, covered_through: int) -> Report:
    return Report(kind, event.conversation, event.seq, event.seq, covered_through)


def _fill(holes: list[tuple[int, int]], seq: int) -> bool:
    """Take a seq out of the holes; whether it was in one."""
    for index, (first, last) in enumerate(holes):
        if first <= seq <= last:
            rest = [(first, seq - 1), (seq + 1, last)]
            holes[index : index + 1] = [(low, high) for low, high in rest if low <= high]
            return True
    return False
