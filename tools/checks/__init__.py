"""Sample calls of a bundle with what they gave where it was compiled: `kvc check`.

`calls.py` makes the calls, the same ones everywhere; `readings.py` sums up their
results, and measures how far rounding alone moves them; `expected.py` keeps both as a
file in the bundle, compares others with it, and checks weights by their digests.
"""
