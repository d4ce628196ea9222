"""The reports of `kvc dump` on a bundle, one question per file.

Each file has a frozen report, a function that computes it from the decoded program, and
a function that lays it out as lines. The JSON is the report's fields.
"""
