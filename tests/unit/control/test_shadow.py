"""The shadow of the mailbox store, as an operator calls it."""

from dataclasses import replace

import pytest

from qim.control.v1.shadow_service_pb2 import DescribeShadowRequest, SwitchShadowRequest
from qimd.control.shadow import MismatchAlarm, ShadowHandlers
from qimd.core.errors import QimError, invalid
from qimd.core.seq import mailbox_seq
from qimd.ports.shadow import ShadowReport, ShadowSample, ShadowShard
from qimd.telemetry.metrics import Metrics

SAMPLE = ShadowSample("entries(…)", "[0].seq: 1", "[0].seq: 2", 7)
SHARD = ShadowShard(3, mailbox_seq(1, 9), mailbox_seq(1, 8), 2, "")
REPORT = ShadowReport(
    primary="redis",
    shadow="scylla",
    compared=5,
    mismatches=1,
    shards=[SHARD],
    devices_waiting=4,
    devices_missed=6,
    samples=[SAMPLE],
    obstacle="1 answers differ",
)


class Pair:
    """Refuses a cut-over, unless it is a dry run."""

    def describe(self) -> ShadowReport:
        return REPORT

    async def switch(self, primary: str, *, dry_run: bool) -> ShadowReport:
        if not dry_run:
            raise invalid(REPORT.obstacle, "primary")
        return replace(REPORT, primary=primary)


async def test_an_operator_sees_how_far_it_follows_and_what_differs() -> None:
    pair = (await ShadowHandlers(Pair()).DescribeShadow(DescribeShadowRequest())).pair
    assert (pair.primary, pair.shadow, pair.compared, pair.mismatches) == ("redis", "scylla", 5, 1)
    (shard,) = pair.shards
    assert (shard.mailbox_shard_id, shard.waiting, shard.lost) == (3, 2, "")
    assert (shard.position_seq, shard.shadow_position_seq) == (
        SHARD.position,
        SHARD.shadow_position,
    )
    (sample,) = pair.samples
    assert (sample.asked, sample.primary, sample.shadow, sample.at_ms) == (
        SAMPLE.asked,
        SAMPLE.primary,
        SAMPLE.shadow,
        SAMPLE.at_ms,
    )
    assert (pair.devices_waiting, pair.devices_missed) == (4, 6)
    assert pair.obstacle == "1 answers differ"


async def test_a_refused_cut_over_says_why_and_a_dry_run_shows_it() -> None:
    handlers = ShadowHandlers(Pair())
    shown = await handlers.SwitchShadow(SwitchShadowRequest(primary="scylla", dry_run=True))
    assert (shown.dry_run, shown.pair.primary) == (True, "scylla")
    with pytest.raises(QimError, match="1 answers differ"):
        await handlers.SwitchShadow(SwitchShadowRequest(primary="scylla"))


def test_a_difference_moves_the_counter_that_must_stay_zero() -> None:
    metrics = Metrics()
    name = "mailbox_store_shadow_mismatch"
    assert metrics.registry.get_sample_value(name) == 0
    MismatchAlarm(metrics)(SAMPLE)
    assert metrics.registry.get_sample_value(name) == 1
