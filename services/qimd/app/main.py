"""`qimd`: the server's command.

Exit status: 0 after an orderly stop, 1 after the data folder was removed under the server, 2 for a
setting that is refused (the message names the flag).
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qimd.app.dev_settings import DevSettings
from qimd.app.run_settings import ENGINES, RunSettings
from qimd.app.settings import add_flags, load
from qimd.core.errors import QimError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from qimd.app.running import Running
    from qimd.app.settings import ProcessSettings

EXIT_FOLDER_LOST: Final = 1
EXIT_REFUSED: Final = 2
_THREAD_SWITCH_INTERVAL_S: Final = 1e-4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    # Before anything imports grpc: its own notices are not records of ours.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    options = vars(_parser().parse_args(arguments))
    command: Callable[[dict[str, Any]], int] = options.pop("run_command")
    try:
        return command(options)
    except QimError as error:
        sys.stderr.write(f"qimd: {error.message}\n")
        return EXIT_REFUSED


# --- the command line -------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="qimd", description="The qim messaging server.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"qimd {version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        under: "argparse._SubParsersAction[argparse.ArgumentParser]",
        name: str,
        text: str,
        run_command: Callable[[dict[str, Any]], int],
        settings: type["ProcessSettings"] | None = None,
    ) -> argparse.ArgumentParser:
        made = under.add_parser(name, help=text, description=text, allow_abbrev=False)
        made.set_defaults(run_command=run_command)
        if settings is not None:
            add_flags(made, settings)
        return made

    add(commands, "dev", "run everything in one process, durable in one folder", _dev, DevSettings)
    add(commands, "check", "check the settings of `dev`, and start nothing", _check, DevSettings)
    add(commands, "run", "run roles on Kafka, Redis, etcd and ScyllaDB", _run, RunSettings)
    topic = add(commands, "topic", "make the dispatch topic that `run` wants", _topic, RunSettings)
    topic.add_argument("--replicas", type=int, default=1, help="of each partition (default 1)")
    secrets = add(commands, "secrets", "make the secrets of a deployment", _secrets)
    secrets.add_argument("file", metavar="FILE", help="where; it must not be there yet")
    text = "look at the settings of `run`, and start nothing"
    config = commands.add_parser("config", help=text, description=text, allow_abbrev=False)
    looks = config.add_subparsers(required=True, metavar="COMMAND")
    add(looks, "check", "whether they are complete and good", _config_check, RunSettings)
    show = add(looks, "show", "each one's value", _config_show, RunSettings)
    show.add_argument("--origin", action="store_true", help="and where it comes from")
    return parser


def version() -> str:
    """The distribution's version."""
    from importlib import metadata

    return metadata.version("qim")


# --- commands that start nothing --------------------------------------------------------------


def _check(options: dict[str, Any]) -> int:
    from qimd.app.engine_access import Access

    settings = load(DevSettings, options, os.environ)
    Access.of(settings, "trace")
    sys.stdout.write(f"the settings are good; data would be in {settings.data.absolute()}\n")
    return 0


def _config_check(options: dict[str, Any]) -> int:
    from qimd.app import secret_file
    from qimd.app.engine_access import Access

    settings = load(RunSettings, options, os.environ)
    secret_file.read(settings.secrets_file)
    for entered in (*ENGINES, "trace"):
        Access.of(settings, entered)
    sys.stdout.write(f"the settings are good, for role {settings.role}\n")
    return 0


def _config_show(options: dict[str, Any]) -> int:
    from qimd.app.settings import shown

    with_origin = bool(options.pop("origin"))
    for line in shown(RunSettings, options, os.environ, with_origin=with_origin):
        sys.stdout.write(f"{line}\n")
    return 0


def _secrets(options: dict[str, Any]) -> int:
    from qimd.app import secret_file

    path = Path(options["file"] or "")
    secret_file.make(path)
    sys.stdout.write(f"{path}: give it to every process as --secrets, and to nobody else\n")
    return 0


def _topic(options: dict[str, Any]) -> int:
    import asyncio

    from qimd.app.profiles import make_topic

    replicas: int = options.pop("replicas")
    settings = load(RunSettings, options, os.environ)
    made = asyncio.run(make_topic(settings, replicas))
    told = f"{settings.mailbox_shards} partitions" if made else "it is there already, and fit"
    sys.stdout.write(f"{settings.dispatch_topic}: {told}\n")
    return 0


# --- servers ----------------------------------------------------------------------------------


def _dev(options: dict[str, Any]) -> int:
    settings = load(DevSettings, options, os.environ)

    def opened() -> "AbstractAsyncContextManager[Running]":
        from qimd.app.server import open_server

        return open_server(settings, version())

    return _serve(settings, opened)


def _run(options: dict[str, Any]) -> int:
    settings = load(RunSettings, options, os.environ)

    def opened() -> "AbstractAsyncContextManager[Running]":
        from qimd.app.run import open_run

        return open_run(settings, version())

    return _serve(settings, opened)


def _serve(
    settings: "ProcessSettings", opened: "Callable[[], AbstractAsyncContextManager[Running]]"
) -> int:
    import asyncio

    from qimd.telemetry.logs import configure

    console = {"json": False, "console": True}.get(settings.log_format)
    configure(level=settings.log_level, console=console)
    # The engine's threads hand rows over one by one. Fetching 500 beside a busy event loop
    # took 200 ms and more at the default interval of 5 ms, and about 20 ms at 0.1 ms.
    sys.setswitchinterval(_THREAD_SWITCH_INTERVAL_S)
    return asyncio.run(_until_stopped(opened))


async def _until_stopped(opened: "Callable[[], AbstractAsyncContextManager[Running]]") -> int:
    import asyncio

    from qimd.app.running import watch_signals

    stopped = asyncio.Event()
    starting = asyncio.current_task()

    def stop() -> None:
        stopped.set()
        if starting is not None:
            # A start that waits for something must not have to succeed before it can be given up.
            starting.cancel()

    watch_signals(stop)
    try:
        async with opened() as running:
            starting = None
            sys.stdout.write(running.banner)
            sys.stdout.flush()
            waits = [asyncio.ensure_future(end.wait()) for end in (stopped, running.lost)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if running.lost.is_set():
                return EXIT_FOLDER_LOST
    except asyncio.CancelledError:
        if not stopped.is_set():
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
