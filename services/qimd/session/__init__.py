"""The room that projects session lists."""
