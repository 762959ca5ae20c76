"""Judges what clients REPORT: a gap, a double or a disorder below a covered_through.

A true gap means that W passed something that was not materialised: the invariant behind every page.
A false one must not count, whatever a client sends: so a gap is true only if the store proves it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from qimd.core.errors import invalid, unavailable
from qimd.core.ids import event_id
from qimd.core.parameters import BUCKET_DAYS_KEPT, PAGE_EVENTS_MAX
from qimd.core.records import UserKey
from qimd.core.seq import MailboxSeq
from qimd.mailbox import logic
from qimd.mailbox.ports import RoomPorts
from qimd.mailbox.shard import Shard
from qimd.ports.mailbox import Entry, finished, watermark
from qimd.ports.services import GapReport
from qimd.telemetry.logs import logger

_log = logger("mailbox")

GAP, DOUBLE, DISORDER = 1, 2, 3
KINDS: Final[Mapping[int, str]] = {GAP: "gap", DOUBLE: "double", DISORDER: "disorder"}

REPORT_EVENTS_MAX: Final = 1_000
"""conversation_seqs of one report: a client that misses more reports again."""

SCAN_ENTRIES_MAX: Final = 20 * PAGE_EVENTS_MAX
"""Entries that are searched for a double."""

CATCH_UP_WAIT_S: Final = 5.0
"""How long a report of the newest events waits for the shard to pass what is in the log."""


class Verifier:
    """Checks reports against the store and the mailbox."""

    def __init__(self, ports: RoomPorts) -> None:
        self._ports = ports

    async def confirmed(self, shard: Shard, lane: int, user: UserKey, report: GapReport) -> bool:
        """Whether the report is true; counts it. Raises QimError: INVALID_ARGUMENT, UNAVAILABLE."""
        kind = KINDS.get(report.kind)
        if kind is None:
            raise invalid(f"report kind {report.kind} is not known", "kind")
        if not 1 <= report.from_seq <= report.through_seq:
            raise invalid("the range of a report is 1 or more, and not reversed", "from_seq")
        if report.through_seq - report.from_seq >= REPORT_EVENTS_MAX:
            raise invalid(f"a report is about {REPORT_EVENTS_MAX} events at most", "through_seq")
        state, restarts = shard.ready(), self._ports.store.restarts
        true = 0 <= report.covered_through <= watermark(state, lane) and await (
            self._gap(shard, user, report)
            if report.kind == GAP
            else self._double(shard, user, report)
            if report.kind == DOUBLE
            else self._disorder(user, report)
        )
        if self._ports.store.restarts != restarts:
            # What the store may have lost amid this comes again from the log, and proves nothing.
            raise unavailable("the store was started anew while the report was checked")
        self._ports.metrics.reports_total.labels(kind, str(true).lower()).inc()
        if true:
            if report.kind == GAP:
                self._ports.metrics.covered_through_unmaterialized_total.inc()
            _log.error(
                "a client's report is true",
                kind=kind,
                tenant_id=user.tenant,
                conversation_id=report.key.conversation,
                mailbox_shard=shard.shard,
                lane_id=lane,
                mailbox_seq=report.covered_through,
                from_seq=report.from_seq,
                through_seq=report.through_seq,
            )
        return true

    async def _gap(self, shard: Shard, user: UserKey, report: GapReport) -> bool:
        """Some event of the range was for the user and is not at or below covered_through, although
        a later one is, or although the shard has passed all that its dispatches can be in.
        """
        covered = report.covered_through
        seqs = await self._seqs(user, report, beyond=REPORT_EVENTS_MAX)
        missing = await self._missing(user, report, seqs)
        newest = max((n for n, seq in seqs.items() if seq <= covered), default=0)
        if any(number < newest for number in missing):
            return True
        absent = [number for number in missing if number not in seqs]
        if not absent:
            return False
        state = await self._ports.conversations.conversation(report.key)
        if state is None or state.dispatched_through < absent[0]:
            return False
        # Read behind dispatched_through: whatever was dispatched by then lies below it.
        high = await self._log_end(shard)
        if high is None:
            return False
        try:
            await self._ports.runtime.wait_for(shard.passed(high), CATCH_UP_WAIT_S)
        except TimeoutError:
            return False
        if not finished(shard.ready(), high):
            return False
        dispatched = [number for number in absent if number <= state.dispatched_through]
        seqs = await self._seqs(user, report)
        if not any(number not in seqs for number in dispatched):
            return False
        # It is gone: below covered_through it was, unless it came after what the page covered.
        return await self._was_below(shard, report, [n for n in dispatched if n not in seqs])

    async def _log_end(self, shard: Shard) -> int | None:
        """The end of the log that the shard reads; None if that is not the one at hand. Below the
        end of another log the shard may have passed everything, and nothing of it.
        """
        high = (await self._ports.log.watermarks(shard.shard)).high
        identity = await self._ports.log.identity()
        return high if identity.text == shard.ready().boundaries[-1].log_identity else None

    async def _was_below(self, shard: Shard, report: GapReport, absent: Sequence[int]) -> bool:
        """Whether a record of the event in the user's shard lies at or below covered_through, or
        none does: then the event's place was passed without a trace.
        """
        key = report.key
        for number in absent:
            records = await self._ports.store.records_of(
                event_id(key.tenant, key.conversation, number)
            )
            here = [record.seq for record in records if record.shard == shard.shard]
            if not here or min(here) <= report.covered_through:
                return True
        return False

    async def _missing(
        self, user: UserKey, report: GapReport, seqs: Mapping[int, MailboxSeq]
    ) -> list[int]:
        """Events of the range that the user must have, and that lie not at or below covered."""
        state = await self._ports.conversations.conversation(report.key)
        if state is None:
            return []
        intervals = await self._ports.conversations.intervals(report.key, user.user)
        through = min(report.through_seq, state.head_version)
        missing = [
            number
            for number in range(report.from_seq, through + 1)
            if any(interval.sees(number) for interval in intervals)
            and seqs.get(number, report.covered_through + 1) > report.covered_through
        ]
        return [number for number in missing if await self._kept(report, number)]

    async def _kept(self, report: GapReport, number: int) -> bool:
        """Whether the event is young enough to be in the day buckets that are kept."""
        key = report.key
        found = await self._ports.conversations.find_event(
            event_id(key.tenant, key.conversation, number)
        )
        if found is None:
            return False
        oldest = logic.day_of(self._ports.runtime.wall_ms()) - BUCKET_DAYS_KEPT
        return logic.day_of(found[0].created_at_ms) > oldest

    async def _seqs(
        self, user: UserKey, report: GapReport, beyond: int = 0
    ) -> Mapping[int, MailboxSeq]:
        through = report.through_seq + beyond
        return await self._ports.store.entry_seqs(user, report.key, report.from_seq, through)

    async def _double(self, shard: Shard, user: UserKey, report: GapReport) -> bool:
        """Two entries of one event at or below covered_through."""
        seen: set[bytes] = set()
        after, scanned = shard.floor, 0
        while scanned < SCAN_ENTRIES_MAX:
            page = await self._ports.store.entries(
                user, after, report.covered_through, PAGE_EVENTS_MAX
            )
            for entry in page:
                if _concerns(entry, report):
                    if entry.ref.event_id in seen:
                        return True
                    seen.add(entry.ref.event_id)
            if len(page) < PAGE_EVENTS_MAX:
                return False
            after = page[-1].seq
            scanned += len(page)
        return False

    async def _disorder(self, user: UserKey, report: GapReport) -> bool:
        """A later event of the conversation has a smaller mailbox_seq than an earlier one."""
        seqs = await self._seqs(user, report)
        placed = [seq for _, seq in sorted(seqs.items()) if seq <= report.covered_through]
        return placed != sorted(placed)


def _concerns(entry: Entry, report: GapReport) -> bool:
    ref = entry.ref
    return ref.key == report.key and report.from_seq <= ref.conversation_seq <= report.through_seq
