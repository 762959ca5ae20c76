"""Each gate of the contract fails when what it guards is broken."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from compat import fixtures, lock
from compat.messages import TOP
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

BIN = Path(sys.executable).parent
DISPATCH = "qim/dispatch/v1/group_dispatch.proto"
EPOCH = "uint64 fencing_epoch = 1 [features.field_presence = LEGACY_REQUIRED];"


@pytest.fixture
def proto(tmp_path: Path) -> Path:
    """A copy of the schema, to be broken."""
    copy = tmp_path / "proto"
    shutil.copytree(TOP / "proto", copy)
    return copy


def change(proto: Path, file: str, old: str, new: str) -> None:
    path = proto / file
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{file} has no {old!r}: the test must be adapted"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def buf(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "buf"), *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def buf_breaking(proto: Path) -> str:
    shutil.copy(TOP / "buf.yaml", proto.parent)
    image = sorted((TOP / "compat" / "images").glob("*.binpb"))[-1]
    return buf("breaking", "proto", "--against", str(image), cwd=proto.parent).stdout


def lock_violations(proto: Path) -> list[str]:
    built = buf("build", str(proto), "-o", str(proto.parent / "image.binpb"), cwd=proto.parent)
    assert built.returncode == 0, built.stderr
    image = FileDescriptorSet.FromString((proto.parent / "image.binpb").read_bytes())
    pool = DescriptorPool()
    for file in image.file:
        pool.Add(file)
    files = [pool.FindFileByName(file.name) for file in image.file]
    locked = lock.parse(lock.LOCK.read_text(encoding="utf-8"))
    return lock.violations(locked, lock.rows_of(files))


def test_the_schema_as_it_is_holds(proto: Path) -> None:
    assert buf_breaking(proto) == ""
    assert lock_violations(proto) == []
    assert lock.check() == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (EPOCH, "uint64 fencing_epoch = 1;", "fencing_epoch"),
        (EPOCH, "reserved 1; reserved fencing_epoch;", "fencing_epoch"),
        (EPOCH, EPOCH.replace("= 1 ", "= 21 "), "fencing_epoch"),
    ],
    ids=["made_optional", "deleted", "renumbered"],
)
def test_touching_the_epoch_fails_both_gates(proto: Path, old: str, new: str, said: str) -> None:
    change(proto, DISPATCH, old, new)
    assert said in buf_breaking(proto)
    assert any(said in line for line in lock_violations(proto))


def test_a_field_packed_differently_fails_the_lock(proto: Path) -> None:
    """buf breaking does not see it, hence the lock."""
    for file, packing in (
        ("base", ""),
        ("expanded", " [features.repeated_field_encoding = EXPANDED]"),
    ):
        shutil.rmtree(proto)
        shutil.copytree(TOP / "proto", proto)
        change(
            proto, DISPATCH, "uint32 lane = 1;", f"uint32 lane = 1; repeated uint32 x = 3{packing};"
        )
        assert lock_violations(proto) == [], file
        if file == "base":
            image = FileDescriptorSet.FromString((proto.parent / "image.binpb").read_bytes())
            released = rows(image)
        else:
            image = FileDescriptorSet.FromString((proto.parent / "image.binpb").read_bytes())
            found = lock.violations(released, rows(image))
            assert found == [
                "qim.dispatch.v1.LaneBlock.x: was 'packed uint32', is 'repeated uint32'"
            ]


def rows(image: FileDescriptorSet) -> list[lock.Row]:
    pool = DescriptorPool()
    for file in image.file:
        pool.Add(file)
    return lock.rows_of([pool.FindFileByName(file.name) for file in image.file])


def test_another_required_field_fails_the_lock_and_the_lint(proto: Path) -> None:
    """buf breaking does not see an added required field, hence the lock."""
    change(
        proto,
        DISPATCH,
        "repeated LaneBlock blocks = 19;",
        "repeated LaneBlock blocks = 19; "
        "uint64 x = 20 [features.field_presence = LEGACY_REQUIRED];",
    )
    assert any(
        "GroupDispatch.x: required fields are banned" in line for line in lock_violations(proto)
    )
    shutil.copy(TOP / "buf.yaml", proto.parent)
    assert "required" in buf("lint", "proto", cwd=proto.parent).stdout


def test_a_new_field_of_a_canonical_message_below_another_fails_the_lock(proto: Path) -> None:
    change(proto, DISPATCH, "repeated LaneBlock blocks = 19;", "repeated LaneBlock blocks = 22;")
    change(proto, DISPATCH, EPOCH, EPOCH + " uint64 newer = 21;")
    released = [
        lock.Row(
            row.kind, row.owner, 22 if row.name == "blocks" else row.number, row.name, row.rest
        )
        for row in lock.current()
    ]
    built = buf("build", str(proto), "-o", str(proto.parent / "image.binpb"), cwd=proto.parent)
    assert built.returncode == 0, built.stderr
    image = FileDescriptorSet.FromString((proto.parent / "image.binpb").read_bytes())
    assert lock.violations(released, rows(image)) == [
        "qim.dispatch.v1.GroupDispatch.newer = 21: a new field of a canonical message must be "
        "numbered above 22"
    ]


def test_a_new_field_above_all_others_passes(proto: Path) -> None:
    change(
        proto, DISPATCH, "repeated LaneBlock blocks = 19;",
        "repeated LaneBlock blocks = 19; uint64 newer = 20;",
    )  # fmt: skip
    assert lock_violations(proto) == []
    assert buf_breaking(proto) == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("map<string, string> attrs = 90;", "maps are banned"),
        ("double ratio = 90;", "floating point is banned"),
    ],
)
def test_maps_and_floats_are_banned(proto: Path, line: str, said: str) -> None:
    """COD-02: the contract has no maps, and a test proves the ban."""
    change(
        proto,
        "qim/gateway/v1/gateway.proto",
        "string conversation_id = 1;",
        f"string conversation_id = 1; {line}",
    )
    assert any(said in found for found in lock_violations(proto))


def test_a_closed_enum_is_banned(proto: Path) -> None:
    closed = (
        "enum Shut { option features.enum_type = CLOSED; SHUT_UNSPECIFIED = 0; } "
        "message Door { Shut shut = 1 [features.field_presence = EXPLICIT]; } message Ping {}"
    )
    change(proto, "qim/gateway/v1/gateway.proto", "message Ping {}", closed)
    assert any("closed enums are banned" in found for found in lock_violations(proto))


class Released:
    """A release of the gateway whose Ping is as the test says, and what the gates find since."""

    def __init__(self, proto: Path, body: str) -> None:
        self._proto = proto
        self._rows = self._built(body)
        self._image = proto.parent / "released.binpb"
        shutil.copy(proto.parent / "image.binpb", self._image)
        shutil.copy(TOP / "buf.yaml", proto.parent)

    def _built(self, body: str) -> list[lock.Row]:
        proto = self._proto
        shutil.rmtree(proto)
        shutil.copytree(TOP / "proto", proto)
        change(
            proto, "qim/gateway/v1/gateway.proto", "message Ping {}", f"message Ping {{ {body} }}"
        )
        built = buf("build", str(proto), "-o", str(proto.parent / "image.binpb"), cwd=proto.parent)
        assert built.returncode == 0, built.stderr
        return rows(FileDescriptorSet.FromString((proto.parent / "image.binpb").read_bytes()))

    def since(self, body: str) -> tuple[list[str], str]:
        """(what the lock finds, what buf breaking says) once Ping is changed to this."""
        found = lock.violations(self._rows, self._built(body))
        said = buf(
            "breaking", "proto", "--against", str(self._image), cwd=self._proto.parent
        ).stdout
        return found, said


@pytest.mark.parametrize(("three", "four"), [("1, 2, 3", "1, 2, 3, 4"), ("1 to 3", "1 to 4")])
def test_reserving_one_more_number_stays_green(proto: Path, three: str, four: str) -> None:
    """COD-06: `reserved 1 to 3` changed to `1 to 4`, and the value that was drafted as 4 comes out
    as 5: the gates are on and green, one by one and as a range. A value that was released as 4 is
    missed for itself, and not for the reservation."""
    assert Released(proto, f"reserved {three};").since(f"reserved {four}; uint64 a = 5;") == (
        [],
        "",
    )
    moved, said = Released(proto, f"reserved {three}; uint64 a = 4;").since(
        f"reserved {four}; uint64 a = 5;"
    )
    assert len(moved) == 1
    assert "Ping.a" in moved[0]
    assert len(said.splitlines()) == 1
    assert 'field "4" with name "a" on message "Ping" was deleted' in said


def test_reserved_numbers_are_guarded_one_by_one(proto: Path) -> None:
    """COD-06: reserving one more number stays green; re-using 3, or un-reserving one, is red."""
    released = Released(proto, "reserved 1, 2, 3; uint64 a = 4;")
    assert released.since("reserved 1, 2, 3, 5; uint64 a = 4;") == ([], "")
    for body in ("reserved 1, 2; uint64 b = 3; uint64 a = 4;", "reserved 1, 2; uint64 a = 4;"):
        found, said = released.since(body)
        assert any("3 is no longer reserved" in line for line in found), body
        assert "reserved" in said, body


def test_a_changed_golden_is_seen_and_update_refuses_without_the_flag(tmp_path: Path) -> None:
    release = fixtures.releases()[-1]
    for kind in ("golden", "after_roundtrip", "reject"):
        shutil.copytree(fixtures.ROOT / kind / release, tmp_path / kind / release)
    shutil.copy(fixtures.manifest_path(release), tmp_path / "golden")
    assert fixtures.tampered(release, tmp_path) == []
    golden = next((tmp_path / "golden" / release).glob("*/full.binpb"))
    golden.write_bytes(golden.read_bytes() + b"\xc0\x3e\x01")
    assert fixtures.tampered(release, tmp_path) == [golden.relative_to(tmp_path).as_posix()]

    copy = checkout(tmp_path / "top")
    changed = next((copy / "compat" / "golden" / release).glob("*/minimal.json"))
    changed.write_text("{}", encoding="utf-8")
    for command, said in (((), "manifest"), (("update",), "--change-released-goldens")):
        run = subprocess.run(
            [sys.executable, "-m", "compat", *command], cwd=copy, env=environment(copy),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert run.returncode == 1, run.stderr
        assert said in run.stdout


def checkout(top: Path) -> Path:
    """A copy of what the gates read."""
    for folder in ("proto", "gen", "compat", "scripts"):
        shutil.copytree(TOP / folder, top / folder, symlinks=True)
    shutil.copy(TOP / "buf.yaml", top)
    (top / ".venv").symlink_to(BIN.parent)
    return top


def environment(top: Path) -> dict[str, str]:
    """An environment in which the copy's code is found before the installed one."""
    path = os.pathsep.join(str(p) for p in (top, top / "gen", TOP / "services"))
    return {**os.environ, "PYTHONPATH": path, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


def test_gen_edited_by_hand_fails(tmp_path: Path) -> None:
    copy = checkout(tmp_path / "top")
    script = (
        "import sys; sys.path.insert(0, 'scripts'); import check; "
        "gate = next(g for g in check.contract_gates() if g.name == 'generated code'); "
        "sys.exit(0 if check.run(gate).holds else 1)"
    )

    def gate() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script], cwd=copy, env=environment(copy), capture_output=True,
            text=True, check=False,
        )  # fmt: skip

    assert gate().returncode == 0, gate().stdout
    edited = copy / "gen" / "qim" / "dispatch" / "v1" / "group_dispatch_pb2.py"
    edited.write_text(edited.read_text(encoding="utf-8") + "# by hand\n", encoding="utf-8")
    assert gate().returncode == 1
