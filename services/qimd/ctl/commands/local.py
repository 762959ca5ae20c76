"""What needs no server: error codes, tokens, shell completion, settings."""

from pathlib import Path
from typing import Final

import click

from qimd.core.errors import ERRORS, ErrorCode
from qimd.ctl.credentials import Credentials, Signer, mint, read_key
from qimd.ctl.options import DEVICE_DEFAULT, TOKEN_LIFE_S, Options, shared
from qimd.ctl.output import Column, Row

_ERROR: Final = (
    Column("code"),
    Column("number"),
    Column("grpc_status", "gRPC status"),
    Column("retryable"),
    Column("what_happened"),
    Column("what_to_do"),
)


def _complete_code(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [code.name for code in ERRORS if code.name.startswith(incomplete.upper())]


@click.command()
@click.argument("code", required=False, shell_complete=_complete_code)
@shared(connection=False)
@click.pass_obj
def explain(options: Options, code: str | None) -> None:
    """Say what an error CODE means and what to do; without one, list them all."""
    if code is None:
        options.out.rows(_ERROR[:4], [_error_row(each) for each in ERRORS])
        return
    options.out.record(_ERROR, _error_row(_code(code)))


def _code(text: str) -> ErrorCode:
    wanted = text.upper().replace("-", "_").removeprefix("ERROR_CODE_")
    names = {code.name: code for code in ERRORS} | {str(int(code)): code for code in ERRORS}
    if wanted in names:
        return names[wanted]
    from difflib import get_close_matches

    near = get_close_matches(wanted, [code.name for code in ERRORS], n=3, cutoff=0.4)
    hint = f" Did you mean {' or '.join(near)}?" if near else " `qimctl explain` lists them all."
    raise click.BadParameter(f"there is no error code {text!r}.{hint}", param_hint="CODE")


def _error_row(code: ErrorCode) -> Row:
    entry = ERRORS[code]
    return {
        "code": code.name,
        "number": int(code),
        "grpc_status": entry.grpc_status,
        "retryable": entry.retryable,
        "what_happened": entry.what_happened,
        "what_to_do": entry.what_to_do,
    }


@click.command()
@click.option("--user", required=True, metavar="ID", help="The token's user.")
@click.option("--device", default=DEVICE_DEFAULT, show_default=True, metavar="ID")
@click.option(
    "--life",
    "life_s",
    type=click.IntRange(1, 24 * 3600),
    default=TOKEN_LIFE_S,
    show_default=True,
    metavar="SECONDS",
)
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="PEM file of the tenant's Ed25519 key; else the data folder's key signs.",
)
@click.option("--key-id", metavar="ID", help="What the tenant calls that key.")
@shared()
@click.pass_obj
def token(
    options: Options, user: str, device: str, life_s: int, key: Path | None, key_id: str | None
) -> None:
    """Make an access token: with a tenant's key, or, for development, of the data folder's."""
    if (key is None) != (key_id is None):
        raise click.UsageError("--key and --key-id go together")
    signer: Credentials | Signer
    if key is not None and key_id is not None:
        signer = Signer(options.the_tenant(), key_id, read_key(key))
    else:
        signer = options.the_credentials("Making a token")
    made = mint(signer, user, device, life_s)
    if options.output == "table":
        options.out.text(made)
        return
    row: Row = {"token": made, "tenant": signer.tenant, "user": user, "device": device}
    options.out.record((Column("token"),), row)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash  eval "$(qimctl completion bash)"
    zsh   eval "$(qimctl completion zsh)"
    fish  qimctl completion fish | source
    """  # noqa: D301 - the mark is the character itself, not a backslash and a letter
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"there is no completion for {shell}")
    root = ctx.find_root()
    # `source_vars` and the template alone: `source()` runs bash to look at its version.
    script = kind(root.command, {}, "qimctl", "_QIMCTL_COMPLETE")
    click.echo(script.source_template % script.source_vars())


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def config(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Check or show a server's settings: `config check`, `config show --origin`.

    The server's own command of the same installation answers: see `qimd config --help`.
    """
    import subprocess
    import sys

    command = [sys.executable, "-m", "qimd.app.main", "config", *arguments]
    ctx.exit(subprocess.run(command, check=False).returncode)  # noqa: S603 - our own program


COMMANDS: Final[tuple[click.Command, ...]] = (explain, token, completion, config)
