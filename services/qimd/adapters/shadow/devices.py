"""Devices in the shadow: each is raised to where the primary has it.

A device's position only rises, so the last state stands for all before it, and one that was missed
is mended by the device's next step.
"""

import asyncio
from typing import Final

from qimd.adapters.shadow.differences import Findings
from qimd.adapters.shadow.shard import RETRY_S
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.core.records import DeviceKey
from qimd.ports.mailbox import DeviceState, MailboxStore
from qimd.ports.runtime import Runtime

WAITING_MAX: Final = 20_000
"""Devices that wait for the shadow, at a few hundred bytes each."""

AT_ONCE: Final = 64
"""Raised side by side: each is a round trip of its own."""


class DeviceFollower:
    """See the module."""

    def __init__(self, shadow: MailboxStore, runtime: Runtime, findings: Findings) -> None:
        self._shadow = shadow
        self._runtime = runtime
        self._findings = findings
        self._waiting: dict[DeviceKey, DeviceState] = {}
        self._raising: dict[DeviceKey, DeviceState] = {}
        self._working = False
        self.missed = 0
        """Steps that found no room to wait in."""

    @property
    def waiting(self) -> int:
        """Devices that the shadow has not been raised for."""
        return len(self._waiting) + len(self._raising)

    def follow(self, device: DeviceKey, state: DeviceState) -> None:
        """The primary has the device there. Never blocks."""
        known = self._waiting.get(device)
        if known is None and len(self._waiting) >= WAITING_MAX:
            self.missed += 1
            return
        # Answers of two calls may cross.
        self._waiting[device] = state if known is None else _higher(known, state)
        if not self._working:
            self._working = True
            self._runtime.spawn(self._work(), "mailbox-shadow:devices")

    async def _work(self) -> None:
        try:
            while self._waiting:
                self._raising = {
                    device: self._waiting.pop(device) for device in list(self._waiting)[:AT_ONCE]
                }
                raised = await asyncio.gather(
                    *(self._raise(device, state) for device, state in self._raising.items())
                )
                again = [
                    item for item, done in zip(self._raising.items(), raised, strict=True)
                    if not done
                ]  # fmt: skip
                self._raising = {}
                if again:
                    for device, state in again:
                        self._waiting[device] = _higher(self._waiting.get(device, state), state)
                    await self._runtime.sleep(RETRY_S)
        finally:
            self._working = False

    async def _raise(self, device: DeviceKey, state: DeviceState) -> bool:
        """Whether it is done with: raised, or found to differ."""
        # A device that is new to the shadow begins where the primary's is acknowledged.
        outcome: Outcome[DeviceState] = await self._shadow.open_device(device, state.acked)
        if isinstance(outcome, Applied) and outcome.value != state:
            outcome = await self._shadow.ack(device, state.acked, state.handed)
        match outcome:
            case Applied(found):
                self._findings.compare(f"ack({device})", state, found)
                return True
            case NotApplied(refusal) if refusal not in (Refusal.UNREACHABLE, Refusal.NO_SPACE):
                self._findings.differ(f"ack({device})", repr(state), repr(outcome))
                return True
            case _:
                return False


def _higher(one: DeviceState, other: DeviceState) -> DeviceState:
    return DeviceState(max(one.acked, other.acked), max(one.handed, other.handed))
