"""The entry point: the tree of commands, and the one place where failures become exit codes."""

import os
import sys

import click

from qimd.core.errors import QimError
from qimd.ctl.commands import admin, local, operate, shadow, user
from qimd.ctl.exits import EPILOG, INTERRUPTED, MISSING, REFUSED, Missing, exit_code, explained
from qimd.ctl.options import Options, shared
from qimd.ctl.output import note


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="qim", message="%(prog)s %(version)s")
@shared(top=True)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Talk to a qim server: administer it, send and read as a user, follow an event.

    Data goes to standard output, everything else to standard error. Without --address the server of
    the data folder is meant (./qim-data, where `qimd dev` leaves its credentials).
    """
    ctx.ensure_object(Options)


for module in (admin, user, operate, shadow, local):
    for command in module.COMMANDS:
        cli.add_command(command)


def main() -> None:
    """Run qimctl and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; its exit code."""
    # Standard error is for people: what gRPC's core notes of a connection's end is not for them.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        result = cli.main(arguments, prog_name="qimctl", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        note("interrupted")
        return INTERRUPTED
    except Missing as error:
        note(f"error: {error.what}\n  what to do: {error.what_to_do}")
        return MISSING
    except QimError as error:
        note(explained(error))
        return exit_code(error)
    except BrokenPipeError:
        # The reader has seen enough (`| head`); a second complaint at exit helps nobody.
        sys.stderr.close()
        return REFUSED
