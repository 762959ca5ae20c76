"""The embedded engine of the dev profile: one durable file."""
