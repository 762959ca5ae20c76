"""What rooms need from the outside, as Protocols.

Adapters implement them; `app.wiring` binds them.
"""
