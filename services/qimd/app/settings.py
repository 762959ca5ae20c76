"""Settings of a process: a command-line flag, else an environment variable, else the default.

Each field of `Settings` is one setting: `grpc_port` is `--grpc-port` and `QIM_GRPC_PORT`. Its
metadata holds how its text is read and what it means; the parser and the checks are made from them.
What is refused is refused at start, by a `SettingRefused` that names the flag.
"""

# ruff: noqa: RUF009 - `_setting` is `dataclasses.field` with our metadata.

import argparse
import dataclasses
import ipaddress
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from qimd.core.errors import ErrorCode, QimError
from qimd.core.parameters import DISPATCH_CHUNK_RECIPIENTS, DRAIN_GRACE_S, LeaseParameters
from qimd.core.routing import RoutingTable
from qimd.telemetry.logs import LEVELS

T = TypeVar("T")

DATA_DEFAULT: Final = Path("qim-data")
"""In the folder where the server is started; `qimctl` looks for it there too."""

LOG_FORMATS: Final = ("auto", "json", "console")
_HOUR_MS: Final = 3600 * 1000


class SettingRefused(QimError):
    """A setting that a start is refused for; `field` is its flag."""

    def __init__(self, flag: str, reason: str) -> None:
        super().__init__(ErrorCode.INVALID_ARGUMENT, f"{flag}: {reason}", field=flag)


def flag_of(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """The environment variable of a field."""
    return f"QIM_{name.upper()}"


def _setting(default: T, read: Callable[[str], Any], text: str, *, least: float | None = None) -> T:
    """A field: how its text is read, what it means, and the smallest number that makes sense."""
    metadata = {"read": read, "help": text, "least": least}
    declared: T = dataclasses.field(default=default, metadata=metadata)
    return declared


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number of seconds") from None
    # Every comparison with a NaN is false, and so would be every check below.
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


def _boolean(text: str) -> bool:
    values = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in values:
        raise ValueError("must be true or false")
    return values[text.lower()]


def _choice(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text

    return read


_LEASE: Final = LeaseParameters()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one process of the `dev` profile is told. Numbers carry their unit in the name."""

    data: Path = _setting(DATA_DEFAULT, Path, "folder that holds everything durable")
    ephemeral: bool = _setting(
        False, _boolean, "use a temporary folder instead, removed when the server ends"
    )
    host: str = _setting(
        "127.0.0.1", str, "address to listen on; beyond loopback only with a TLS certificate"
    )
    grpc_port: int = _setting(
        7400, _whole, "port of the gRPC services; 0 takes a free one", least=0
    )
    metrics_port: int = _setting(
        7401,
        _whole,
        "port of /metrics, /healthz and /readyz on loopback; 0 takes a free one",
        least=0,
    )
    tls_certificate: Path | None = _setting(None, Path, "PEM file with the certificate chain")
    tls_private_key: Path | None = _setting(None, Path, "PEM file with the certificate's key")
    mailbox_shards: int = _setting(
        2,
        _whole,
        "partitions of the dispatch topic: a power of two, fixed once data is there",
        least=1,
    )
    writer_shards: int = _setting(
        2, _whole, "shards of conversations: a power of two, fixed once data is there", least=1
    )
    dispatch_chunk_recipients: int = _setting(
        DISPATCH_CHUNK_RECIPIENTS, _whole, "recipients that one record of the log carries", least=1
    )
    log_retention_ms: int = _setting(
        7 * 24 * _HOUR_MS, _whole, "how long the dispatch log keeps a record", least=1
    )
    dispatch_recovery_window_ms: int = _setting(
        24 * _HOUR_MS, _whole, "how far back a replay must be able to begin", least=1
    )
    writer_failover_wait_s: float = _setting(
        _LEASE.writer_failover_wait_s,
        _seconds,
        "after an owner's last sign of life, to its successor",
    )
    shard_lease_ttl_s: float = _setting(
        _LEASE.shard_lease_ttl_s, _seconds, "life of a lease that is not renewed"
    )
    writer_self_fence_deadline_s: float = _setting(
        _LEASE.writer_self_fence_deadline_s, _seconds, "after it, an owner without renewal stops"
    )
    lease_renew_interval_s: float = _setting(
        _LEASE.lease_renew_interval_s, _seconds, "between renewals"
    )
    lease_renew_retry_s: float = _setting(
        _LEASE.lease_renew_retry_s, _seconds, "between tries after a renewal that failed"
    )
    drain_grace_s: float = _setting(
        DRAIN_GRACE_S, _seconds, "how long a stop waits for what is under way", least=0
    )
    audit_interval_s: float = _setting(
        10.0, _seconds, "between two passes of the auditor", least=0.05
    )
    log_level: str = _setting("info", _choice(*LEVELS), f"one of {', '.join(LEVELS)}")
    log_format: str = _setting(
        "auto", _choice(*LOG_FORMATS), "json, console, or auto: console on a terminal"
    )
    ready_file: Path | None = _setting(
        None, Path, "written once ready, as JSON: the addresses and the process id"
    )

    @property
    def lease(self) -> LeaseParameters:
        """The lease's times; checked by `check`."""
        return LeaseParameters(
            shard_lease_ttl_s=self.shard_lease_ttl_s,
            lease_renew_interval_s=self.lease_renew_interval_s,
            lease_renew_retry_s=self.lease_renew_retry_s,
            writer_self_fence_deadline_s=self.writer_self_fence_deadline_s,
            writer_failover_wait_s=self.writer_failover_wait_s,
        )

    @property
    def table(self) -> RoutingTable:
        """The routing table that these counts give."""
        return RoutingTable(
            version=1, mailbox_shards=self.mailbox_shards, writer_shards=self.writer_shards
        )

    @property
    def tls(self) -> tuple[Path, Path] | None:
        """(certificate, key), if both are set."""
        if self.tls_certificate is None or self.tls_private_key is None:
            return None
        return self.tls_certificate, self.tls_private_key


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag for each field."""
    for field in dataclasses.fields(Settings):
        shown = "" if field.default in {None, False} else f" (default {field.default})"
        text = f"{field.metadata['help']}{shown}; or {variable_of(field.name)}"
        if isinstance(field.default, bool):
            parser.add_argument(
                flag_of(field.name), help=text, action="store_const", const="true", dest=field.name
            )
        else:
            parser.add_argument(
                flag_of(field.name), help=text, dest=field.name, metavar=_metavar(field)
            )


def _metavar(field: "dataclasses.Field[Any]") -> str:
    kind = {_whole: "N", _seconds: "SECONDS", Path: "PATH"}
    return kind.get(field.metadata["read"], "TEXT")


def load(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> Settings:
    """Read and check the settings. Raises SettingRefused."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Settings):
        text = flags.get(field.name)
        named = flag_of(field.name)
        if text is None:
            text = environment.get(variable_of(field.name))
            named = f"{named} (from {variable_of(field.name)})"
        if text is None:
            continue
        try:
            values[field.name] = field.metadata["read"](text)
        except ValueError as error:
            raise SettingRefused(named, f"{text!r} is refused: {error}") from None
    settings = Settings(**values)
    check(settings)
    return settings


def check(settings: Settings) -> None:
    """Raise SettingRefused for what can't be started with; `qimd check` does no more than this."""
    for field in dataclasses.fields(settings):
        least, value = field.metadata["least"], getattr(settings, field.name)
        if least is not None and value < least:
            raise SettingRefused(flag_of(field.name), f"{value} is below {least:g}")
    for name in ("grpc_port", "metrics_port"):
        if getattr(settings, name) > 65_535:
            raise SettingRefused(flag_of(name), "a port is at most 65535")
    _check_shards(settings)
    _check_records(settings)
    _check_lease(settings)
    _check_address(settings)
    if settings.log_retention_ms < settings.dispatch_recovery_window_ms:
        raise SettingRefused(
            "--log-retention-ms",
            f"{settings.log_retention_ms} ms is below --dispatch-recovery-window-ms "
            f"({settings.dispatch_recovery_window_ms} ms): a replay could find its start gone",
        )


def _check_shards(settings: Settings) -> None:
    try:
        _ = settings.table
    except QimError as error:
        raise SettingRefused(flag_of(error.field), error.message) from None


def _check_records(settings: Settings) -> None:
    """An event that was acknowledged must never be too large for the log."""
    # Here, since a command that only shows its help must not load the engine.
    from qimd.adapters.sqlite.backends import MAX_RECORD_BYTES_DEFAULT
    from qimd.fanout.logic import largest_record_bytes

    needed = largest_record_bytes(settings.dispatch_chunk_recipients)
    if needed >= MAX_RECORD_BYTES_DEFAULT:
        raise SettingRefused(
            "--dispatch-chunk-recipients",
            f"a record of {settings.dispatch_chunk_recipients} recipients may have {needed} bytes; "
            f"the log takes records below {MAX_RECORD_BYTES_DEFAULT}",
        )


def _check_lease(settings: Settings) -> None:
    try:
        _ = settings.lease
    except QimError as error:
        raise SettingRefused(flag_of(f"{error.field}_s"), error.message) from None


def _check_address(settings: Settings) -> None:
    if (settings.tls_certificate is None) != (settings.tls_private_key is None):
        missing = "tls_private_key" if settings.tls_private_key is None else "tls_certificate"
        raise SettingRefused(flag_of(missing), "a certificate and its key are set together")
    for name in ("tls_certificate", "tls_private_key"):
        path = getattr(settings, name)
        if path is not None and not path.is_file():
            raise SettingRefused(flag_of(name), f"there is no file {path}")
    if not is_loopback(settings.host) and settings.tls is None:
        raise SettingRefused(
            "--host",
            f"{settings.host} is beyond loopback: tokens and messages would travel in clear. "
            "Set --tls-certificate and --tls-private-key, or keep 127.0.0.1",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address. A name counts only if it is `localhost`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
