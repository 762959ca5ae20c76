"""The data folder's fixed facts: what must be the same at every start on the same data.

A conversation's outbox is indexed by its writer shard, and a user's mailbox lives in one partition
of the topic: other counts would look for both in the wrong place, in silence. The file
`DATA/deployment.json` is written at the first start and compared at each later one. It also says
that there is a database, so that a folder which has lost it is no empty server.
"""

import json
from pathlib import Path
from typing import Final

from qimd.app.dev_settings import DevSettings
from qimd.app.folder import DATABASE_NAME, read_kept, write_private
from qimd.app.setting_kinds import SettingRefused, flag_of

FILE_NAME: Final = "deployment.json"
FORMAT: Final = 1
_DATABASE: Final = "database"
_FIXED: Final = ("mailbox_shards", "writer_shards")


def settle_facts(folder: Path, settings: DevSettings) -> None:
    """Write the facts at the first start, compare them later. Raises SettingRefused."""
    path = folder / FILE_NAME
    facts = {"format": FORMAT, **{name: getattr(settings, name) for name in _FIXED}}
    text = read_kept(path)
    if text is None:
        write_private(path, json.dumps(facts) + "\n")
        return
    try:
        stored = json.loads(text)
        differing = [name for name in facts if stored[name] != facts[name]]
    except (ValueError, KeyError, TypeError):
        raise SettingRefused("--data", f"{path} does not parse; restore it") from None
    if "format" in differing:
        raise SettingRefused(
            "--data", f"{folder} has format {stored['format']!r}; this build reads {FORMAT}"
        )
    for name in differing:
        raise SettingRefused(
            flag_of(name),
            f"{facts[name]} is refused: {folder} was made with {stored[name]}, for good. "
            "Start with that, or use another --data folder",
        )
    if stored.get(_DATABASE) and not (folder / DATABASE_NAME).exists():
        raise SettingRefused(
            "--data",
            f"{folder / DATABASE_NAME} is missing, which held all of its messages. Restore it, "
            "with the -wal file beside it if there was one, or use another --data folder",
        )


def note_database(folder: Path) -> None:
    """The database is there, durably. Raises SettingRefused."""
    path = folder / FILE_NAME
    facts = json.loads(read_kept(path) or "{}")
    if not facts.get(_DATABASE):
        write_private(path, json.dumps(facts | {_DATABASE: True}) + "\n")
