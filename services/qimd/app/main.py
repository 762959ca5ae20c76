"""`qimd`: the server's command.

Exit status: 0 after an orderly stop, 1 after the data folder was removed under the server, 2 for a
setting that is refused (the message names the flag).
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from qimd.app.settings import Settings, add_flags, load
from qimd.core.errors import QimError

if TYPE_CHECKING:
    from qimd.app.server import Server

EXIT_FOLDER_LOST: Final = 1
EXIT_REFUSED: Final = 2
_THREAD_SWITCH_INTERVAL_S: Final = 1e-4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    # Before anything imports grpc: its own notices are not records of ours.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    options = vars(_parser().parse_args(arguments))
    command = options.pop("command")
    try:
        settings = load(options, os.environ)
        if command == "check":
            return _check(settings)
        return _dev(settings)
    except QimError as error:
        sys.stderr.write(f"qimd: {error.message}\n")
        return EXIT_REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="qimd", description="The qim messaging server.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"qimd {version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("dev", "run everything in one process, durable in one folder"),
        ("check", "check the settings of `dev`, and start nothing"),
    ):
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        add_flags(command)
    return parser


def version() -> str:
    """The distribution's version."""
    from importlib import metadata

    return metadata.version("qim")


def _check(settings: Settings) -> int:
    sys.stdout.write(f"the settings are good; data would be in {settings.data.absolute()}\n")
    return 0


def _dev(settings: Settings) -> int:
    import asyncio

    from qimd.telemetry.logs import configure

    console = {"json": False, "console": True}.get(settings.log_format)
    configure(level=settings.log_level, console=console)
    # The engine's threads hand rows over one by one. Fetching 500 beside a busy event loop
    # took 200 ms and more at the default interval of 5 ms, and about 20 ms at 0.1 ms.
    sys.setswitchinterval(_THREAD_SWITCH_INTERVAL_S)
    return asyncio.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    import asyncio

    from qimd.app.server import open_server, watch_signals

    stopped = asyncio.Event()
    starting = asyncio.current_task()

    def stop() -> None:
        stopped.set()
        if starting is not None:
            # A start that waits for something must not have to succeed before it can be given up.
            starting.cancel()

    watch_signals(stop)
    try:
        async with open_server(settings) as server:
            starting = None
            _announce(settings, server)
            ends = (stopped, server.folder_lost)
            waits = [asyncio.ensure_future(end.wait()) for end in ends]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if server.folder_lost.is_set():
                return EXIT_FOLDER_LOST
    except asyncio.CancelledError:
        if not stopped.is_set():
            raise
    return 0


def _announce(settings: Settings, server: "Server") -> None:
    from qimd.app.banner import banner, dev_token, write_ready_file

    if settings.ready_file is not None:
        write_ready_file(settings.ready_file, server.credentials)
    # A token may stand on a terminal, never in a file that output was sent to.
    token = dev_token(server.credentials) if sys.stdout.isatty() else ""
    text = banner(
        version(), server.credentials, server.folder, ephemeral=settings.ephemeral, token=token
    )
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
