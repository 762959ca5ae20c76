"""Everything in memory, with the limits of the weakest engine."""
