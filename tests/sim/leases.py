"""What a process may do by what the lease engine told it: taking over, and writing under a term.

Two owners for a moment are made safe by epochs, so that an owner which takes a key too early, or
writes on without a renewal, breaks no promise that a run's end could show. Such moments must be
rare and short all the same, also where every lease starts over or is lost at once: each process is
held to what it heard, at the instant at which its calls leave.
"""

from collections.abc import Callable
from typing import Final

from qimd.adapters.memory import Call
from qimd.core.outcome import Applied, NotApplied, Refusal
from qimd.core.parameters import LeaseParameters
from qimd.ports.lease import LeaseView
from qimd.ports.mailbox import ApplyStep
from qimd.ports.store import CommitStep, ShardKind

_Key = tuple[ShardKind, int]

_AT_ONCE: Final = float("-inf")
_NEVER: Final = float("inf")

ROUNDING_S: Final = 1e-6
"""Machines count from origins of their own, and round differently."""


class Held:
    """One process's leases, as far as it can know. `now` is the world's time."""

    def __init__(
        self,
        name: str,
        parameters: LeaseParameters,
        now: Callable[[], float],
        violate: Callable[[str], None],
    ) -> None:
        self._name = name
        self._absence_s = parameters.writer_failover_wait_s - parameters.shard_lease_ttl_s
        self._fence_s = parameters.writer_self_fence_deadline_s
        self._now = now
        self._violate = violate
        self._free_since: dict[_Key, float] = {}
        """Since when the key was seen absent at each look; at once where no wait is asked."""
        self._renewed: dict[_Key, float] = {}
        """When the last acquire or renewal that was heard to succeed was sent."""

    def leaves(self, call: Call) -> None:
        """A call is made."""
        if call.op == "acquire":
            self._takes(call.key)  # type: ignore[arg-type]
        elif (written := _written(call)) is not None:
            self._writes(written, call.op)

    def heard(self, call: Call, sent_s: float, reply: object) -> None:
        """What came of a call that was made at `sent_s`."""
        key: _Key = call.key  # type: ignore[assignment]
        match call.op, reply:
            case "view", LeaseView(holder="", released=False):
                if self._free_since.get(key, _AT_ONCE) == _AT_ONCE:
                    self._free_since[key] = self._now()
            case "view", LeaseView(holder=self._name) | LeaseView(released=True):
                self._free_since[key] = _AT_ONCE
            case "view", _:
                # Held by another, or not answered: unseen is not absent.
                self._free_since.pop(key, None)
            case "acquire" | "renew", Applied():
                self._renewed[key] = sent_s
                self._free_since.pop(key, None)
            case "acquire", NotApplied(refusal=Refusal.CONFLICT):
                self._free_since.pop(key, None)
            case "renew", NotApplied(refusal=Refusal.NOT_FOUND | Refusal.CONFLICT):
                self._renewed.pop(key, None)
            case _:
                pass

    def _takes(self, key: _Key) -> None:
        absent_s = self._now() - self._free_since.get(key, _NEVER)
        if absent_s < self._absence_s - ROUNDING_S:
            self._violate(
                f"{self._name} takes {key[0].value} shard {key[1]}, whose key it has not seen "
                f"absent for {self._absence_s} s"
            )

    def _writes(self, key: _Key, op: str) -> None:
        renewed_s = self._renewed.get(key, _AT_ONCE)
        if self._now() - renewed_s > self._fence_s + ROUNDING_S:
            self._violate(
                f"{self._name} issues {op} on {key[0].value} shard {key[1]} without a renewal "
                f"within {self._fence_s} s"
            )


def _written(call: Call) -> _Key | None:
    """The shard whose term a call writes under; None for one that is part of a longer step, which
    its owner was free to begin.
    """
    match call.op, call.content, call.key:
        case "commit", CommitStep(writer_shard=shard), _:
            return ShardKind.WRITER, shard
        case "apply", ApplyStep(shard=shard), _:
            return ShardKind.MAILBOX, shard
        case "apply_fence", _, int(shard):
            return ShardKind.MAILBOX, shard
        case "project_fence", _, int(shard):
            return ShardKind.SESSION, shard
        case _:
            return None
