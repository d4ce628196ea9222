"""Memory of a session and of a call: arrays, arenas, and pages that forks share.

    session's states --forking--> a sealed memfd that both map --writes--> own pages

`arrays.py` and `arenas.py` serve the whole runtime, `growing.py` extends an array of
the user without a copy, `pages.py` reads from the system which pages are resident. For
forks, `forking.py` decides which pages are mapped and which are copied; `mapping.py`
holds the memfd and makes the system calls; `shared_pages.py` records which of its pages
an arena has mapped, and how many maps the process may have; `intervals.py` is the
arithmetic of runs of pages.
"""
