"""`kvc check`: compare sample calls of a bundle with their results at compilation.

`calls.py` makes the same calls on every machine. `readings.py` sums up the results, and
measures how far rounding alone changes them. `expected.py` stores the sums and the
changes in a file of the bundle, compares later results with that file, and checks
weights by their digests.
"""
