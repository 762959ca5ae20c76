"""The room that materialises mailboxes and serves them."""
