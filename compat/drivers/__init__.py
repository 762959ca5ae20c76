"""Implementations that speak the suite's line protocol, as examples and as gates."""
