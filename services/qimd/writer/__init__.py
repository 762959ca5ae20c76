"""The room that numbers and commits events."""
