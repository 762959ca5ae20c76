"""Plans hold what they are to hold, before anything runs."""

from collections import Counter
from functools import cache

from tests.sim.drawing import READERS, draw
from tests.sim.plan import CRASH_STEPS, DISKS, LOSING, Act, Blow, Plan

TORN_STEPS = {"apply_marks", "apply_entries", "apply_progress", "apply_watermark"}


@cache
def plans() -> list[Plan]:
    return [draw(seed) for seed in range(1_000)]


def test_a_seed_draws_the_same_plan_again() -> None:
    assert [draw(seed) for seed in range(20)] == plans()[:20]


def test_a_blow_waits_only_for_a_step_that_its_world_takes() -> None:
    for plan in plans():
        for strike in plan.strikes:
            steps = {strike.step, strike.wake_on}
            assert not steps & ({"apply"} if plan.shape.torn else TORN_STEPS)


def test_a_blow_at_mark_read_has_its_readers() -> None:
    blows = [
        (plan, strike) for plan in plans() for strike in plan.strikes if strike.step == "mark_read"
    ]
    assert len(blows) > 20
    for plan, strike in blows:
        readers = [
            deed
            for deed in plan.deeds
            if deed.act is Act.MARK
            and deed.at_s >= strike.at_s
            and deed.user in plan.members[deed.conversation]
        ]
        assert len(readers) >= READERS


def test_every_crash_point_is_drawn_several_times() -> None:
    drawn = Counter((strike.blow, strike.step) for plan in plans() for strike in plan.strikes)
    for blow in (Blow.KILL_BEFORE, Blow.KILL_AFTER):
        for step in CRASH_STEPS:
            assert drawn[blow, step] >= 5, (blow, step)


def test_a_world_that_loses_its_log_loses_no_tail_of_a_mailbox_besides() -> None:
    for plan in plans():
        blows = {strike.blow for strike in plan.strikes}
        assert Blow.LOG_LOST not in blows or not blows & LOSING


def test_a_log_is_lost_at_a_time_or_amid_a_run_of_records() -> None:
    lost = [one for plan in plans() for one in plan.strikes if one.blow is Blow.LOG_LOST]
    amid = [strike for strike in lost if strike.step]
    assert 20 < len(amid) < len(lost) - 20
    assert {strike.step for strike in amid} == {"produce"}
    assert all(strike.nth > 1 for strike in amid)


def test_an_engine_without_room_is_one_that_has_a_disk_to_fill() -> None:
    full = {one.engine for plan in plans() for one in plan.strikes if one.blow is Blow.FULL}
    assert full == set(DISKS)
