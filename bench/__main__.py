"""`python -m bench [NAME...] [--smoke] [--out FILE]`: run measures, print the table, write JSON."""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench import (
    codec,
    cold_start,
    engine_entries,
    engine_send_ack,
    entries,
    hops,
    machine,
    memory,
    online,
    push,
    send_ack,
)
from bench.harness import Measure, table, write_json

Run = Callable[[Path, bool], Sequence[Measure]]

MEASURES: Final[Mapping[str, Run]] = {
    "codec": lambda _, smoke: codec.run(codec.SMOKE if smoke else codec.Sizes()),
    "push": lambda _, smoke: push.run(push.SMOKE if smoke else push.Sizes()),
    "hops": lambda _, smoke: hops.run(hops.SMOKE if smoke else hops.Sizes()),
    "send_ack": lambda at, smoke: send_ack.run(send_ack.SMOKE if smoke else send_ack.Sizes(), at),
    "online": lambda at, smoke: online.run(online.SMOKE if smoke else online.Sizes(), at),
    "cold_start": lambda at, smoke: cold_start.run(
        cold_start.SMOKE if smoke else cold_start.Sizes(), at
    ),
    "entries": lambda at, smoke: entries.run(entries.SMOKE if smoke else entries.Sizes(), at),
    "engine_send_ack": lambda at, smoke: engine_send_ack.run(
        send_ack.SMOKE if smoke else send_ack.Sizes(), at
    ),
    "engine_entries": lambda at, smoke: engine_entries.run(
        engine_entries.SMOKE if smoke else engine_entries.Sizes(), at
    ),
    "memory": lambda at, smoke: memory.run(memory.SMOKE if smoke else memory.Sizes(), at),
}
OUT: Final = Path("build/bench.json")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named measures, or all."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASURES))
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: whether they run at all")
    parser.add_argument("--out", type=Path, default=OUT, help=f"default {OUT}")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(MEASURES)
    if unknown:
        parser.error(f"no such measure: {', '.join(sorted(unknown))}")
    facts = machine.facts()
    sys.stdout.write(f"{_facts_shown(facts)}\n\n")
    measures: list[Measure] = []
    for name in options.names or MEASURES:
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="qim-bench-") as folder:
            found = MEASURES[name](Path(folder), options.smoke)
        measures += found
        sys.stdout.write(f"{table(found)}\n")
        for each in found:
            if each.note:
                sys.stdout.write(f"    {each.measure}: {each.note}\n")
        sys.stdout.write(f"    ({time.monotonic() - began_s:.0f} s)\n\n")
        sys.stdout.flush()
    write_json(options.out, facts, measures)
    sys.stdout.write(f"{table(measures)}\n\nwritten to {options.out}\n")
    return 0


def _facts_shown(facts: Mapping[str, object]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in facts.items())


if __name__ == "__main__":
    sys.exit(main())
