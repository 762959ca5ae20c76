"""Requests that are served one after another: a frame in, the frame that answers it out."""

from qim.gateway.v1 import gateway_pb2
from qim.gateway.v1.gateway_pb2 import ClientFrame, ServerFrame
from qimd.connection.link import Link
from qimd.connection.logic import backlog_bucket, cut_history, history_end, history_limit
from qimd.contract.events import encode_delivered
from qimd.contract.frames import (
    EncodedFrame,
    history_frame,
    page_frame,
    server_frame,
    session_message,
)
from qimd.contract.violation import ContractViolation
from qimd.core.errors import ErrorCode, QimError, invalid
from qimd.core.ids import ConversationId, TenantId, check_id
from qimd.core.parameters import EXACT_INTEGER_MAX
from qimd.core.records import ConversationKey, DeviceKey
from qimd.core.seq import SEQ_MAX, MailboxSeq
from qimd.ports.runtime import Runtime
from qimd.ports.services import GapReport, Mailbox, Page, Rebased, Sessions
from qimd.ports.store import ConversationStore
from qimd.telemetry.metrics import Metrics


class Requests:
    """Serves an authenticated stream's requests. Each raises QimError."""

    def __init__(
        self,
        *,
        mailbox: Mailbox,
        sessions: Sessions,
        conversations: ConversationStore,
        runtime: Runtime,
        metrics: Metrics,
    ) -> None:
        self._mailbox = mailbox
        self._sessions = sessions
        self._conversations = conversations
        self._runtime = runtime
        self._metrics = metrics

    async def serve(self, link: Link, device: DeviceKey, frame: ClientFrame) -> EncodedFrame:
        """The answer to one frame of a kind that is served in order."""
        try:
            return await self._serve(link, device, frame)
        except ContractViolation:
            # What we meant to send: its field is none of the client's.
            raise
        except QimError as error:
            raise error.inside(frame.WhichOneof("frame") or "") from error

    async def _serve(self, link: Link, device: DeviceKey, frame: ClientFrame) -> EncodedFrame:
        match frame.WhichOneof("frame"):
            case "pull_mailbox":
                return await self._pull(link, device, frame.request_id, frame.pull_mailbox)
            case "ack_mailbox":
                acked = await self._mailbox.ack(
                    device, frame.ack_mailbox.last_applied_mailbox_seq, link.handed
                )
                ack_ok = gateway_pb2.AckOk(last_applied_mailbox_seq=acked)
                return server_frame(ServerFrame(request_id=frame.request_id, ack_ok=ack_ok))
            case "pull_session_list":
                return await self._session_list(device, frame)
            case "mark_read":
                return await self._mark_read(device, frame)
            case "pull_history":
                return await self._history(device, frame.request_id, frame.pull_history)
            case "report":
                return await self._report(device, frame)
            case kind:
                raise QimError(ErrorCode.UNIMPLEMENTED, f"{kind} is not served here")

    async def _pull(
        self, link: Link, device: DeviceKey, request_id: int, pull: gateway_pb2.PullMailbox
    ) -> EncodedFrame:
        started_s = self._runtime.monotonic_s()
        page = await self._mailbox.pull(
            device, pull.cursor_token, pull.last_applied_mailbox_seq, pull.limit
        )
        if isinstance(page, Rebased):
            link.handed = max(link.handed, page.last_applied)
            return server_frame(_rebased(request_id, page))
        link.handed = max(link.handed, page.covered_through)
        self._metrics.stage_records_total.labels("page").inc()
        self._metrics.stage_entries_total.labels("page").inc(len(page.events))
        now_s = self._runtime.monotonic_s()
        self._metrics.stage_latency_seconds.labels("page").observe(now_s - started_s)
        self._note_ready(link, page, now_s)
        return page_frame(
            request_id,
            [encode_delivered(event.seq, event.encoded) for event in page.events],
            page.covered_through,
            page.cursor_token,
            page.more,
        )

    def _note_ready(self, link: Link, page: Page, now_s: float) -> None:
        if link.pulled < 0:
            return
        link.pulled += len(page.events)
        if not page.more:
            self._metrics.online_ready_latency.labels(backlog_bucket(link.pulled)).observe(
                now_s - link.authenticated_at_s
            )
            link.pulled = -1

    async def _session_list(self, device: DeviceKey, frame: ClientFrame) -> EncodedFrame:
        asked = frame.pull_session_list
        items, next_page = await self._sessions.list(device.owner, asked.page_token, asked.limit)
        page = gateway_pb2.SessionList(
            sessions=[session_message(item) for item in items], next_page_token=next_page
        )
        return server_frame(ServerFrame(request_id=frame.request_id, session_list=page))

    async def _mark_read(self, device: DeviceKey, frame: ClientFrame) -> EncodedFrame:
        asked = frame.mark_read
        key = key_of(device.tenant, asked.conversation_id)
        mark, unread = await self._sessions.mark_read(device.owner, key, asked.read_through_seq)
        read_ok = gateway_pb2.ReadOk(
            conversation_id=key.conversation, read_through_seq=mark, unread_count=unread
        )
        return server_frame(ServerFrame(request_id=frame.request_id, read_ok=read_ok))

    async def _history(
        self, device: DeviceKey, request_id: int, asked: gateway_pb2.PullHistory
    ) -> EncodedFrame:
        key = key_of(device.tenant, asked.conversation_id)
        limit = history_limit(asked.limit)
        # In this order: memberships that are read behind the head are exact up to it, and what
        # comes above it meanwhile may be none of the user's business any more.
        state = await self._conversations.conversation(key)
        intervals = await self._conversations.intervals(key, device.user)
        if state is None or not intervals:
            raise QimError(ErrorCode.NOT_MEMBER, "the user was never a member of the conversation")
        before = history_end(asked.before_seq, state.head_version)
        # One more than is asked for tells whether there are older ones.
        events = await self._conversations.history(key, intervals, before, limit + 1)
        page = cut_history([event.encoded for event in events], limit)
        return history_frame(request_id, key.conversation, page, len(page) < len(events))

    async def _report(self, device: DeviceKey, frame: ClientFrame) -> EncodedFrame:
        asked = frame.report
        key = key_of(device.tenant, asked.conversation_id)
        if asked.kind not in gateway_pb2.ReportKind.values():
            raise invalid(f"report kind {asked.kind} is not known here", "kind")
        if not 1 <= asked.from_conversation_seq <= asked.through_conversation_seq:
            raise invalid(
                "the range of a report is 1 or more, and not empty", "from_conversation_seq"
            )
        if asked.through_conversation_seq > EXACT_INTEGER_MAX:
            raise invalid("conversation_seq stays below 2^53", "through_conversation_seq")
        if asked.covered_through_seq > SEQ_MAX:
            raise invalid("mailbox_seq stays below 2^63", "covered_through_seq")
        report = GapReport(
            kind=int(asked.kind),
            key=key,
            from_seq=asked.from_conversation_seq,
            through_seq=asked.through_conversation_seq,
            covered_through=MailboxSeq(asked.covered_through_seq),
        )
        confirmed = await self._mailbox.report(device.owner, report)
        report_ok = gateway_pb2.ReportOk(confirmed=confirmed)
        return server_frame(ServerFrame(request_id=frame.request_id, report_ok=report_ok))


def key_of(tenant: TenantId, conversation: str) -> ConversationKey:
    """The conversation that a frame names. Raises QimError(INVALID_ARGUMENT) for no id."""
    return ConversationKey(tenant, ConversationId(check_id(conversation, "conversation_id")))


def _rebased(request_id: int, page: Rebased) -> ServerFrame:
    return ServerFrame(
        request_id=request_id,
        cursor_rebased=gateway_pb2.CursorRebased(
            lost_from_seq=page.lost_from,
            lost_through_seq=page.lost_through,
            cursor_token=page.cursor_token,
            last_applied_mailbox_seq=page.last_applied,
        ),
    )
