"""Which jobs the writer thread takes into its next transaction.

A step of the mailbox may write 16,384 rows, a renewal of a lease one. In one line, behind the steps
of a group of 100,000, renewals were measured to wait beyond the self-fence deadline, and every
shard of the process stopped; a tenant's SENDs waited a second for another tenant's group. So light
jobs have a line of their own, and the two lines take turns: a light job waits for one heavy
transaction at most, and light ones never keep a heavy one out for more than one of theirs.

What a client waits for is urgent, and its line takes turns with those two. A transaction of what
follows a message (its dispatch, the mailbox, the session list) takes several times as long as the
commit of one, and a SEND that shared it would be acknowledged only with all of it.

Within a line jobs keep the order of their calls.
"""

from collections import deque
from queue import Empty, SimpleQueue
from typing import Final, Generic, Protocol, TypeVar

JOBS_PER_TRANSACTION_MAX: Final = 256
WEIGHT_PER_TRANSACTION_MAX: Final = 16_384
"""Rows that one transaction takes, beyond its first job: bounds how long that job waits for the
last (0.1 s; on a busy machine, in a mailbox of millions, half a second)."""

LIGHT_WEIGHT_MAX: Final = 1_024
"""Above what a producer's batch (512 records) weighs: they are all light, and so stay in order."""


class Job(Protocol):
    """What is queued."""

    @property
    def weight(self) -> int:
        """About how many rows it writes."""

    @property
    def urgent(self) -> bool:
        """Whether a client waits for it."""


J = TypeVar("J", bound=Job)


class WriteQueue(Generic[J]):
    """Filled by any thread, emptied by one."""

    def __init__(self) -> None:
        self._arrived: SimpleQueue[J | None] = SimpleQueue()
        self._urgent: deque[J] = deque()
        self._light: deque[J] = deque()
        self._heavy: deque[J] = deque()
        self._urgent_turn = True
        self._heavy_turn = False
        self._closed = False

    def put(self, job: J) -> None:
        """Queue a job up."""
        self._arrived.put(job)

    def close(self) -> None:
        """No job comes after this; what is queued is still handed out."""
        self._arrived.put(None)

    def next(self) -> list[J]:
        """The jobs of the next transaction: waits for one; empty once all is done and closed."""
        if not (self._urgent or self._light or self._heavy or self._closed):
            self._sort(self._arrived.get())
        self._sort_arrived()
        return _taken(self._line())

    def _line(self) -> deque[J]:
        """The line whose turn it is; one that is empty lets the others pass."""
        if self._urgent and (self._urgent_turn or not (self._light or self._heavy)):
            self._urgent_turn = False
            return self._urgent
        self._urgent_turn = True
        heavy = bool(self._heavy) and (self._heavy_turn or not self._light)
        self._heavy_turn = not heavy
        return self._heavy if heavy else self._light

    def _sort_arrived(self) -> None:
        while True:
            try:
                self._sort(self._arrived.get_nowait())
            except Empty:
                return

    def _sort(self, job: J | None) -> None:
        if job is None:
            self._closed = True
        elif job.urgent:
            self._urgent.append(job)
        elif job.weight > LIGHT_WEIGHT_MAX:
            self._heavy.append(job)
        else:
            self._light.append(job)


def _taken(line: deque[J]) -> list[J]:
    """The oldest jobs of a line that fit a transaction: at least one, if there is one."""
    batch: list[J] = []
    weight = 0
    while line and len(batch) < JOBS_PER_TRANSACTION_MAX:
        weight += line[0].weight
        if batch and weight > WEIGHT_PER_TRANSACTION_MAX:
            break
        batch.append(line.popleft())
    return batch
