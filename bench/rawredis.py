"""Redis itself: the same entries into such strings, by scripts that do nothing else."""

import json
import time
from collections.abc import Sequence
from typing import Final

import redis

_EACH: Final = """#!lua
for at = 1, #ARGV, 2 do
  local users, seqs = cjson.decode(ARGV[at]), ARGV[at + 1]
  for from = 1, #seqs, 8 do
    local seq = seqs:sub(from, from + 7)
    for _, user in ipairs(users) do redis.call('APPEND', user, seq) end
  end
end
return 0
"""
"""One APPEND an entry."""

_TOGETHER: Final = """#!lua
for at = 1, #ARGV, 2 do
  local users, seqs = cjson.decode(ARGV[at]), ARGV[at + 1]
  for _, user in ipairs(users) do redis.call('APPEND', user, seqs) end
end
return 0
"""
"""One APPEND for all entries that a user has in a batch, which is what the mailbox does."""

Batch = Sequence[tuple[Sequence[str], int]]
"""(recipients, how many records they get) of one script."""


class RawRedis:
    """One client, and a script at a time, as a mailbox shard has."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._client = redis.Redis(host, int(port))
        self._each = self._client.register_script(_EACH)
        self._together = self._client.register_script(_TOGETHER)
        self._seq = 0

    def each_s(self, batches: Sequence[Batch]) -> float:
        """Seconds to append batches, an APPEND an entry. Packing them is not counted."""
        return self._run(self._each, batches)

    def together_s(self, batches: Sequence[Batch]) -> float:
        """The same, an APPEND for all that a user gets in a batch."""
        return self._run(self._together, batches)

    def _run(self, script: "redis.commands.core.Script", batches: Sequence[Batch]) -> float:
        packed = [[part for each in batch for part in self._packed(*each)] for batch in batches]
        began = time.perf_counter()
        for arguments in packed:
            script(args=arguments)
        return time.perf_counter() - began

    def _packed(self, users: Sequence[str], records: int) -> tuple[str, bytes]:
        seqs = range(self._seq, self._seq + records)
        self._seq += records
        return json.dumps(users), b"".join(seq.to_bytes(8, "big") for seq in seqs)

    def writes_s(self, count: int) -> list[float]:
        """Seconds of each of some writes of one small value."""
        times = []
        for number in range(count):
            began = time.perf_counter()
            self._client.set(f"row-{number}", b"x" * 200)
            times.append(time.perf_counter() - began)
        return times

    def close(self) -> None:
        """Drop what was written, and let go."""
        self._client.flushall()
        self._client.close()
