"""From a plan that fails to the smallest plan that still fails, by taking parts away.

Delta debugging over the plan's data: halves of the strikes and deeds first, then one by one, then
the weather's faults, then servers, tenants and the rest of the world's shape. A smaller plan counts
if it fails in the same way: its sentence has the same shape (`kind_of`), whatever its numbers. The
whole is bounded by runs, since a person waits for it.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from tests.sim.plan import Fate, Plan

T = TypeVar("T")

RUNS_MAX: Final = 400
"""About a minute: what a person waits for the shortest story of a failure."""


def kind_of(failure: str) -> str:
    """A failure without its names and numbers."""
    return re.sub(r"[a-z]?\d[\w./]*|\[.*\]", "#", failure)[:80]


@dataclass(slots=True)
class Shrinker:
    """`fails` runs a plan and gives its failure, empty if it holds."""

    fails: Callable[[Plan], str]
    kind: str
    runs: int = 0

    def smallest(self, plan: Plan) -> Plan:
        """A plan from which nothing more can be taken, within the bound of runs."""
        before = None
        while before != plan and self.runs < RUNS_MAX:
            before = plan
            for smaller in (self._fewer_strikes, self._fewer_deeds, self._calmer, self._narrower):
                plan = smaller(plan)
        return plan

    def _still(self, plan: Plan) -> bool:
        if self.runs >= RUNS_MAX:
            return False
        self.runs += 1
        return kind_of(self.fails(plan)) == self.kind

    def _fewer_strikes(self, plan: Plan) -> Plan:
        strikes = self._fewer(plan.strikes, lambda left: replace(plan, strikes=left))
        return replace(plan, strikes=strikes)

    def _fewer_deeds(self, plan: Plan) -> Plan:
        deeds = self._fewer(plan.deeds, lambda left: replace(plan, deeds=left))
        return replace(plan, deeds=deeds)

    def _fewer(self, whole: tuple[T, ...], made: Callable[[tuple[T, ...]], Plan]) -> tuple[T, ...]:
        """The items that are needed: first by halves, then by ever smaller parts."""
        size = max(1, len(whole) // 2)
        while whole:
            start = 0
            while start < len(whole):
                left = whole[:start] + whole[start + size :]
                if self._still(made(left)):
                    whole = left
                else:
                    start += size
            if size == 1:
                break
            size //= 2
        return whole

    def _calmer(self, plan: Plan) -> Plan:
        for fate, _ in plan.weather.rates:
            rates = tuple(one for one in plan.weather.rates if one[0] is not fate)
            calmer = replace(plan, weather=replace(plan.weather, rates=rates))
            if self._still(calmer):
                plan = calmer
        return plan

    def _narrower(self, plan: Plan) -> Plan:
        for narrower in _narrower_shapes(plan):
            if self._still(narrower):
                plan = narrower
        return plan


def _narrower_shapes(plan: Plan) -> Iterator[Plan]:
    shape = plan.shape
    last = shape.nodes - 1
    if last and all(strike.node < last for strike in plan.strikes):
        yield replace(plan, shape=replace(shape, chunks=shape.chunks[:last]))
    if shape.mailbox_shards > 1:
        yield replace(plan, shape=replace(shape, mailbox_shards=1))
    if shape.writer_shards > 1:
        yield replace(plan, shape=replace(shape, writer_shards=1))
    if shape.torn:
        yield replace(plan, shape=replace(shape, torn=False))
    if shape.tenants > 1 and all(deed.tenant == 0 for deed in plan.deeds):
        yield replace(plan, shape=replace(shape, tenants=1))
    last = shape.conversations - 1
    if last and all(deed.conversation < last for deed in plan.deeds):
        fewer = replace(shape, conversations=last)
        yield replace(plan, shape=fewer, members=plan.members[:last])


def described(plan: Plan) -> Iterator[str]:
    """A plan as a person reads it."""
    shape = plan.shape
    yield (
        f"world    {shape.nodes} servers (recipients a record: "
        f"{', '.join(map(str, shape.chunks))}), {shape.writer_shards} writer and "
        f"{shape.mailbox_shards} mailbox shards, {shape.tenants} tenants, {shape.users} users, "
        f"{shape.conversations} conversations"
        + (", torn mailbox steps" if shape.torn else "")
        + (", produces by topic id" if shape.by_id else "")
    )
    rates = [f"{fate.value} {rate:.1%}" for fate, rate in plan.weather.rates if rate]
    yield f"weather  {', '.join(rates) or 'calm'}" + (
        f" (up to {plan.weather.delay_s} s)" if Fate.DELAY in dict(plan.weather.rates) else ""
    )
    for strike in plan.strikes:
        yield f"blow     {strike}"
    for deed in plan.deeds:
        yield f"deed     {deed}"
