"""qimctl: the operator's and the developer's command line. It talks to a server by its contract."""
