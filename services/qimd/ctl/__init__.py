"""qimctl."""
