"""Settings, wiring, roles, the dev profile."""
