"""python -m compat: the table message × implementation, and the suite's other commands.

    python -m compat [--json]                 drive upb, buf (Go) and protobuf-es over all fixtures
    python -m compat run [--json] -- COMMAND  drive any other implementation (compat/protocol.py)
    python -m compat lock [--update]          hold schema.lock against the generated code
    python -m compat update [--change-released-goldens]
                                              make the fixtures anew

Exit status: 0 all equal, 1 something differs, 2 it could not be run.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from compat import cases, fixtures, lock, vectors
from compat.judge import Difference, Report, known_differences, run, run_own
from compat.messages import descriptors
from compat.protocol import ProtocolError

RELEASE = "0.1.0"
"""The release whose fixtures `update` makes."""


def _fixtures() -> list[fixtures.Fixture]:
    return [case for release in fixtures.releases() for case in fixtures.load(release)]


def _unargued(reports: Sequence[Report]) -> list[Difference]:
    known = known_differences()
    return [
        difference
        for report in reports
        for difference in report.differences
        if (difference.implementation, difference.message, difference.case) not in known
    ]


def _show(reports: Sequence[Report], as_json: bool) -> int:
    names = list(descriptors())
    unargued = _unargued(reports)
    if as_json:
        rows = [
            {"message": name, "results": {report.name: report.result(name) for report in reports}}
            for name in names
        ]
        differences = [vars(difference) for difference in unargued]
        print(json.dumps({"messages": rows, "differences": differences}, indent=1))
    else:
        width = max(map(len, names))
        print("message".ljust(width), *(report.name.ljust(12) for report in reports))
        for name in names:
            print(name.ljust(width), *(report.result(name).ljust(12) for report in reports))
        print("cases".ljust(width), *(str(sum(r.cases.values())).ljust(12) for r in reports))
        for difference in unargued:
            print(
                f"differs: {difference.implementation} {difference.message} {difference.case}: "
                f"{difference.detail}"
            )
    not_run = [name for name in names for report in reports if not report.cases.get(name)]
    for name in dict.fromkeys(not_run):
        print(f"no case ran: {name}", file=sys.stderr)
    return 1 if unargued or not_run else 0


def _lock(update: bool) -> int:
    if update:
        lock.LOCK.write_text(lock.text(lock.current()), encoding="utf-8")
        return 0
    problems = lock.check()
    for problem in problems:
        print(f"schema.lock: {problem}")
    return 1 if problems else 0


def _frozen() -> int:
    changed = [path for release in fixtures.releases() for path in fixtures.tampered(release)]
    for path in changed:
        print(f"{path} is not what its release's manifest says: fixtures change by `update` alone")
    return 1 if changed else 0


def _update(may_change: bool) -> int:
    files = {
        path: data
        for fixture in cases.all_fixtures()
        for path, data in fixture.files(RELEASE).items()
    }
    for name, data in vectors.files().items():
        files[(vectors.folder(RELEASE) / name).relative_to(fixtures.ROOT)] = data
    old = fixtures.tree(fixtures.ROOT, RELEASE)
    changed = [path for path, data in old.items() if files.get(path) != data]
    if changed and not may_change:
        print(f"{len(changed)} fixtures of {RELEASE} would change, such as {changed[0]}.")
        print("They are a promise to others; if you mean it: --change-released-goldens")
        return 1
    print(f"{fixtures.write(files, RELEASE)} of {len(files)} files changed")
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run one command and give the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m compat", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    commands = parser.add_subparsers(dest="command")
    runner = commands.add_parser("run", help="drive another implementation")
    runner.add_argument("--json", action="store_true", help="print JSON")
    runner.add_argument("argv", nargs="+", metavar="COMMAND", help="what to start, after --")
    locker = commands.add_parser("lock", help="hold schema.lock against the generated code")
    locker.add_argument("--update", action="store_true", help="write it")
    updater = commands.add_parser("update", help="make the fixtures anew")
    updater.add_argument("--change-released-goldens", action="store_true")
    options = parser.parse_args(arguments)

    try:
        if options.command == "run":
            return _show([run(options.argv, _fixtures())], options.json)
        if options.command == "lock":
            return _lock(options.update)
        if options.command == "update":
            return _update(options.change_released_goldens)
        return _lock(update=False) or _frozen() or _show(run_own(_fixtures()), options.json)
    except (ProtocolError, OSError) as error:
        print(f"compat: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
