"""Where the owner of a shard is called: the holder of its lease, remembered until that was wrong.

A lease is a belief, and so is an address made from it: whoever is called there and does not own the
shard says NOT_OWNER. The caller then forgets the address and asks again.
"""

import asyncio
from typing import Final

from qimd.app.hops.failures import Elsewhere
from qimd.app.hops.owner import address_of
from qimd.core.errors import QimError
from qimd.ports.lease import LeasePort
from qimd.ports.runtime import Runtime
from qimd.ports.store import ShardKind
from qimd.telemetry.logs import logger

_log = logger("hops")

LOOK_INTERVAL_S: Final = 0.2
"""Between two looks at one shard's lease, however many callers wait for it."""

LOOK_TIMEOUT_S: Final = 2.0
"""A lease store that has not answered by then is asked anew."""


class Directory:
    """Addresses by kind and number of shard. All looks are single-flight, and outlive callers."""

    def __init__(self, lease: LeasePort, runtime: Runtime) -> None:
        self._lease = lease
        self._runtime = runtime
        self._places: dict[tuple[ShardKind, int], _Place] = {}

    def known(self, kind: ShardKind, shard: int) -> str:
        """The remembered address. Raises Elsewhere if there is none; `look` finds one."""
        return _called(self._place(kind, shard).address, kind, shard)

    async def look(self, kind: ShardKind, shard: int) -> str:
        """The address as the lease has it now. Raises Elsewhere if nobody can be called."""
        look = self.begin_look(kind, shard)
        await look.done.wait()
        # What this look found: the address may have been tried, and forgotten, by another since.
        return _called(look.address, kind, shard)

    def begin_look(self, kind: ShardKind, shard: int) -> "Look":
        """Have the lease looked at, if it is not being looked at already."""
        place = self._place(kind, shard)
        if place.look is None:
            place.look = Look()
            self._runtime.spawn(self._look(place, place.look, kind, shard), "hop-directory")
        return place.look

    def forget(self, kind: ShardKind, shard: int, address: str) -> None:
        """The address was wrong, unless another one was found since."""
        place = self._place(kind, shard)
        if place.address == address:
            place.address = ""

    def forget_all(self, address: str) -> None:
        """Nobody answers at the address any more, whichever shard it was called for."""
        for place in self._places.values():
            if place.address == address:
                place.address = ""

    def _place(self, kind: ShardKind, shard: int) -> "_Place":
        return self._places.setdefault((kind, shard), _Place())

    async def _look(self, place: "_Place", look: "Look", kind: ShardKind, shard: int) -> None:
        try:
            now_s = self._runtime.monotonic_s()
            if now_s < place.next_look_s:
                await self._runtime.sleep(place.next_look_s - now_s)
            place.next_look_s = self._runtime.monotonic_s() + LOOK_INTERVAL_S
            view = await self._runtime.wait_for(self._lease.view(kind, shard), LOOK_TIMEOUT_S)
            place.address = address_of(view.holder)
        except (QimError, TimeoutError) as error:
            # What is remembered stays: an owner does not move because the lease store is away.
            _log.warning("a lease can't be looked at", kind=kind.value, shard=shard, error=error)
        finally:
            place.look = None
            look.address = place.address
            look.done.set()


class Look:
    """One look at a lease, for all who wait for it."""

    __slots__ = ("address", "done")

    def __init__(self) -> None:
        self.address = ""
        self.done = asyncio.Event()


class _Place:
    """What is known of one shard."""

    __slots__ = ("address", "look", "next_look_s")

    def __init__(self) -> None:
        self.address = ""
        self.next_look_s = 0.0
        self.look: Look | None = None


def _called(address: str, kind: ShardKind, shard: int) -> str:
    """The address. Raises Elsewhere if it is none."""
    if not address:
        raise Elsewhere(f"nobody who can be called owns {kind.value} shard {shard}")
    return address
