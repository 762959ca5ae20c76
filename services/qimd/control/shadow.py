"""ShadowService of the contract: request → response. The admin token is checked before."""

from typing import Final

from qim.control.v1.shadow_service_pb2 import (
    DescribeShadowRequest,
    DescribeShadowResponse,
    ShadowPair,
    ShadowSample,
    ShadowShard,
    SwitchShadowRequest,
    SwitchShadowResponse,
)
from qimd.ports.shadow import ShadowOperations, ShadowReport
from qimd.ports.shadow import ShadowSample as Sample
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics

_log: Final = logger("control")


class ShadowHandlers:
    """One method for each RPC. Raises QimError."""

    def __init__(self, operations: ShadowOperations) -> None:
        self._operations = operations

    async def DescribeShadow(self, _request: DescribeShadowRequest) -> DescribeShadowResponse:
        """How far the shadow follows, and what differs."""
        return DescribeShadowResponse(pair=_pair(self._operations.describe()))

    async def SwitchShadow(self, request: SwitchShadowRequest) -> SwitchShadowResponse:
        """The cut-over, and the way back."""
        report = await self._operations.switch(request.primary, dry_run=request.dry_run)
        if not request.dry_run:
            _log.warning("mailboxes are served by", primary=report.primary, shadow=report.shadow)
        return SwitchShadowResponse(pair=_pair(report), dry_run=request.dry_run)


class MismatchAlarm:
    """Counts and logs each difference, as `adapters.shadow` is told to."""

    def __init__(self, metrics: Metrics) -> None:
        self._counter = metrics.mailbox_store_shadow_mismatch

    def __call__(self, sample: Sample) -> None:
        self._counter.inc()
        _log.error(
            "the shadow of the mailbox store differs",
            asked=sample.asked,
            primary=sample.primary,
            shadow=sample.shadow,
        )


def _pair(report: ShadowReport) -> ShadowPair:
    return ShadowPair(
        primary=report.primary,
        shadow=report.shadow,
        compared=report.compared,
        mismatches=report.mismatches,
        shards=[
            ShadowShard(
                mailbox_shard_id=one.shard,
                position_seq=one.position,
                shadow_position_seq=one.shadow_position,
                waiting=one.waiting,
                lost=one.lost,
            )
            for one in report.shards
        ],
        devices_waiting=report.devices_waiting,
        devices_missed=report.devices_missed,
        samples=[
            ShadowSample(asked=one.asked, primary=one.primary, shadow=one.shadow, at_ms=one.at_ms)
            for one in report.samples
        ],
        obstacle=report.obstacle,
    )
