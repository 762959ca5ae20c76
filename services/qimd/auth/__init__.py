"""The room that checks credentials."""
