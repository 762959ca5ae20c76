"""Values that only rise, kept without conditions.

The engine lets the write with the larger timestamp win, cell by cell, whatever the order in which
they arrive. A value that only rises is therefore written with a timestamp made of itself: the
larger value is the later write, whoever writes it and when, and repeating it changes nothing. What
is deleted with the timestamp of a value goes only if it is not above that value.

A conditional write would say the same, at four rounds between replicas instead of one. The two are
never mixed in one cell, since conditional writes carry the time as their timestamp.
"""

from qimd.core.seq import SEQ_MAX


def rising(value: int) -> int:
    """The timestamp of a value in 0..2^63-1: larger for a larger one, and never in the future,
    which engines refuse.
    """
    return value - SEQ_MAX + 1
