"""Programs that the engines need, from Debian where they are missing."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_INSTALL: Final = Path(__file__).with_name("debian.sh")
_INSTALL_WITHIN_S: Final = 600
_JAVA: Final = "17"
"""Cassandra 5.0 runs on 11 and 17, Kafka 4.1 from 17 on."""


class NotInstalled(Exception):
    """A piece can't be had here. Its text is one line."""


@dataclass(frozen=True)
class Tool:
    """A program, and the Debian package that brings it. `find` gives its path, or None."""

    package: str
    find: Callable[[], str | None]

    def path(self) -> str:
        """Where it is. Raises NotInstalled."""
        found = self.find()
        if found is None:
            raise NotInstalled(f"{self.package} is missing, and could not be installed")
        return found


def on_path(program: str, package: str) -> Tool:
    """A program that is found by its name."""
    return Tool(package, lambda: shutil.which(program))


def find_java() -> str | None:
    """A Java of the version that all engines run on."""
    homes = [os.environ.get("JAVA_HOME", ""), *map(str, Path("/usr/lib/jvm").glob(f"*{_JAVA}*"))]
    candidates = [shutil.which("java"), *(shutil.which("java", path=f"{h}/bin") for h in homes)]
    return next((path for path in candidates if path and _version(path) == _JAVA), None)


def _version(java: str) -> str:
    shown = subprocess.run((java, "-version"), capture_output=True, text=True, check=False)
    # openjdk version "17.0.15" 2025-04-15
    return shown.stderr.partition('"')[2].partition(".")[0]


JAVA: Final = Tool("openjdk-17-jre-headless", find_java)
MAVEN: Final = on_path("mvn", "maven")


def install(tools: Iterable[Tool]) -> str:
    """Install those that are missing, in one go; why it could not be done, or "".

    Whether a tool is there afterwards, `Tool.path` tells.
    """
    missing = sorted({tool.package for tool in tools if tool.find() is None})
    if not missing:
        return ""
    if shutil.which("apt-get") is None:
        return f"this is no Debian; install what brings {', '.join(missing)}"
    as_root = () if os.geteuid() == 0 else ("sudo",)
    command = (*as_root, "bash", str(_INSTALL), *missing)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_INSTALL_WITHIN_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"apt-get install {' '.join(missing)}: {error}"
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return f"apt-get install {' '.join(missing)}: {last}"
    return ""
