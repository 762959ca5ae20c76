"""What the figures were measured on."""

import os
import platform
import sqlite3
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

_LIBRARIES: Final = ("grpcio", "protobuf", "structlog", "prometheus-client", "xxhash")


def facts() -> Mapping[str, object]:
    """Of the machine and of what runs on it, now: a load above 0 says that others are at work."""
    return {
        "cores": os.cpu_count(),
        "cpu": _line("/proc/cpuinfo", "model name"),
        "memory_mib": _kib(_line("/proc/meminfo", "MemTotal")) // 1024,
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "libraries": {name: metadata.version(name) for name in _LIBRARIES if _installed(name)},
        "load_average_at_start": [round(load, 2) for load in os.getloadavg()],
    }


def resident_bytes(pid: int) -> int:
    """The memory that a process holds (VmRSS)."""
    return _kib(_line(f"/proc/{pid}/status", "VmRSS")) * 1024


def cpu_s(pid: int) -> float:
    """Processor seconds that a process has used, all of its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _line(path: str, name: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
    for line in text.splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return ""


def _kib(text: str) -> int:
    return int(text.split(maxsplit=1)[0]) if text else 0


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
