"""Sample calls of a bundle with what they gave where it was compiled: `kvc check`.

`calls.py` makes the calls, the same ones everywhere; `expected.py` keeps parts of their
results as a file in the bundle, and compares others with it.
"""
