"""Memory of a session and of a call: arrays, arenas, and pages that forks share.

    session's states --forking--> a sealed memfd that both map --writes--> own pages

`arrays.py` and `arenas.py` serve the whole runtime. `growing.py` has arrays of the user
that grow without a copy, `pages.py` reads from the system which pages are resident. For
forks, `forking.py` decides which pages are mapped and which are copied; `mapping.py`
has the memfd and the system calls; `shared_pages.py` records which pages of an arena
are mapped from a memfd, and how many maps the process can have; `intervals.py` computes
with runs of pages.
"""
