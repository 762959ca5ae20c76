"""The embedded engine of the `dev` profile: every port over one durable SQLite file.

`open_sqlite` gives the ports; `engine` has the threads, `schema` the tables.
"""

from qimd.adapters.sqlite.backends import SqliteBackends, open_sqlite
from qimd.adapters.sqlite.file import FormatTooNew, OpenRefused, PartitionCountDiffers

__all__ = [
    "FormatTooNew",
    "OpenRefused",
    "PartitionCountDiffers",
    "SqliteBackends",
    "open_sqlite",
]
