"""ScyllaDB, or Cassandra: conversations and mailboxes for production at scale.

`open_scylla` gives the ports; `session` says how statements go out, `schema` has the tables, and
`rising` explains the cells that need no condition.
"""

from qimd.adapters.scylla.backends import ScyllaBackends, open_scylla
from qimd.adapters.scylla.schema import SchemaTooNew
from qimd.adapters.scylla.session import ScyllaSettings

__all__ = ["SchemaTooNew", "ScyllaBackends", "ScyllaSettings", "open_scylla"]
