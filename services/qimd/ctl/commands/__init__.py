"""The commands, by who uses them. Each imports what it needs when it runs: `--help` is instant."""
