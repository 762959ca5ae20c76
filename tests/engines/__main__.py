"""Install, start and stop the engines of the tests.

    python -m tests.engines install|up|down|status [NAME...]
    python -m tests.engines run [--only NAME,...] COMMAND [ARGUMENT...]
    python -m tests.engines lock

`up` installs what is missing; `run` has all engines, or some, up for a command, tells it where by
the variables that `qimd run` reads, and stops those that it started itself; `lock` writes the lists
of checksums anew. The exit status of `run` is the command's; else it is 1 if an engine is missing.
"""

import os
import subprocess
import sys
from collections.abc import Sequence

from tests.engines import ENGINES, cassandra, kafka, settings
from tests.engines.fleet import Fleet, elsewhere


def run(fleet: Fleet, command: Sequence[str], names: Sequence[str] = ENGINES) -> int:
    """Run a command while engines are up; what ran before goes on after it."""
    before = fleet.addresses()
    try:
        tell(fleet.up(names), fleet.missing())
        return subprocess.run(command, check=False, env=os.environ | settings()).returncode
    finally:
        fleet.down([name for name in ENGINES if name not in before])


def tell(addresses: dict[str, str], missing: dict[str, str]) -> None:
    for name in ENGINES:
        if elsewhere(name):
            print(f"{name:<10} given by QIM_TEST_{name.upper()}")
        elif name in addresses:
            print(f"{name:<10} {addresses[name]}")
        else:
            print(f"{name:<10} {missing.get(name, 'does not run')}")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case ["run", "--only", only, _, *_] if set(names := only.split(",")) <= set(ENGINES):
            return run(Fleet(), arguments[3:], names)
        case ["run", command, *_] if not command.startswith("-"):
            return run(Fleet(), arguments[1:])
        case ["lock"]:
            for jars in (kafka.JARS, cassandra.JARS):
                jars.renew()
            return 0
        case ["install" | "up" | "down" | "status" as verb, *names] if set(names) <= set(ENGINES):
            return operate(Fleet(), verb, names or ENGINES)
        case _:
            print(__doc__)
            return 2


def operate(fleet: Fleet, verb: str, names: Sequence[str]) -> int:
    match verb:
        case "install":
            failed = fleet.install(names)
            for name, why in failed.items():
                print(f"{name}: {why}")
            return 1 if failed else 0
        case "down":
            for name in fleet.down(names):
                print(f"{name:<10} stopped")
            return 0
        case "up":
            addresses = fleet.up(names)
        case _:
            addresses = fleet.addresses()
    tell(addresses, fleet.missing())
    return 0 if all(name in addresses or elsewhere(name) for name in names) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
