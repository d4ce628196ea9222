"""The reports of `kvc dump` on a bundle: what is said, and how it is laid out as text.

What is said are frozen values, each with a function that computes it from the decoded
program: `bundle.py` has them all, from `methods.py`, `memory.py` and `blobs.py`. Their
fields are the JSON. The text is `overview.py` for one screen, `tables.py` for exact
bytes, `summaries.py` for other commands.
"""
