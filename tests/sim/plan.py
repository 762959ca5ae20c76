"""What a seed stands for: a world's shape, its weather, the blows that it takes, what people do.

A plan is plain data, drawn whole before anything runs. So a failure is a plan and not only a
number: the shrinker takes parts of it away for as long as the rest still fails, and what is left
can be printed and read. `drawing` makes one of a seed.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final


class Fate(Enum):
    """What the network does with one call."""

    DELAY = "delayed"
    REFUSE = "refused"
    NO_SPACE = "refused for room"
    LOSE_REPLY = "reply lost after it was applied"
    LOSE_CALL = "call lost"
    LAND_LATE = "landed after its caller had given up"
    TWICE = "delivered twice"


class Blow(Enum):
    """What happens to a machine, an engine or the network between them."""

    KILL = "kill -9"
    KILL_BEFORE = "kill -9 before an effect"
    KILL_AFTER = "kill -9 after an effect, before its reply"
    FREEZE = "SIGSTOP"
    FREEZE_BEFORE = "SIGSTOP before an effect"
    FREEZE_AFTER = "SIGSTOP after an effect, before its reply"
    DRAIN = "drain and restart"
    PARTITION = "partition from an engine"
    LEASE_EARLY = "lease ends early"
    LEASE_LATE = "lease ends late"
    LEASES_OVER = "every lease starts over"
    LEASES_LOST = "every lease is lost"
    CLOCK_BACK = "clock steps back"
    CLOCK_AHEAD = "clock steps ahead"
    FULL = "an engine's disk is full"
    POISON = "the store refuses a lane"
    LOG_REFUSES = "the log refuses"
    LOG_FORGETS = "the log forgets what it did not acknowledge"
    LOG_LOST = "the log is lost and made anew"
    POWER = "power failure: the un-synced tail of store, mailbox and projection is lost"
    TAIL = "store, mailbox and projection start anew without their tail, and the servers go on"
    CUT = "every client's stream is cut"


LOSING: Final = frozenset({Blow.POWER, Blow.TAIL})
"""Blows that take back what mailbox and projection had acknowledged, and of the store claims,
progress and audits, as Redis may that syncs behind its acknowledgements (`appendfsync everysec`).
"""

STEPS: Final = (
    "commit", "produce", "advance", "quarantine", "apply", "apply_marks", "apply_entries",
    "apply_progress", "apply_watermark", "project_rows", "project", "claim", "raise_epoch",
    "acquire", "open_shard", "ack", "open_device", "create_conversation", "mark_read",
    "set_audited",
)  # fmt: skip
"""Ports' mutating calls at which a process can die or freeze."""

CRASH_STEPS: Final = tuple(
    step for step in STEPS if step not in {"quarantine", "set_audited", "open_device", "acquire"}
)
"""Where a CI run must have killed a process before and after, at least once: commit → produce →
acks → progress → entries → W → checkpoint, and the claims and epochs of a takeover."""

ENGINES: Final = ("store", "log", "lease", "mailbox", "projection")

ROOM_STEPS: Final = (
    "commit", "claim", "advance", "raise_epoch", "apply", "apply_entries", "project_rows", "ack",
    "acquire", "release",
)  # fmt: skip
"""Where a CI run must have seen an engine that has no room."""

DISKS: Final = ("store", "mailbox", "projection", "lease", "store+mailbox+projection")
"""What fills up: an engine's disk, or the one that all but leases and log are on."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a world is. `chunks` is each node's setting of recipients a record."""

    chunks: tuple[int, ...]
    mailbox_shards: int
    writer_shards: int
    tenants: int
    users: int
    conversations: int
    torn: bool
    """The mailbox engine applies a step in several effects, as Scylla does."""
    cold: bool
    """Nobody released the shards before: their first owners wait as after a crash."""
    by_id: bool
    """The log tells a topic that was made anew from the old one when it is produced to, too."""

    @property
    def nodes(self) -> int:
        """How many servers there are."""
        return len(self.chunks)


@dataclass(frozen=True, slots=True)
class Weather:
    """The everyday faults: how likely each is for one call."""

    rates: tuple[tuple[Fate, float], ...]
    delay_s: float


@dataclass(frozen=True, slots=True)
class Strike:
    """One blow. Which of the fields say anything depends on the kind."""

    blow: Blow
    at_s: float
    node: int = 0
    for_s: float = 0.0
    step: str = ""
    nth: int = 1
    engine: str = ""
    shard: int = 0
    lane: int = 0
    amount: float = 0.0
    wake_on: str = ""
    """A frozen process wakes as soon as another one has taken this step."""

    def __str__(self) -> str:
        parts = [f"{self.at_s:6.2f} s  {self.blow.value}", f"node {self.node}"]
        if self.step:
            parts.append(f"at {self.step} #{self.nth}")
        if self.engine:
            parts.append(self.engine)
        if self.for_s:
            parts.append(f"for {self.for_s:.1f} s")
        if self.wake_on:
            parts.append(f"or until another's {self.wake_on}")
        if self.blow in {Blow.LEASE_EARLY, Blow.LEASE_LATE}:
            parts.append(f"shard {self.shard}")
        if self.blow is Blow.POISON:
            parts.append(f"lane of user {self.lane}")
        if self.amount:
            parts.append(f"amount {self.amount:.1f}")
        return ", ".join(parts)


class Act(Enum):
    """What a person, or an administrator, does."""

    SEND = "sends"
    REACT = "reacts"
    ADD = "is added"
    REMOVE = "is removed"
    CONNECT = "connects"
    DISCONNECT = "disconnects"
    MARK = "marks as read"
    LIST = "looks at the session list"
    HISTORY = "looks at the history"
    REPORT = "reports a gap that is none"
    STEAL = "pulls with another's cursor"
    FORGET = "loses the device's own position"


@dataclass(frozen=True, slots=True)
class Deed:
    """One act: `user` and `conversation` are numbers within the `tenant`."""

    at_s: float
    act: Act
    tenant: int
    user: int
    conversation: int = 0
    device: int = 0
    count: int = 1
    stubborn: bool = True
    """Asks again until there is an answer; else it gives up after the first try."""

    def __str__(self) -> str:
        what = f"{self.at_s:6.2f} s  t{self.tenant}/user {self.user} {self.act.value}"
        if self.act in {Act.CONNECT, Act.DISCONNECT, Act.STEAL, Act.FORGET}:
            return f"{what}, device {self.device}"
        extra = f" {self.count} events" if self.act is Act.SEND else ""
        return f"{what}{extra}, conversation {self.conversation}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a world is a function of."""

    seed: int
    shape: Shape
    weather: Weather
    strikes: tuple[Strike, ...]
    deeds: tuple[Deed, ...]
    members: tuple[tuple[int, ...], ...] = field(default=())
    """The first members of each tenant's conversations, by number."""


STORM_S: Final = 6.5
"""How long deeds and blows go on; then everything is healed."""
