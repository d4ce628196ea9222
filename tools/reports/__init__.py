"""The reports of `kvc dump` on a bundle, and their layout as text.

A report is a frozen value, with a function that computes it from the decoded program.
The report in `bundle.py` contains the reports of `methods.py`, `memory.py` and
`blobs.py`. The fields of a report are the fields of its JSON. As text, `overview.py`
prints one screen, `tables.py` exact bytes, and `summaries.py` what other commands
print.
"""
