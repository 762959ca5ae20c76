"""The room that holds client streams."""
