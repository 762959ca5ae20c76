"""The room that turns committed events into dispatches."""
