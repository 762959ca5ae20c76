"""Settings of a process: a command-line flag, else an environment variable, else the default.

Each field of a settings class is one setting: `grpc_port` is `--grpc-port` and `QIM_GRPC_PORT`. Its
metadata holds how its text is read and what it means; the parser and the checks are made from them.
What is refused is refused at start, by a `SettingRefused` that names the flag.

Here: what every process is told, how settings are read, and what must hold between them.
`setting_kinds` has how one is declared; `dev_settings` and `run_settings` add what the two commands
are told.
"""

# ruff: noqa: RUF009 - `setting` is `dataclasses.field` with our metadata.

import argparse
import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from qimd.app.setting_kinds import (
    SettingRefused,
    choice,
    flag_of,
    seconds,
    setting,
    share,
    variable_of,
    whole,
)
from qimd.core.address import address, is_loopback
from qimd.core.errors import QimError
from qimd.core.parameters import DISPATCH_CHUNK_RECIPIENTS, DRAIN_GRACE_S, LeaseParameters
from qimd.core.routing import RoutingTable
from qimd.telemetry.logs import LEVELS

LOG_FORMATS: Final = ("auto", "json", "console")
HOUR_MS: Final = 3600 * 1000


# --- what every process is told ---------------------------------------------------------------

_LEASE: Final = LeaseParameters()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """What any process of qim is told. Numbers carry their unit in the name."""

    host: str = setting(
        "127.0.0.1", str, "address to listen on; beyond loopback only with a TLS certificate"
    )
    grpc_port: int = setting(7400, whole, "port of the gRPC services; 0 takes a free one", least=0)
    metrics_port: int = setting(
        7401,
        whole,
        "port of /metrics, /healthz and /readyz on loopback; 0 takes a free one",
        least=0,
    )
    tls_certificate: Path | None = setting(None, Path, "PEM file with the certificate chain")
    tls_private_key: Path | None = setting(None, Path, "PEM file with the certificate's key")
    mailbox_shards: int = setting(
        2,
        whole,
        "partitions of the dispatch topic: a power of two, fixed once data is there",
        least=1,
    )
    writer_shards: int = setting(
        2, whole, "shards of conversations: a power of two, fixed once data is there", least=1
    )
    dispatch_chunk_recipients: int = setting(
        DISPATCH_CHUNK_RECIPIENTS, whole, "recipients that one record of the log carries", least=1
    )
    writer_failover_wait_s: float = setting(
        _LEASE.writer_failover_wait_s,
        seconds,
        "after an owner's last sign of life, to its successor",
    )
    shard_lease_ttl_s: float = setting(
        _LEASE.shard_lease_ttl_s, seconds, "life of a lease that is not renewed"
    )
    writer_self_fence_deadline_s: float = setting(
        _LEASE.writer_self_fence_deadline_s, seconds, "after it, an owner without renewal stops"
    )
    lease_renew_interval_s: float = setting(
        _LEASE.lease_renew_interval_s, seconds, "between renewals"
    )
    lease_renew_retry_s: float = setting(
        _LEASE.lease_renew_retry_s, seconds, "between tries after a renewal that failed"
    )
    drain_grace_s: float = setting(
        DRAIN_GRACE_S, seconds, "how long a stop waits for what is under way", least=0
    )
    audit_interval_s: float = setting(
        10.0, seconds, "between two passes of the auditor", least=0.05
    )
    replay_safety_window_ms: int | None = setting(
        None,
        whole,
        "how long after its last record no dispatch comes again: what is older and has expired is "
        "forgotten; without it nothing ever is",
        least=1,
    )
    replay_safety_audit: str | None = setting(
        None, str, "who found that window safe and where it is written; required with it"
    )
    log_level: str = setting("info", choice(*LEVELS), f"one of {', '.join(LEVELS)}")
    log_format: str = setting(
        "auto", choice(*LOG_FORMATS), "json, console, or auto: console on a terminal"
    )
    trace_to: str | None = setting(
        None,
        address,
        "host:port of the OTLP collector that spans go to, under TLS beyond loopback; "
        "needs the extra `tracing`",
    )
    trace_certificate_authority: Path | None = setting(
        None,
        Path,
        "PEM file: who signs the collector's certificate; TLS is spoken with it if it is set",
    )
    trace_certificate: Path | None = setting(
        None, Path, "PEM file: the chain with which this process proves itself to the collector"
    )
    trace_private_key: Path | None = setting(
        None, Path, "PEM file: the key of that certificate for the collector"
    )
    trace_share: float = setting(0.01, share, "part of the SENDs that are traced, from 0 to 1")
    ready_file: Path | None = setting(
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

    def check(self) -> None:
        """Raise SettingRefused for what can't be started with."""
        _check_numbers(self)
        _check_shards(self)
        _check_lease(self)
        _check_address(self)
        _check_tracing(self)


S = TypeVar("S", bound=ProcessSettings)

# --- flags and environment --------------------------------------------------------------------


def add_flags(parser: argparse.ArgumentParser, kind: type[ProcessSettings]) -> None:
    """One flag for each field."""
    for field in dataclasses.fields(kind):
        shown = "" if field.default in {None, False} else f" (default {shown_as(field.default)})"
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
    kind = {whole: "N", seconds: "SECONDS", Path: "PATH"}
    return kind.get(field.metadata["read"], "TEXT")


def load(kind: type[S], flags: Mapping[str, str | None], environment: Mapping[str, str]) -> S:
    """Read and check the settings. Raises SettingRefused."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        text, named = _given(field.name, flags, environment)
        if text is None:
            continue
        try:
            values[field.name] = field.metadata["read"](text)
        except ValueError as error:
            # What stands before an @ may be a password.
            shown = "the value" if "@" in text else repr(text)
            raise SettingRefused(named, f"{shown} is refused: {error}") from None
    settings = kind(**values)
    settings.check()
    return settings


def shown_as(value: object) -> str:
    """A value as its reader would take it."""
    return ",".join(value) if isinstance(value, tuple) else str(value)


def origins(
    kind: type[ProcessSettings], flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> dict[str, str]:
    """Where each field's value comes from: its flag, its variable, or `default`."""
    found: dict[str, str] = {}
    for field in dataclasses.fields(kind):
        if flags.get(field.name) is not None:
            found[field.name] = flag_of(field.name)
        elif variable_of(field.name) in environment:
            found[field.name] = variable_of(field.name)
        else:
            found[field.name] = "default"
    return found


def shown(
    kind: type[S],
    flags: Mapping[str, str | None],
    environment: Mapping[str, str],
    *,
    with_origin: bool,
) -> list[str]:
    """A line for each setting: `QIM_NAME=value`, and where it comes from. Raises SettingRefused."""
    settings = load(kind, flags, environment)
    came_from = origins(kind, flags, environment)
    lines = []
    for field in dataclasses.fields(kind):
        value = getattr(settings, field.name)
        line = f"{variable_of(field.name)}={'' if value is None else shown_as(value)}"
        lines.append(f"{line}  # {came_from[field.name]}" if with_origin else line)
    return lines


def _given(
    name: str, flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> tuple[str | None, str]:
    """The text of a setting, None if nobody gave one, and how to name it in a refusal."""
    text = flags.get(name)
    if text is not None:
        return text, flag_of(name)
    return environment.get(variable_of(name)), f"{flag_of(name)} (from {variable_of(name)})"


# --- checks -----------------------------------------------------------------------------------


def check_record_size(settings: ProcessSettings, log_takes_bytes: int) -> None:
    """Refuse a chunk whose largest record the log would not take: an event that was acknowledged
    must never be too large for it.
    """
    # Here, since a command that only shows its help must not load the contract.
    from qimd.fanout.logic import largest_record_bytes

    needed = largest_record_bytes(settings.dispatch_chunk_recipients)
    if needed >= log_takes_bytes:
        raise SettingRefused(
            "--dispatch-chunk-recipients",
            f"a record of {settings.dispatch_chunk_recipients} recipients may have {needed} bytes; "
            f"the log takes records below {log_takes_bytes}",
        )


def _check_numbers(settings: ProcessSettings) -> None:
    for field in dataclasses.fields(settings):
        least, value = field.metadata["least"], getattr(settings, field.name)
        if least is not None and value is not None and value < least:
            raise SettingRefused(flag_of(field.name), f"{value} is below {least:g}")
    for name in ("grpc_port", "metrics_port"):
        if getattr(settings, name) > 65_535:
            raise SettingRefused(flag_of(name), "a port is at most 65535")


def _check_shards(settings: ProcessSettings) -> None:
    try:
        _ = settings.table
    except QimError as error:
        raise SettingRefused(flag_of(error.field), error.message) from None


def _check_lease(settings: ProcessSettings) -> None:
    try:
        _ = settings.lease
    except QimError as error:
        raise SettingRefused(flag_of(f"{error.field}_s"), error.message) from None


def _check_address(settings: ProcessSettings) -> None:
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


def check_replay_safety(settings: ProcessSettings, recovery_window_ms: int) -> None:
    """Progress of dispatches is dropped only behind a window that somebody answers for."""
    window_ms, audit = settings.replay_safety_window_ms, settings.replay_safety_audit
    if window_ms is None:
        if audit is not None:
            raise SettingRefused(
                "--replay-safety-audit", "it is for --replay-safety-window-ms, which is not set"
            )
        return
    if not audit:
        raise SettingRefused(
            "--replay-safety-audit",
            "it is required with --replay-safety-window-ms: name who found the window safe, and "
            "where that is written",
        )
    if window_ms < recovery_window_ms:
        raise SettingRefused(
            "--replay-safety-window-ms",
            f"{window_ms} ms is below the recovery window of {recovery_window_ms} ms: a recovery "
            "would deliver again what was forgotten",
        )


def check_certificates(settings: ProcessSettings, prefix: str) -> None:
    """What says how TLS is spoken to one side belongs together."""
    authority, certificate, key = (
        f"{prefix}_{name}" for name in ("certificate_authority", "certificate", "private_key")
    )
    if (getattr(settings, certificate) is None) != (getattr(settings, key) is None):
        missing = key if getattr(settings, key) is None else certificate
        raise SettingRefused(flag_of(missing), "a certificate and its key are set together")
    if getattr(settings, certificate) is not None and getattr(settings, authority) is None:
        raise SettingRefused(
            flag_of(authority),
            f"is required, or {variable_of(authority)}: a certificate is for TLS",
        )


def _check_tracing(settings: ProcessSettings) -> None:
    check_certificates(settings, "trace")
    if settings.trace_to is None:
        return
    try:
        importlib.import_module("qimd.app.otel")
    except ModuleNotFoundError as error:
        raise SettingRefused(
            "--trace-to", f"there is no {error.name}: install qim with the extra `tracing`"
        ) from None
