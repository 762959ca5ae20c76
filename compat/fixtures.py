"""The fixtures on disk.

    golden/<release>/<full.Message>/<case>.binpb + .json
        decode and encode give the same bytes
    after_roundtrip/<release>/<full.Message>/<case>.binpb + .after.binpb
        accepted, and comes back changed
    reject/<release>/<full.Message>/<case>.binpb + .reject
        refused; the second file says by whom and why

A release's folder is frozen: `python -m compat update --change-released-goldens` alone changes it.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from compat.messages import TOP

ROOT = TOP / "compat"


@dataclass(frozen=True)
class Fixture:
    """One case. `after` is what decode and encode give; None means refused, for `reason`.

    `level` of a refusal: "wire" if no parser may accept the bytes, "strict" if only an
    implementation of the whole contract refuses.
    """

    message: str
    case: str
    data: bytes = field(repr=False)
    after: bytes | None = field(repr=False)
    json: str = ""
    level: str = ""
    reason: str = ""

    @property
    def kind(self) -> str:
        """The folder that the fixture lies in."""
        if self.after is None:
            return "reject"
        return "golden" if self.after == self.data else "after_roundtrip"

    def files(self, release: str) -> dict[Path, bytes]:
        """Paths below ROOT with their contents."""
        stem = Path(self.kind, release, self.message, self.case)
        files = {Path(f"{stem}.binpb"): self.data}
        if self.kind == "golden":
            files[Path(f"{stem}.json")] = self.json.encode()
        elif self.kind == "after_roundtrip":
            files[Path(f"{stem}.after.binpb")] = self.after or b""
        else:
            files[Path(f"{stem}.reject")] = f"{self.level} {self.reason}\n".encode()
        return files


def releases(root: Path = ROOT) -> list[str]:
    """Releases with goldens, oldest first."""
    names = (path.name for path in (root / "golden").iterdir() if path.is_dir())
    return sorted(names, key=lambda name: [int(part) for part in name.split(".")])


def load(release: str, root: Path = ROOT) -> list[Fixture]:
    """All fixtures of a release, by message and case."""
    found = []
    for path in sorted((root / "golden" / release).glob("*/*.binpb")):
        data = path.read_bytes()
        text = path.with_suffix(".json").read_text(encoding="utf-8")
        found.append(Fixture(path.parent.name, path.stem, data, data, json=text))
    for path in sorted((root / "after_roundtrip" / release).glob("*/*.binpb")):
        if not path.name.endswith(".after.binpb"):
            after = path.with_name(f"{path.stem}.after.binpb").read_bytes()
            found.append(Fixture(path.parent.name, path.stem, path.read_bytes(), after))
    for path in sorted((root / "reject" / release).glob("*/*.binpb")):
        line = path.with_suffix(".reject").read_text(encoding="utf-8").strip()
        level, _, reason = line.partition(" ")
        found.append(
            Fixture(
                path.parent.name, path.stem, path.read_bytes(), None, level=level, reason=reason
            )
        )
    return found


def tree(root: Path, release: str) -> dict[Path, bytes]:
    """What lies on disk for a release."""
    found = {}
    for kind in ("golden", "after_roundtrip", "reject"):
        for path in (root / kind / release).rglob("*"):
            if path.is_file() and path.parent.parent.name == release:
                found[path.relative_to(root)] = path.read_bytes()
    return found


def write(files: dict[Path, bytes], release: str, root: Path = ROOT) -> int:
    """Make the release's folders hold exactly these files; how many changed."""
    old = tree(root, release)
    changed = 0
    for path in old.keys() - files.keys():
        (root / path).unlink()
        changed += 1
    for path, data in files.items():
        if old.get(path) != data:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
            changed += 1
    manifest_path(release, root).write_text(manifest(files), encoding="utf-8")
    return changed


def manifest_path(release: str, root: Path = ROOT) -> Path:
    """The release's list of digests."""
    return root / "golden" / f"{release}.sha256"


def manifest(files: dict[Path, bytes]) -> str:
    """One line a file: its SHA-256 and its path."""
    return "".join(
        f"{hashlib.sha256(data).hexdigest()}  {path.as_posix()}\n"
        for path, data in sorted(files.items())
    )


def tampered(release: str, root: Path = ROOT) -> list[str]:
    """Files that are not what the release's manifest says, missing and added ones included."""
    listed = set(manifest_path(release, root).read_text(encoding="utf-8").splitlines())
    actual = set(manifest(tree(root, release)).splitlines())
    return sorted({line.split("  ", 1)[1] for line in listed ^ actual})


def pretty(json_text: str) -> str:
    """JSON as the fixtures hold it: sorted, indented, one final newline."""
    return json.dumps(json.loads(json_text), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
