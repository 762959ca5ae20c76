"""MailboxService of the contract: request → response. The admin token is checked before."""

from qim.gateway.v1.gateway_pb2 import DeliveredEvent
from qim.mailbox.v1.mailbox_service_pb2 import (
    DescribeShardsRequest,
    DescribeShardsResponse,
    LaggingLane,
    MailboxShard,
    ReadMailboxRequest,
    ReadMailboxResponse,
)
from qimd.contract.events import decode_event
from qimd.core.errors import QimError
from qimd.core.ids import TenantId, UserId, check_id
from qimd.core.records import UserKey
from qimd.mailbox.service import MailboxService
from qimd.mailbox.shard import Shard
from qimd.ports.log import Log, LogFault, Watermarks


class MailboxHandlers:
    """One method for each RPC. Raises QimError."""

    def __init__(self, service: MailboxService, log: Log) -> None:
        self._service = service
        self._log = log

    async def ReadMailbox(self, request: ReadMailboxRequest) -> ReadMailboxResponse:
        """A page of a user's mailbox, up to its lane's watermark."""
        user = UserKey(
            TenantId(check_id(request.tenant_id, "tenant_id")),
            UserId(check_id(request.user_id, "user_id")),
        )
        page = await self._service.read(user, request.after_seq, request.limit)
        return ReadMailboxResponse(
            events=[
                DeliveredEvent(mailbox_seq=event.seq, event=decode_event(event.encoded))
                for event in page.events
            ],
            covered_through_seq=page.covered_through,
            more=page.more,
            watermark_floor_seq=self._service.floor(user),
        )

    async def DescribeShards(self, request: DescribeShardsRequest) -> DescribeShardsResponse:
        """The shards that this node owns."""
        return DescribeShardsResponse(
            shards=[await self._described(shard) for shard in self._service.shards()]
        )

    async def _described(self, shard: Shard) -> MailboxShard:
        state = shard.state
        watermarks = await self._watermarks(shard.shard)
        return MailboxShard(
            mailbox_shard_id=shard.shard,
            shard_epoch=state.boundaries[-1].shard_epoch if state else 0,
            term=shard.term.epoch,
            position_seq=state.position if state else 0,
            next_offset=state.next_offset if state else 0,
            low_watermark=watermarks.low,
            high_watermark=watermarks.high,
            watermark_floor_seq=shard.floor,
            lagging_lanes=[
                LaggingLane(lane=lane, watermark_seq=seq, stalled_ms=shard.stalled_ms(lane))
                for lane, seq in sorted((state.lagging if state else {}).items())
            ],
            fault=shard.fault.reason if shard.fault else "",
        )

    async def _watermarks(self, shard: int) -> Watermarks:
        try:
            return await self._log.watermarks(shard)
        except (LogFault, QimError):
            # A shard whose log is away is what an operator looks at here.
            return Watermarks(0, 0)
