"""Options that every command takes, before its name or after it; what they resolve to.

A flag wins over the environment, the environment over the credentials file of the data folder.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from qimd.core.address import address
from qimd.ctl.credentials import DATA_DEFAULT, FILE_NAME, Credentials, load, mint
from qimd.ctl.exits import Missing
from qimd.ctl.output import Output

if TYPE_CHECKING:
    # gRPC takes 100 ms to import: only a command that talks to a server does.
    import grpc

    from qimd.client import AdminClient, Client, ClientConfig

F = TypeVar("F", bound=Callable[..., Any])

TOKEN_LIFE_S: Final = 3600
DEVICE_DEFAULT: Final = "qimctl"


@dataclass
class Options:
    """The shared options of one invocation. None: not given."""

    address: str | None = None
    data: Path | None = None
    tenant: str | None = None
    admin_token: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    tls_ca: Path | None = None
    timeout_s: float = 10.0
    output: str = "table"
    raw: bool = False
    _credentials: Credentials | None = field(default=None, repr=False)

    @property
    def out(self) -> Output:
        """Where data goes."""
        return Output(self.output, raw=self.raw)

    @property
    def credentials_path(self) -> Path:
        """Where the credentials are looked for."""
        return (self.data or DATA_DEFAULT) / FILE_NAME

    def credentials(self) -> Credentials | None:
        """The data folder's credentials, if there are any."""
        if self._credentials is None:
            self._credentials = load(self.credentials_path)
        return self._credentials

    def the_credentials(self, needed_for: str) -> Credentials:
        """The data folder's credentials. Raises Missing."""
        found = self.credentials()
        if found is None:
            raise Missing(
                f"{needed_for} needs credentials, and there are none in {self.credentials_path}.",
                "Start `qimd dev` here, name its data folder with --data, or give --address with "
                "--token or --admin-token.",
            )
        return found

    def the_address(self) -> str:
        """The server's address. Raises Missing, click.BadParameter."""
        if not self.address:
            return self.the_credentials("Finding the server").address
        try:
            return address(self.address)
        except ValueError as error:
            hint = "--address or QIM_ADDRESS"
            raise click.BadParameter(f"{self.address!r}: {error}.", param_hint=hint) from None

    def the_tenant(self) -> str:
        """The tenant. Raises Missing."""
        return self.tenant or self.the_credentials("Finding the tenant").tenant

    def admin(self) -> "AdminClient":
        """A client on the admin token. Raises Missing."""
        from qimd.client import AdminClient

        token = self.admin_token or self.the_credentials("An administration call").admin_token
        return AdminClient(
            self.the_address(), token, timeout_s=self.timeout_s, credentials=self._tls()
        )

    def client(self, user: str | None, device: str, **config: Any) -> "Client":
        """A device's client: on the given token, or on one minted for the user. Raises Missing."""
        from qimd.client import Client

        address, settings = self.the_address(), self._config(**config)
        if self.token is not None:
            if user is not None:
                raise click.UsageError(
                    "an access token (--token or QIM_TOKEN) says by itself who acts: "
                    "leave it out to act as a named user"
                )
            return Client(address, token=self.token, config=settings)
        if user is None:
            raise click.UsageError("name the user with --user, or give a --token")
        credentials = self.the_credentials("Acting as a user")
        if self.tenant not in (None, credentials.tenant):
            raise Missing(
                f"The credentials sign tokens of tenant {credentials.tenant} alone.",
                "Give a --token of the other tenant.",
            )
        named = user

        async def provider() -> str:
            return mint(credentials, named, device, TOKEN_LIFE_S)

        mint(credentials, named, device, TOKEN_LIFE_S)
        return Client(address, token_provider=provider, config=settings)

    def _config(self, **config: Any) -> "ClientConfig":
        from qimd.client import ClientConfig

        return ClientConfig(
            open_timeout_s=self.timeout_s,
            request_timeout_s=self.timeout_s,
            credentials=self._tls(),
            **config,
        )

    def _tls(self) -> "grpc.ChannelCredentials | None":
        if self.tls_ca is None:
            return None
        import grpc

        try:
            return grpc.ssl_channel_credentials(self.tls_ca.read_bytes())
        except OSError as error:
            raise Missing(
                f"{self.tls_ca} can't be read ({error.strerror}).", "Check --tls-ca."
            ) from None


def _keep(ctx: click.Context, param: click.Parameter, value: object) -> None:
    if value is not None and param.name is not None:
        setattr(ctx.ensure_object(Options), param.name, value)


def _shared(
    *names: str, env: str | None = None, **settings: Any
) -> Callable[[bool], Callable[[F], F]]:
    def with_environment(top: bool) -> Callable[[F], F]:
        # Only before the command: else a variable would win over a flag that was given there.
        return click.option(
            *names,
            envvar=env if top else None,
            show_envvar=top,
            callback=_keep,
            expose_value=False,
            **settings,
        )

    return with_environment


_CONNECTION: Final = (
    _shared("--address", env="QIM_ADDRESS", metavar="HOST:PORT", help="The server."),
    _shared(
        "--data",
        env="QIM_DATA",
        type=click.Path(path_type=Path, file_okay=False),
        help="Data folder of `qimd dev`, for its credentials. [default: qim-data]",
    ),
    _shared("--tenant", env="QIM_TENANT", metavar="ID", help="The tenant."),
    _shared("--admin-token", env="QIM_ADMIN_TOKEN", metavar="TOKEN", help="For administration."),
    _shared("--token", env="QIM_TOKEN", metavar="TOKEN", help="Access token of a user's device."),
    _shared(
        "--tls-ca",
        env="QIM_TLS_CA",
        type=click.Path(path_type=Path, dir_okay=False),
        help="PEM certificates to trust; TLS is used where it is given.",
    ),
    _shared(
        "--timeout",
        "timeout_s",
        env="QIM_TIMEOUT",
        type=click.FloatRange(min=0.1),
        metavar="SECONDS",
        help="How long to try. [default: 10]",
    ),
)
_OUTPUT: Final = (
    _shared(
        "-o",
        "--output",
        env="QIM_OUTPUT",
        type=click.Choice(["table", "json", "jsonl"]),
        help="Form of the data on standard output. [default: table]",
    ),
    _shared(
        "--raw",
        is_flag=True,
        default=None,
        help="Show text as it is, control characters included (table only).",
    ),
)


def shared(*, top: bool = False, connection: bool = True) -> Callable[[F], F]:
    """The shared options: `top` for those before a command's name."""

    def decorate(function: F) -> F:
        for option in reversed((*(_CONNECTION if connection else ()), *_OUTPUT)):
            function = option(top)(function)
        return function

    return decorate


def as_user(function: F) -> F:
    """The options that say who acts."""
    function = click.option(
        "--device",
        default=DEVICE_DEFAULT,
        show_default=True,
        metavar="ID",
        help="Device to act as; two at once replace each other.",
    )(function)
    return click.option("--user", metavar="ID", help="User to act as; a token is made for them.")(
        function
    )
