"""The public SDK."""
