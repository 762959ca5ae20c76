"""SEND: what a client wants to say, as the writer takes it, and the answer to each event of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from qim.gateway.v1.gateway_pb2 import Send, SendAck, ServerFrame
from qimd.connection.requests import key_of
from qimd.contract.events import draft_of
from qimd.contract.frames import EncodedFrame, send_result, server_frame
from qimd.core.errors import QimError, invalid
from qimd.core.parameters import SEND_EVENTS_MAX
from qimd.core.records import Accepted, ConversationKey, DeviceKey, Draft, EventKind
from qimd.ports.services import Admission, Commit, Writer
from qimd.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class PreparedSend:
    """A SEND of which the drafts are known to be good, or not.

    `results` has the refusals in the places of their events; the drafts fill the gaps, in order.
    """

    key: ConversationKey
    names: Sequence[str]
    results: Sequence[QimError | None]
    drafts: Sequence[Draft]


def prepare(sender: DeviceKey, send: Send) -> PreparedSend:
    """Read a SEND. Raises QimError(INVALID_ARGUMENT) for what concerns it as a whole.

    A bad event is its own refusal: the valid ones commit together (design section 4).
    """
    try:
        key = key_of(sender.tenant, send.conversation_id)
    except QimError as error:
        raise error.inside("send") from error
    if not 1 <= len(send.events) <= SEND_EVENTS_MAX:
        raise invalid(
            f"a SEND holds 1 to {SEND_EVENTS_MAX} events, not {len(send.events)}", "send.events"
        )
    results: list[QimError | None] = []
    drafts: list[Draft] = []
    for index, outgoing in enumerate(send.events):
        try:
            drafts.append(draft_of(outgoing, f"send.events[{index}]"))
            results.append(None)
        except QimError as error:
            results.append(error)
    return PreparedSend(key, [outgoing.client_msg_id for outgoing in send.events], results, drafts)


class Sends:
    """Admits and commits what was prepared."""

    def __init__(self, *, admission: Admission, writer: Writer, metrics: Metrics) -> None:
        self._admission = admission
        self._writer = writer
        self._metrics = metrics

    async def admit(self, sender: DeviceKey, prepared: PreparedSend) -> None:
        """Return if the limits allow it. Raises QimError before anything is written."""
        if not prepared.drafts:
            return
        reactions = sum(draft.kind == EventKind.REACTION for draft in prepared.drafts)
        messages = len(prepared.drafts) - reactions
        await self._admission.admit(sender.owner, prepared.key, messages, reactions)

    async def commit(
        self, request_id: int, sender: DeviceKey, prepared: PreparedSend, trace_parent: str
    ) -> EncodedFrame:
        """The SEND_ACK. Raises QimError if nothing of it can be done.

        Up to its first await this calls the writer: calls made in order commit in order.
        """
        committed: Sequence[Accepted | QimError] = ()
        if prepared.drafts:
            committed = await self._writer.commit(
                Commit(
                    key=prepared.key,
                    sender=sender.user,
                    sender_device=sender.device,
                    drafts=prepared.drafts,
                    trace_parent=trace_parent,
                )
            )
        rest = iter(committed)
        results = [
            refused or _placed(next(rest), index) for index, refused in enumerate(prepared.results)
        ]
        for result in results:
            if isinstance(result, QimError):
                self._metrics.errors_total.labels(result.code.name).inc()
        ack = SendAck(
            conversation_id=prepared.key.conversation,
            results=map(send_result, prepared.names, results),
        )
        return server_frame(ServerFrame(request_id=request_id, send_ack=ack))


def _placed(result: Accepted | QimError, index: int) -> Accepted | QimError:
    """The writer's result for the SEND's event `index`: it knows the event, not its place."""
    return result.inside(f"send.events[{index}]") if isinstance(result, QimError) else result
