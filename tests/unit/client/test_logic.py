"""The receiving order: pages are the truth, pushes are early, every event is shown once."""

import random

import pytest

from qimd.client.logic import HELD_EVENTS_MAX, Sequencer
from qimd.client.model import Event, Head, Report, ReportKind
from qimd.core.records import EventKind

ME = "me"


def message(seq: int, mailbox_seq: int, conversation: str = "c") -> Event:
    return Event(
        conversation=conversation,
        seq=seq,
        event_id=seq.to_bytes(16, "big"),
        kind=EventKind.MESSAGE,
        sender="other",
        sender_device="d",
        created_at_ms=seq,
        mailbox_seq=mailbox_seq,
    )


def membership(
    seq: int, mailbox_seq: int, *, added: tuple[str, ...] = (), removed: tuple[str, ...] = ()
) -> Event:
    return Event(
        conversation="c",
        seq=seq,
        event_id=seq.to_bytes(16, "big"),
        kind=EventKind.MEMBERSHIP,
        sender="",
        sender_device="",
        created_at_ms=seq,
        added=added,
        removed=removed,
        mailbox_seq=mailbox_seq,
    )


def seqs(events: tuple[Event, ...]) -> list[int]:
    return [event.seq for event in events]


@pytest.fixture
def joined() -> Sequencer:
    """A device that has read its mailbox: the join at 1, messages 2 and 3, mailbox_seq 10 to 30."""
    sequencer = Sequencer(ME)
    page = [membership(1, 10, added=(ME,)), message(2, 20), message(3, 30)]
    verdict = sequencer.page(page, 35, more=False)
    assert seqs(verdict.show) == [1, 2, 3]
    assert not verdict.reports
    assert not sequencer.behind
    return sequencer


def test_a_push_that_continues_its_conversation_is_shown_at_once(joined: Sequencer) -> None:
    assert seqs(joined.push([message(4, 40), message(5, 50)])) == [4, 5]
    assert not joined.behind
    assert joined.unconfirmed == 2


def test_a_push_never_moves_the_position(joined: Sequencer) -> None:
    joined.push([message(4, 40)])
    assert joined.covered_through == 35


def test_a_page_leaves_out_what_a_push_has_shown(joined: Sequencer) -> None:
    joined.push([message(4, 40)])
    verdict = joined.page([message(4, 40), message(5, 50)], 55, more=False)
    assert seqs(verdict.show) == [5]
    assert not verdict.reports
    assert joined.unconfirmed == 0


def test_a_doubled_push_is_shown_once(joined: Sequencer) -> None:
    assert seqs(joined.push([message(4, 40), message(4, 40)])) == [4]
    assert joined.push([message(4, 40)]) == ()
    assert not joined.behind


def test_a_push_behind_a_lost_one_waits_for_the_page(joined: Sequencer) -> None:
    assert joined.push([message(5, 50)]) == ()
    assert joined.behind
    assert seqs(joined.page([message(4, 40), message(5, 50)], 50, more=False).show) == [4, 5]
    assert not joined.behind


def test_nothing_is_shown_past_an_event_that_waits(joined: Sequencer) -> None:
    joined.page([message(1, 36, "d")], 37, more=False)
    assert joined.push([message(5, 50)]) == ()
    assert joined.push([message(2, 60, "d")]) == ()
    verdict = joined.page([message(4, 40), message(5, 50)], 55, more=False)
    assert seqs(verdict.show) == [4, 5]
    assert [(event.conversation, event.seq) for event in verdict.early] == [("d", 2)]


def test_reordered_pushes_are_shown_in_order(joined: Sequencer) -> None:
    assert joined.push([message(5, 50), message(4, 40)]) == ()
    verdict = joined.page([], 35, more=False)
    assert verdict.show == ()
    assert seqs(verdict.early) == [4, 5]


def test_a_push_of_an_unknown_conversation_waits_unless_it_lets_the_user_in() -> None:
    sequencer = Sequencer(ME)
    sequencer.page([], 5, more=False)
    assert seqs(sequencer.push([membership(7, 10, added=(ME, "other"))])) == [7]
    assert sequencer.push([message(9, 20, "elsewhere")]) == ()
    assert sequencer.behind


def test_a_new_stream_trusts_no_push_before_its_first_page(joined: Sequencer) -> None:
    joined.lost_stream()
    assert joined.push([message(4, 40)]) == ()
    assert seqs(joined.page([], 35, more=False).early) == [4]


def test_held_pushes_are_bounded_and_the_pages_bring_the_rest(joined: Sequencer) -> None:
    joined.lost_stream()
    last = 4 + HELD_EVENTS_MAX
    joined.push([message(seq, seq * 10) for seq in range(4, last + 1)])
    joined.page([], 35, more=False)
    assert joined.behind, "the event that was dropped must be pulled"
    joined.page([], last * 10, more=False)
    assert not joined.behind


def test_a_gap_below_covered_through_is_reported(joined: Sequencer) -> None:
    verdict = joined.page([message(7, 70)], 75, more=False)
    assert verdict.reports == (Report(ReportKind.GAP, "c", 4, 6, 75),)
    assert seqs(verdict.show) == [7]


def test_an_event_that_comes_twice_in_pages_is_reported_and_shown_once(joined: Sequencer) -> None:
    verdict = joined.page([message(4, 40), message(4, 50)], 55, more=False)
    assert seqs(verdict.show) == [4]
    assert verdict.reports == (Report(ReportKind.DOUBLE, "c", 4, 4, 55),)


def test_a_late_event_is_shown_and_reported_as_disorder(joined: Sequencer) -> None:
    joined.page([message(6, 60)], 60, more=False)
    verdict = joined.page([message(4, 70), message(5, 80), message(5, 90)], 95, more=False)
    assert seqs(verdict.show) == [4, 5]
    kinds = [report.kind for report in verdict.reports]
    assert kinds == [ReportKind.DISORDER, ReportKind.DISORDER, ReportKind.DOUBLE]


def test_a_page_that_goes_back_in_the_mailbox_is_reported(joined: Sequencer) -> None:
    verdict = joined.page([message(4, 40), message(3, 30)], 40, more=False)
    assert seqs(verdict.show) == [4]
    assert verdict.reports == (Report(ReportKind.DISORDER, "c", 3, 3, 40),)


def test_the_time_outside_of_a_membership_is_no_gap(joined: Sequencer) -> None:
    verdict = joined.page(
        [membership(4, 40, removed=(ME,)), membership(9, 90, added=(ME,)), message(10, 100)],
        100,
        more=False,
    )
    assert seqs(verdict.show) == [4, 9, 10]
    assert not verdict.reports


def test_a_rejoin_shown_by_push_makes_no_false_gap(joined: Sequencer) -> None:
    events = [membership(4, 40, removed=(ME,)), membership(9, 90, added=(ME,)), message(10, 100)]
    assert seqs(joined.push(events)) == [4, 9, 10]
    verdict = joined.page(events, 100, more=False)
    assert verdict.show == ()
    assert not verdict.reports


def test_a_rejoin_without_the_removal_is_a_gap(joined: Sequencer) -> None:
    verdict = joined.page([membership(9, 90, added=(ME,))], 95, more=False)
    assert [(r.kind, r.from_seq, r.through_seq) for r in verdict.reports] == [
        (ReportKind.GAP, 4, 8)
    ]


def test_a_device_that_starts_late_expects_nothing_of_before() -> None:
    sequencer = Sequencer(ME)
    verdict = sequencer.page([message(50, 500), message(51, 510)], 515, more=False)
    assert seqs(verdict.show) == [50, 51]
    assert not verdict.reports


def test_a_restart_goes_on_where_the_application_was() -> None:
    sequencer = Sequencer(ME, 40, {"c": Head(5)})
    verdict = sequencer.page([message(5, 50), message(6, 60), message(8, 80)], 85, more=False)
    assert seqs(verdict.show) == [6, 8], "5 was taken early, by push"
    assert [(r.kind, r.from_seq) for r in verdict.reports] == [(ReportKind.GAP, 7)]


def test_a_rebase_goes_on_without_a_gap(joined: Sequencer) -> None:
    joined.rebased(200)
    assert joined.covered_through == 200
    assert joined.behind
    verdict = joined.page([message(20, 210), message(21, 220)], 225, more=False)
    assert seqs(verdict.show) == [20, 21]
    assert not verdict.reports
    assert joined.page([message(23, 230)], 235, more=False).reports


@pytest.mark.parametrize("seed", range(200))
def test_lost_doubled_and_reordered_pushes_never_change_what_is_shown(seed: int) -> None:
    """Two conversations, any fate of the pushes, pages when they are due: each event once, each
    conversation in order, no report."""
    chance = random.Random(seed)
    sequencer = Sequencer(ME)
    mailbox: list[Event] = []
    heads = {"c": 0, "d": 0}
    shown: list[Event] = []

    def pull() -> None:
        while True:
            rest = [e for e in mailbox if e.mailbox_seq > sequencer.covered_through]
            size = chance.randint(1, 4)
            covered = rest[size - 1].mailbox_seq if len(rest) > size else len(mailbox) * 10
            verdict = sequencer.page(rest[:size], covered, more=len(rest) > size)
            assert not verdict.reports
            shown.extend((*verdict.show, *verdict.early))
            if not sequencer.behind or chance.random() < 0.2:
                return

    for _ in range(40):
        fresh = []
        for _ in range(chance.randint(0, 5)):
            name = chance.choice("cd")
            heads[name] += 1
            fresh.append(message(heads[name], (len(mailbox) + 1) * 10, name))
            mailbox.append(fresh[-1])
        pushed = [e for e in fresh for _ in range(chance.choice((0, 1, 1, 1, 2)))]
        if chance.random() < 0.3:
            chance.shuffle(pushed)
        shown.extend(sequencer.push(pushed))
        if chance.random() < 0.1:
            sequencer.lost_stream()
        if sequencer.behind and chance.random() < 0.5:
            pull()
    sequencer.behind = True
    while sequencer.behind:
        pull()

    for name, head in heads.items():
        assert [e.seq for e in shown if e.conversation == name] == list(range(1, head + 1))
