"""Forks: sessions that start with the content of another one, over the same pages.

    session's states --forking--> a sealed memfd that both map --writes--> own pages

`forking.py` decides what is mapped and what is copied; `frozen.py` holds the memfd,
`shared_pages.py` what one arena has mapped of it, `intervals.py` the arithmetic of runs
of pages, `map_budget.py` how many maps the process may have, `mapping.py` the system
calls. `prefixes.py` is the prompt cache on top, `residency.py` reports what memory a
session takes.
"""
