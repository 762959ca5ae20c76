"""Two mailbox stores side by side: one serves, the other follows and is compared.

`store` serves from the primary and tells the followers what it applied; `shard` and `devices`
follow; `standing` decides how a step fits a shadow, `differences` what is a difference.
"""

from qimd.adapters.shadow.store import NamedStore, ShadowMailboxStore

__all__ = ["NamedStore", "ShadowMailboxStore"]
