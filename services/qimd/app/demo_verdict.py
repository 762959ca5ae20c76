"""What the demonstration compares and counts: pure, so that a test shows that it would notice."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from qimd.telemetry.metrics import ZEROS


@dataclass(slots=True)
class Verdict:
    """What came out, counted. Everything in `WRONG` must be 0."""

    members: int = 0
    watchers: int = 0
    events_acknowledged: int = 0
    answered_as_duplicates: int = 0
    kills: int = 0
    reconnects: int = 0
    triples_expected: int = 0
    triples_found: int = 0
    triples_missing: int = 0
    triples_doubled: int = 0
    triples_unexpected: int = 0
    out_of_order: int = 0
    other_content: int = 0
    sends_out_of_order: int = 0
    session_lists_wrong: int = 0
    client_reports: int = 0
    zeros: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ZEROS, 0.0))
    sends_per_second: float = 0.0
    entries_per_second: float = 0.0
    ack_p50_ms: float = 0.0
    ack_p99_ms: float = 0.0
    ready_s: list[float] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)
    """What is wrong, in words, without any body."""

    WRONG = (
        "triples_missing",
        "triples_doubled",
        "triples_unexpected",
        "out_of_order",
        "other_content",
        "sends_out_of_order",
        "session_lists_wrong",
        "client_reports",
    )

    def faults(self) -> list[str]:
        """What is not exact."""
        counts = {name: getattr(self, name) for name in self.WRONG} | self.zeros
        return [f"{name.replace('_', ' ')}: {count:g}" for name, count in counts.items() if count]

    def add_zeros(self, found: dict[str, float]) -> None:
        """Sum over the processes: a kill ends a process's counters with it."""
        for name, value in found.items():
            self.zeros[name] += value


@dataclass(frozen=True, slots=True)
class Expected:
    """One event that every member must have."""

    event_id: bytes
    seq: int
    sender: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Found:
    """One event that a member has."""

    event_id: bytes
    seq: int
    sender: str
    body: bytes
    mailbox_seq: int


def compare(expected: Sequence[Expected], found: Sequence[Found], verdict: Verdict) -> None:
    """Count one member's mailbox: as a set of ids, in order, byte for byte."""
    wanted = {one.event_id: one for one in expected}
    ids = [event.event_id for event in found]
    distinct = set(ids)
    verdict.triples_expected += len(wanted)
    verdict.triples_found += len(distinct & wanted.keys())
    verdict.triples_missing += len(wanted.keys() - distinct)
    verdict.triples_unexpected += len(distinct - wanted.keys())
    verdict.triples_doubled += len(ids) - len(distinct)
    places = [event.mailbox_seq for event in found]
    for before, after, place, next_place in zip(found, found[1:], places, places[1:], strict=False):
        verdict.out_of_order += after.seq <= before.seq or next_place <= place
    for event in found:
        one = wanted.get(event.event_id)
        same = one and (event.seq, event.sender, event.body) == (one.seq, one.sender, one.body)
        verdict.other_content += one is not None and not same


def table(verdict: Verdict) -> str:
    """The verdict's numbers, one a line."""
    rows = {
        "members": f"{verdict.members}",
        "  watching live": f"{verdict.watchers}",
        "events acknowledged": f"{verdict.events_acknowledged}",
        "  answered as duplicates": f"{verdict.answered_as_duplicates}",
        "SIGKILLs in the middle of sends": f"{verdict.kills}",
        "  ready again after": ", ".join(f"{s:.2f} s" for s in verdict.ready_s[1:]) or "-",
        "  streams opened anew": f"{verdict.reconnects}",
        "mailbox triples expected": f"{verdict.triples_expected}",
        "  found": f"{verdict.triples_found}",
        "  missing": f"{verdict.triples_missing}",
        "  doubled": f"{verdict.triples_doubled}",
        "  unexpected": f"{verdict.triples_unexpected}",
        "  out of order": f"{verdict.out_of_order}",
        "  with other content": f"{verdict.other_content}",
        "sends out of order": f"{verdict.sends_out_of_order}",
        "session lists wrong": f"{verdict.session_lists_wrong}",
        "reports of clients": f"{verdict.client_reports}",
        **{name: f"{value:g}" for name, value in verdict.zeros.items()},
        "sends/s": f"{verdict.sends_per_second:.0f}",
        "mailbox entries/s": f"{verdict.entries_per_second:.0f}",
        "SEND to SEND_ACK": f"p50 {verdict.ack_p50_ms:.1f} ms, p99 {verdict.ack_p99_ms:.1f} ms",
    }
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())
