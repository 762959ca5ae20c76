"""What `qimd dev` is told."""

# ruff: noqa: RUF009 - `setting` is `dataclasses.field` with our metadata.

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qimd.app.setting_kinds import SettingRefused, boolean, setting, whole
from qimd.app.settings import HOUR_MS, ProcessSettings, check_record_size, check_replay_safety

DATA_DEFAULT: Final = Path("qim-data")
"""In the folder where the server is started; `qimctl` looks for it there too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevSettings(ProcessSettings):
    """One process, one data folder, everything in it."""

    data: Path = setting(DATA_DEFAULT, Path, "folder that holds everything durable")
    ephemeral: bool = setting(
        False, boolean, "use a temporary folder instead, removed when the server ends"
    )
    log_retention_ms: int = setting(
        7 * 24 * HOUR_MS, whole, "how long the dispatch log keeps a record", least=1
    )
    dispatch_recovery_window_ms: int = setting(
        24 * HOUR_MS, whole, "how far back a replay must be able to begin", least=1
    )

    def check(self) -> None:
        """See ProcessSettings."""
        # Here, since a command that only shows its help must not load the engine.
        from qimd.adapters.sqlite.backends import MAX_RECORD_BYTES_DEFAULT

        # Named, since `slots=True` makes another class than the one that `super()` would see.
        ProcessSettings.check(self)
        check_record_size(self, MAX_RECORD_BYTES_DEFAULT)
        check_replay_safety(self, self.dispatch_recovery_window_ms)
        if self.log_retention_ms < self.dispatch_recovery_window_ms:
            raise SettingRefused(
                "--log-retention-ms",
                f"{self.log_retention_ms} ms is below --dispatch-recovery-window-ms "
                f"({self.dispatch_recovery_window_ms} ms): a replay could find its start gone",
            )
