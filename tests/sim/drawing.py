"""From a seed to its plan.

Each seed turns on a part of the faults only, at rates of its own (swarm testing): worlds in which
everything fails all the time never get far enough to fail in an interesting way.
"""

import random
from typing import Final

from tests.sim.plan import (
    CRASH_STEPS,
    DISKS,
    ENGINES,
    LOSING,
    STORM_S,
    Act,
    Blow,
    Deed,
    Fate,
    Plan,
    Shape,
    Strike,
    Weather,
)
from tests.sim.runtime import stream

_APPLY: Final = frozenset({"apply"})
_APPLY_TORN: Final = frozenset(
    {"apply_marks", "apply_entries", "apply_progress", "apply_watermark"}
)
"""What a mailbox's step is on an atomic engine, and on another: no world has both."""

_WEIGHTS: Final = {
    **dict.fromkeys(CRASH_STEPS, 2),
    **dict.fromkeys(("commit", "produce", "advance", *_APPLY, "claim", "open_shard"), 3),
    **dict.fromkeys(_APPLY_TORN, 5),
}
"""How often a blow is drawn for a step, of those that its world takes: a message's way is hit most,
and what only a takeover does is drawn often since it is met seldom.
"""

_RARE: Final = frozenset(
    {"create_conversation", "mark_read", "claim", "raise_epoch", "open_shard", "apply_marks"}
)
"""Steps that a world takes once or twice."""

FIRST_TERM_RATE: Final = 0.3
"""How often a blow at a step of a takeover is one at the begin, where every shard is taken."""

READERS: Final = 3
"""Who marks something as read, for a blow that waits for just that: not each of them gets so far,
and by themselves worlds mark too seldom for the two to meet."""


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    chance = stream(seed, "plan")
    shape = _shape(chance)
    members = tuple(
        tuple(sorted(chance.sample(range(shape.users), chance.randint(1, shape.users))))
        for _ in range(shape.conversations)
    )
    strikes = _strikes(chance, shape)
    deeds = [*_deeds(chance, shape), *_readers(chance, shape, members, strikes)]
    return Plan(
        seed=seed,
        shape=shape,
        weather=_weather(chance),
        strikes=tuple(sorted(strikes, key=lambda strike: strike.at_s)),
        deeds=tuple(sorted(deeds, key=lambda deed: deed.at_s)),
        members=members,
    )


def _shape(chance: random.Random) -> Shape:
    nodes = chance.choice((1, 2, 2, 2, 3))
    return Shape(
        chunks=tuple(chance.choice((1, 2, 3, 512)) for _ in range(nodes)),
        mailbox_shards=chance.choice((1, 1, 2)),
        writer_shards=chance.choice((1, 1, 2)),
        tenants=chance.choice((1, 1, 2)),
        users=chance.randint(3, 5),
        conversations=chance.randint(1, 3),
        torn=chance.random() < 0.5,
        cold=chance.random() < 0.3,
        by_id=chance.random() < 0.5,
    )


def _weather(chance: random.Random) -> Weather:
    level = chance.choice((0.0, 0.01, 0.03, 0.1))
    rates = tuple(
        (fate, level * chance.random())
        for fate in Fate
        if fate is not Fate.DELAY and chance.random() < 0.6
    )
    delay = (Fate.DELAY, chance.choice((0.0, 0.2, 0.6)))
    return Weather((*rates, delay), delay_s=chance.choice((0.01, 0.1, 0.5)))


_BLOWS: Final = (
    *(Blow.KILL_BEFORE, Blow.KILL_AFTER, Blow.FREEZE_BEFORE, Blow.FREEZE_AFTER) * 4,
    *(Blow.PARTITION, Blow.LEASE_EARLY, Blow.POISON, Blow.FULL, Blow.LOG_LOST) * 2,
    *Blow,
)


def _strikes(chance: random.Random, shape: Shape) -> list[Strike]:
    count = chance.choice((0, 1, 2, 2, 3, 4, 5))
    strikes = [_strike(chance, shape) for _ in range(count)]
    if shape.nodes > 1 and chance.random() < 0.4:
        strikes.append(_duel(chance, shape))
    if any(strike.blow is Blow.LOG_LOST for strike in strikes):
        # Mailboxes that lost what they had not synced read it again from the log. With that gone
        # too nothing knows the numbers under which somebody may have pulled it already.
        strikes = [strike for strike in strikes if strike.blow not in LOSING]
    return strikes


def _steps(shape: Shape) -> tuple[str, ...]:
    """The steps at which processes of the world can be hit, as often as they are to be."""
    others = _APPLY if shape.torn else _APPLY_TORN
    return tuple(
        step for step, weight in _WEIGHTS.items() if step not in others for _ in range(weight)
    )


def _duel(chance: random.Random, shape: Shape) -> Strike:
    """An owner stops right before a step, and goes on in the middle of its successor's work."""
    applied = "apply_watermark" if shape.torn else "apply"
    step, *others = chance.choice(
        (
            ("commit", "claim", "commit"),
            ("produce", "produce", "produce", "claim"),
            ("advance", "advance", "claim", "raise_epoch"),
            (applied, "open_shard", applied),
            ("project", "open_partition", "project"),
        )
    )
    return Strike(
        blow=Blow.FREEZE_BEFORE,
        at_s=round(chance.uniform(0.3, STORM_S / 2), 3),
        for_s=STORM_S,
        step=step,
        nth=chance.choice((1, 1, 2, 3)),
        wake_on=chance.choice(others),
    )


def _strike(chance: random.Random, shape: Shape) -> Strike:
    blow = chance.choice(_BLOWS)
    step = chance.choice(_steps(shape))
    at_step = blow in {Blow.KILL_BEFORE, Blow.KILL_AFTER, Blow.FREEZE_BEFORE, Blow.FREEZE_AFTER}
    nth = 1 if step in _RARE else chance.choice((1, 1, 1, 2, 3, 5))
    if blow is Blow.LOG_LOST and chance.random() < 0.5:
        # Amid a run: its producer may not notice, and the rest of it goes to the new log.
        step, at_step, nth = "produce", True, chance.choice((2, 2, 3))
    frozen = blow in {Blow.FREEZE, Blow.FREEZE_BEFORE, Blow.FREEZE_AFTER}
    return Strike(
        blow=blow,
        at_s=round(_time_of(chance, step if at_step else ""), 3),
        node=chance.randrange(shape.nodes),
        for_s=round(chance.choice((0.3, 2.0, 5.0, 9.0)) * chance.uniform(0.5, 1.5), 3),
        step=step if at_step else "",
        nth=nth,
        engine=chance.choice(_ENGINES_OF[blow]) if blow in _ENGINES_OF else "",
        shard=chance.randrange(max(shape.mailbox_shards, shape.writer_shards)),
        lane=chance.randrange(shape.users),
        amount=chance.choice((0.5, 1.5, 4.0)) if blow in _STEPPING else 0.0,
        wake_on=chance.choice(_steps(shape)) if frozen and chance.random() < 0.5 else "",
    )


def _time_of(chance: random.Random, step: str) -> float:
    """When a blow is dealt, or begins to wait for its step."""
    match step:
        case "create_conversation":
            # Conversations are made once, at the begin: later nobody would meet this blow.
            return 0.0
        case "raise_epoch" | "open_shard" if chance.random() < FIRST_TERM_RATE:
            return 0.0
        case "mark_read":
            # Its readers still have to come, and to get online.
            return chance.uniform(0.5, STORM_S - 3.0)
        case _:
            return chance.uniform(0.5, STORM_S - 1.0)


_ENGINES_OF: Final = {Blow.PARTITION: ENGINES, Blow.FULL: DISKS}

_STEPPING: Final = {Blow.CLOCK_BACK, Blow.CLOCK_AHEAD, Blow.LEASE_LATE}

_ACTS: Final = (
    *(Act.SEND,) * 9,
    *(Act.REACT,) * 2,
    *(Act.ADD, Act.REMOVE) * 3,
    *(Act.CONNECT,) * 4,
    *(Act.DISCONNECT,) * 2,
    *(Act.MARK,) * 3,
    Act.LIST,
    Act.HISTORY,
    Act.REPORT,
    Act.STEAL,
    Act.FORGET,
)


def _deeds(chance: random.Random, shape: Shape) -> list[Deed]:
    return [
        Deed(
            at_s=round(chance.uniform(0.0, STORM_S), 3),
            act=chance.choice(_ACTS),
            tenant=chance.randrange(shape.tenants),
            user=chance.randrange(shape.users),
            conversation=chance.randrange(shape.conversations),
            device=chance.choice((0, 0, 1)),
            count=chance.choice((1, 1, 2, 3)),
            stubborn=chance.random() < 0.8,
        )
        for _ in range(chance.randint(15, 40))
    ]


def _readers(
    chance: random.Random,
    shape: Shape,
    members: tuple[tuple[int, ...], ...],
    strikes: list[Strike],
) -> list[Deed]:
    """Marks for the blows that wait for one."""
    deeds: list[Deed] = []
    for strike in strikes:
        for _ in range(READERS if strike.step == "mark_read" else 0):
            conversation = chance.randrange(shape.conversations)
            deeds.append(
                Deed(
                    at_s=round(strike.at_s + chance.uniform(0.0, 1.5), 3),
                    act=Act.MARK,
                    tenant=chance.randrange(shape.tenants),
                    user=chance.choice(members[conversation]),
                    conversation=conversation,
                )
            )
    return deeds
