"""Engines behind the ports: one folder an engine."""
