"""One fuzzed target: `python -m tests.fuzz.child TARGET [libFuzzer's arguments]`.

A process of its own, since the fuzzer takes the process over and never returns.
"""

import shlex
import sys

import atheris

# Whoever reads the bytes is watched, so that an input that takes a new branch is kept. Protobuf's
# parser is C, and not watched: its verdict is seen by the branch that follows it.
with atheris.instrument_imports(include=["qimd", "jwt"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    _, target, *arguments = sys.argv
    # To merge, the fuzzer starts itself anew by its own name, through a shell.
    program = f"{shlex.quote(sys.executable)} -m tests.fuzz.child {target}"
    atheris.Setup([program, *arguments], TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
