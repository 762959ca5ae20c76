"""The jars of an engine from Maven Central: what `NAME.pom.xml` resolves to, checked one by one.

`NAME.sha256` lists every jar in sha256sum's format. A set is cached under the fingerprint of its
list, so a list that changes never meets the jars of another. `python -m tests.engines lock` writes
the lists anew.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.engines.debian import MAVEN, NotInstalled

_HERE: Final = Path(__file__).parent
_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_DOWNLOAD_WITHIN_S: Final = 600


def cache() -> Path:
    """Where downloads are kept, outside of the tree."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "qim/engines"


def parse(listing: str) -> dict[str, str]:
    """File name → SHA-256 in hex, from sha256sum's format."""
    pairs = (line.split(maxsplit=1) for line in listing.splitlines())
    return {name: digest for digest, name in pairs}


def render(digests: Mapping[str, str]) -> str:
    """The listing of these digests, in the order of their names."""
    return "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))


def digests(folder: Path) -> dict[str, str]:
    """File name → SHA-256 of what is in a folder."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob("*.jar")
    }


def differences(found: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Every way in which `found` is not exactly `wanted`, one line each."""
    return [
        *(f"{name} is missing" for name in sorted(wanted.keys() - found.keys())),
        *(f"{name} is not in the list" for name in sorted(found.keys() - wanted.keys())),
        *(
            f"{name} has another checksum"
            for name in sorted(wanted.keys() & found.keys())
            if found[name] != wanted[name]
        ),
    ]


@dataclass(frozen=True)
class Jars:
    """The jars of the engine `name`."""

    name: str

    @property
    def listing(self) -> Path:
        """The list of its checksums."""
        return _HERE / f"{self.name}.sha256"

    @property
    def folder(self) -> Path:
        """Where they are, once `ensure` has returned."""
        fingerprint = hashlib.sha256(self.listing.read_bytes()).hexdigest()[:12]
        return cache() / f"{self.name}-{fingerprint}"

    @property
    def classpath(self) -> str:
        """For `java -cp`."""
        return f"{self.folder}/*"

    def ensure(self) -> None:
        """Have them, checked. Raises NotInstalled on any difference from the list."""
        wanted = parse(self.listing.read_text())
        if self.folder.exists() and not differences(digests(self.folder), wanted):
            return
        fetched = self._download()
        if differing := differences(digests(fetched), wanted):
            shutil.rmtree(fetched)
            raise NotInstalled(f"refused: {'; '.join(differing)}")
        self._keep(fetched)

    def renew(self) -> None:
        """Write the list anew, from what the pom resolves to now."""
        fetched = self._download()
        self.listing.write_text(render(digests(fetched)))
        self._keep(fetched)

    def _keep(self, fetched: Path) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        fetched.rename(self.folder)

    def _download(self) -> Path:
        cache().mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=cache()))
        command = (
            MAVEN.path(),
            "--quiet",
            "--batch-mode",
            f"--file={_HERE / f'{self.name}.pom.xml'}",
            _COPY,
            f"-DoutputDirectory={folder}",
            "-DincludeScope=runtime",
        )
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_DOWNLOAD_WITHIN_S
            )
        except subprocess.TimeoutExpired:
            shutil.rmtree(folder)
            raise NotInstalled("Maven gave no answer in time") from None
        if done.returncode != 0:
            shutil.rmtree(folder)
            first = (done.stdout.strip().splitlines() or ["no reason given"])[0]
            raise NotInstalled(first)
        return folder
