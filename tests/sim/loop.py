"""A seeded event loop with virtual time, on which whole processes run, stop and die.

The problem: a test that waits for real time is slow, and one whose tasks run in the order in which
the machine happens to wake them finds a bug once and never again. Here every choice comes from one
seeded generator, time is a number that jumps to the next timer once nothing is ready, and nothing
depends on the machine: no thread, no clock, no address, no hash.

Handles belong to processes. Within a process they run first-in first-out, as on any real event
loop (picking at random from one ready queue would break promises that asyncio makes); which
process moves next is drawn. A handle finds its process through a context variable, which tasks
inherit: so a reply that an engine gives wakes its caller in the caller's own queue.

Two faults live here, because only a loop can make them. A killed process never runs again: its
frames stay referenced until the world ends, since dropping a task would run its `finally`, which
no SIGKILL does. A stopped one misses time: what arrives meanwhile waits in its queue, and so do
its timers, which come behind that at its resumption, as in a real loop's first turn after SIGCONT.
"""

import asyncio
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

_PROCESS: contextvars.ContextVar["Process"] = contextvars.ContextVar("process")

STEPS_MAX: Final = 150_000
"""A world takes some thousands of steps; one that takes this many spins."""

STEP_S: Final = 1e-6
"""What a step takes. Not nothing: a wait that is shorter than a float can tell must pass, too."""


class Stuck(Exception):
    """The world spins, or waits for what can never come."""


class Handle:
    """A callback that waits for its turn, or for its time."""

    __slots__ = ("args", "callback", "context", "live", "when_s")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[object, ...],
        context: contextvars.Context,
        when_s: float = 0.0,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.when_s = when_s
        self.live = True

    def cancel(self) -> None:
        self.live = False

    def cancelled(self) -> bool:
        return not self.live

    def when(self) -> float:
        return self.when_s


class Process:
    """Something that runs by itself: a server, a client, an engine."""

    def __init__(self, loop: "SimLoop", name: str) -> None:
        self.name = name
        self.ready: deque[Handle] = deque()
        self.context = contextvars.copy_context()
        self.context.run(_PROCESS.set, self)
        self.tasks: list[asyncio.Task[Any]] = []
        self.running = True
        self.dead = False
        self.listed = False
        self._late: list[Handle] = []
        self._loop = loop
        loop.processes.append(self)

    def spawn(self, coro: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        """Run a coroutine as a task of this process."""
        task = self._loop.create_task(coro, name=name, context=self.context)
        if len(self.tasks) > 64:
            self.tasks = [one for one in self.tasks if not one.done()]
        self.tasks.append(task)
        return task

    def kill(self) -> None:
        """As SIGKILL: nothing of it runs any more, and nothing is unwound."""
        self.dead = True
        self.stop()

    def stop(self) -> None:
        """As SIGSTOP."""
        self.running = False
        if self.listed:
            self._loop.unlist(self)

    def resume(self) -> None:
        """As SIGCONT: what arrived first, then the timers that came due."""
        if self.dead or self.running:
            return
        self.running = True
        late, self._late = self._late, []
        self.ready.extend(handle for handle in late if handle.live)
        self._loop.enlist(self)

    def due(self, handle: Handle) -> None:
        """A timer of the process is due."""
        if self.running:
            self.ready.append(handle)
            self._loop.enlist(self)
        else:
            self._late.append(handle)


class SimLoop(asyncio.AbstractEventLoop):
    """What asyncio needs of a loop, in virtual time. `now_s` begins at 0."""

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.steps = 0
        self.processes: list[Process] = []
        self.complaints: list[str] = []
        self._draw = random.Random(seed).random
        self._runnable: list[Process] = []
        self._timers: list[tuple[float, int, Handle]] = []
        self._order = 0
        self._over = False
        self.world = Process(self, "world")

    # --- what runs next ---

    def enlist(self, process: Process) -> None:
        """The process may have something to run."""
        if process.running and process.ready and not process.listed:
            process.listed = True
            self._runnable.append(process)

    def unlist(self, process: Process) -> None:
        """It has nothing, or may not."""
        process.listed = False
        self._runnable.remove(process)

    def run_until(self, future: "asyncio.Future[Any]") -> None:
        """Run until the future is done. Raises Stuck if that can't happen any more."""
        asyncio._set_running_loop(self)
        try:
            self._run_steps(future)
        finally:
            asyncio._set_running_loop(None)

    def _run_steps(self, future: "asyncio.Future[Any]") -> None:
        # One flat loop: a bare step is a tenth of a run, and a call for each would be a part of it.
        runnable, draw, done = self._runnable, self._draw, future.done
        while not done():
            count = len(runnable)
            if not count:
                self._advance()
                continue
            index = int(draw() * count) if count > 1 else 0
            process = runnable[index]
            ready = process.ready
            handle = ready.popleft()
            if not ready:
                process.listed = False
                runnable[index] = runnable[-1]
                runnable.pop()
            if handle.live:
                self.steps += 1
                self.now_s += STEP_S
                handle.context.run(handle.callback, *handle.args)
                if self.steps > STEPS_MAX:
                    raise Stuck(f"{self.steps} steps, and the world does not come to rest")

    def _advance(self) -> None:
        """Jump to the next timer, and queue all that are due then."""
        timers = self._timers
        while timers and not timers[0][2].live:
            heapq.heappop(timers)
        if not timers:
            raise Stuck("nothing is ready and no timer is set")
        self.now_s = max(self.now_s, timers[0][0])
        while timers and timers[0][0] <= self.now_s:
            handle = heapq.heappop(timers)[2]
            if handle.live:
                handle.context.get(_PROCESS, self.world).due(handle)

    # --- asyncio's side ---

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: object,
        context: contextvars.Context | None = None,
    ) -> Handle:
        if context is None:
            context = contextvars.copy_context()
        handle = Handle(callback, args, context)
        if self._over:
            return handle
        process = context.get(_PROCESS, self.world)
        process.ready.append(handle)
        if not process.listed:
            self.enlist(process)
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: object,
        context: contextvars.Context | None = None,
    ) -> Handle:
        if context is None:
            context = contextvars.copy_context()
        handle = Handle(callback, args, context, when)
        self._order += 1
        if not self._over:
            heapq.heappush(self._timers, (when, self._order, handle))
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: object,
        context: contextvars.Context | None = None,
    ) -> Handle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def time(self) -> float:
        return self.now_s

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> "asyncio.Task[Any]":
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._over

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.complaints.append(str(context.get("message", "")))

    # --- the end of a world ---

    def close(self) -> None:
        """Let go of everything. What is unwound now finds a loop that does nothing any more."""
        self._over = True
        asyncio._set_running_loop(self)
        try:
            for process in self.processes:
                for task in process.tasks:
                    if not task.done():
                        task._log_destroy_pending = False  # type: ignore[attr-defined]
                        _unwind(task)
                process.tasks.clear()
                process.ready.clear()
        finally:
            asyncio._set_running_loop(None)
        self._timers.clear()


def _unwind(task: "asyncio.Task[Any]") -> None:
    # A dead world's `finally` may await, which can't be any more, or raise what it likes.
    with suppress(Exception):
        task.get_coro().close()
