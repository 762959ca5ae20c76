"""Pure and synchronous: ids, routing, records, errors, parameters.

No I/O, no clock, no protobuf.
"""
