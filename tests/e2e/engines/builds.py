"""`qimd` with one thing changed, for what a healthy server never does. All else is the real server.

As a script it is `qimd` itself. QIM_TEST_BUILD names the changes, QIM_TEST_SCENE the folder through
which the test throws switches (`throw`) and is told what happened (`journal`).
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from hashlib import sha1
from pathlib import Path
from typing import Any, Final

from aetcd import Client as EtcdClient

import qimd.adapters.redis.conversations as redis_conversations
import qimd.app.main
import qimd.app.run
import qimd.mailbox.logic as mailbox_logic
import qimd.writer.shard as writer_shard
from qimd.adapters.redis.scripts import Script
from qimd.app.hops.router import Router
from qimd.app.runtime import AsyncioRuntime
from qimd.core.lease import Term
from qimd.core.outcome import Applied, Outcome, Unknown
from qimd.ports.data import Backends
from qimd.ports.log import ProduceRecord

# --- what the test and the server tell one another --------------------------------------------


def throw(scene: Path, switch: str, *, on: bool = True) -> None:
    """Throw a build's switch: it acts from its next step on."""
    if on:
        (scene / switch).touch()
    else:
        (scene / switch).unlink()


def step_clock(scene: Path, offset_ms: int) -> None:
    """How far from the system's a build's wall clock is from now on."""
    new = scene / f"{_CLOCK}.new"
    new.write_text(str(offset_ms))
    new.replace(scene / _CLOCK)


def journal(scene: Path) -> list[dict[str, Any]]:
    """What the builds noted, in order."""
    path = scene / "journal"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


_CLOCK: Final = "clock"
_LOOK_S: Final = 0.05


def _scene() -> Path:
    return Path(os.environ["QIM_TEST_SCENE"])


def _thrown(switch: str) -> bool:
    return (_scene() / switch).exists()


def _note(**line: object) -> None:
    with (_scene() / "journal").open("a") as file:
        file.write(json.dumps(line) + "\n")


class _Around:
    """A port's adapter, but for what a subclass does itself."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


# --- the changes ------------------------------------------------------------------------------


class _Noted(_Around):
    """Conversations whose fenced steps leave a line each: which, under which epoch, of whom, when
    it began, and how it came out.
    """

    async def commit(self, step: Any) -> Outcome[Any]:
        began = _Begun("commit", step.epoch)
        return began.noted(step.key, await self._inner.commit(step))

    async def claim(self, shard: int, epoch: int, key: Any) -> Outcome[Any]:
        began = _Begun("claim", epoch)
        return began.noted(key, await self._inner.claim(shard, epoch, key))

    async def advance(self, shard: int, epoch: int, progress: Sequence[Any]) -> Sequence[Any]:
        began = _Begun("advance", epoch)
        outcomes = await self._inner.advance(shard, epoch, progress)
        for one, outcome in zip(progress, outcomes, strict=True):
            began.noted(one.key, outcome)
        return outcomes  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class _Begun:
    """A fenced step that is under way."""

    step: str
    epoch: int
    began_s: float = field(default_factory=time.monotonic)

    def noted(self, key: Any, outcome: Outcome[Any]) -> Outcome[Any]:
        _note(**asdict(self), room=key.conversation, outcome=type(outcome).__name__)
        return outcome


class _DiesBeforeProgress(_Around):
    """SIGKILL by its own hand where every dispatch is durable and no progress is stored yet."""

    async def advance(self, shard: int, epoch: int, progress: Sequence[Any]) -> Sequence[Any]:
        if _thrown("die"):
            _note(step="died", rooms=[one.key.conversation for one in progress])
            os.kill(os.getpid(), signal.SIGKILL)
        return await self._inner.advance(shard, epoch, progress)  # type: ignore[no-any-return]


class _HalfDispatches(_Around):
    """A log that takes the first record of a batch, and none of the others; of one alone, none."""

    async def open_producer(self) -> Any:
        return _HalfProducer(await self._inner.open_producer())


class _HalfProducer(_Around):
    async def produce(self, batch: Sequence[ProduceRecord]) -> Sequence[Outcome[None]]:
        if not _thrown("half"):
            return await self._inner.produce(batch)  # type: ignore[no-any-return]
        taken = await self._inner.produce(batch[:1]) if len(batch) > 1 else []
        _note(step="half", records=len(batch))
        return [*taken, *[Unknown("it went into the void")] * (len(batch) - len(taken))]


class _DeadlyLog(_Around):
    """SIGKILL by its own hand where what was committed is to be dispatched, and nothing was yet."""

    async def open_producer(self) -> Any:
        return _DeadlyProducer(await self._inner.open_producer())


class _DeadlyProducer(_Around):
    async def produce(self, batch: Sequence[ProduceRecord]) -> Sequence[Outcome[None]]:
        if _thrown("die"):
            _note(step="died", records=len(batch))
            os.kill(os.getpid(), signal.SIGKILL)
        return await self._inner.produce(batch)  # type: ignore[no-any-return]


class _HeldLog(_Around):
    """A log that stands still, where a switch says so, until it is taken back: before it tells its
    ends, behind the opening of a reader, or before a fetch.
    """

    async def watermarks(self, partition: int) -> Any:
        await _hold("ends")
        return await self._inner.watermarks(partition)

    async def open_reader(self, *about: Any) -> Any:
        reader = _HeldReader(await self._inner.open_reader(*about))
        await _hold("reader")
        return reader


class _HeldReader(_Around):
    async def fetch(self, *about: Any) -> Any:
        await _hold("fetch")
        return await self._inner.fetch(*about)


async def _hold(where: str) -> None:
    if _thrown(f"hold-{where}"):
        _note(step="held", where=where)
        await asyncio.to_thread(_stand_still, f"hold-{where}")


def _stand_still(switch: str) -> None:
    while _thrown(switch):
        time.sleep(_LOOK_S)


class _Kept(_Around):
    """Leases that are told to be kept, whatever the engine said."""

    async def renew(self, *about: Any) -> Outcome[None]:
        await self._inner.renew(*about)
        return Applied(None)


def _believes() -> None:
    """An owner that no self-fence stops, and no answer convinces that it is none any more."""
    Term.may_write = lambda self, now_s: True  # type: ignore[method-assign]
    Term.end = lambda self: None  # type: ignore[method-assign]
    writer_shard.Shard._stale = lambda self: None  # type: ignore[method-assign]
    # Nor does it pass on to its heir what it was refused itself.
    Router._find = _finds_itself  # type: ignore[method-assign]
    Router.moved = lambda self, *about: False  # type: ignore[method-assign]
    _change_ports(lambda ports: replace(ports, lease=_Kept(ports.lease)))


async def _finds_itself(router: Router, *_about: object) -> str:
    return router._address


def _late_keepalives() -> None:
    """Once thrown, leases end while their keepalives are on the way: etcd answers these without an
    error, and with a time to live of 0.
    """
    keep = EtcdClient.refresh_lease

    async def late(client: Any, lease_id: int) -> Any:
        if not _thrown("late"):
            return await keep(client, lease_id)
        await client.revoke_lease(lease_id)
        reply = await keep(client, lease_id)
        _note(step="keepalive", ttl_s=reply.TTL, at_s=time.monotonic())
        return reply

    EtcdClient.refresh_lease = late


def _without_checkpoint_1() -> None:
    """Once thrown, the scripts of the writer's steps compare no epoch."""
    for name in ("_COMMIT", "_CLAIM"):
        fenced: Script = getattr(redis_conversations, name)
        source = fenced.source
        for check in ("shard_is_stale(epochs, writer_shard, epoch)", _HEAD_CHECK):
            assert source.count(f"if {check} then") == 1, check
            source = source.replace(f"if {check} then", "if false then")
        open_to_all = Script(name, source, sha1(source.encode()).hexdigest())
        setattr(redis_conversations, name, _Switched("checkpoint-1-off", fenced, open_to_all))


_HEAD_CHECK: Final = "tonumber(fencing_epoch) > tonumber(epoch)"


class _Switched:
    """The one script or, once its switch is thrown, the other."""

    def __init__(self, switch: str, before: Script, after: Script) -> None:
        self._which = lambda: after if _thrown(switch) else before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._which(), name)


def _without_checkpoint_2() -> None:
    """Once thrown, the mailbox takes no record for stale."""
    real = mailbox_logic.is_stale
    mailbox_logic.is_stale = (  # type: ignore[attr-defined]
        lambda *about: not _thrown("checkpoint-2-off") and real(*about)
    )


def _stepped_clock() -> None:
    """A wall clock that `step_clock` moves; time that passes is real."""
    real = AsyncioRuntime.wall_ms
    AsyncioRuntime.wall_ms = lambda self: real(self) + _offset_ms()  # type: ignore[method-assign]


def _offset_ms() -> int:
    path = _scene() / _CLOCK
    return int(path.read_text()) if path.exists() else 0


_changes: list[Callable[[Backends], Backends]] = []


def _change_ports(change: Callable[[Backends], Backends]) -> None:
    _changes.append(change)


def _conversations(wrapper: type[_Around], ports: Backends) -> Backends:
    return replace(ports, conversations=wrapper(ports.conversations))


BUILDS: Final[dict[str, Callable[[], None]]] = {
    "journal": lambda: _change_ports(partial(_conversations, _Noted)),
    "dies-before-progress": lambda: _change_ports(partial(_conversations, _DiesBeforeProgress)),
    "dies-before-dispatch": lambda: _change_ports(
        lambda ports: replace(ports, log=_DeadlyLog(ports.log))
    ),
    "half-dispatches": lambda: _change_ports(
        lambda ports: replace(ports, log=_HalfDispatches(ports.log))
    ),
    "held-log": lambda: _change_ports(lambda ports: replace(ports, log=_HeldLog(ports.log))),
    "believes": _believes,
    "late-keepalives": _late_keepalives,
    "stepped-clock": _stepped_clock,
    "checkpoint-1-switch": _without_checkpoint_1,
    "checkpoint-2-switch": _without_checkpoint_2,
}


def main() -> int:
    """Be `qimd`, changed."""
    for name in os.environ["QIM_TEST_BUILD"].split(","):
        BUILDS[name]()
    opened = qimd.app.run.open_backends

    @asynccontextmanager
    async def changed(*arguments: Any) -> AsyncIterator[Backends]:
        async with opened(*arguments) as ports:
            yield reduce(lambda so_far, change: change(so_far), _changes, ports)

    qimd.app.run.open_backends = changed
    return qimd.app.main.main()


if __name__ == "__main__":
    sys.exit(main())
