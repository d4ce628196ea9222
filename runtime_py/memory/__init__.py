"""Memory of a session and of a call: arrays, arenas, and pages that forks share.

    session's states --forking--> a sealed memfd that both map --writes--> own pages

`arrays.py` and `arenas.py` are what all of the runtime computes in, `growing.py` grows
an array of the user's without a copy, `pages.py` asks the system what is in memory. Of
forks, `forking.py` decides what is mapped and what is copied; `mapping.py` holds the
memfd and makes the system calls, `shared_pages.py` knows what one arena has mapped of
it and how many maps the process may have, `intervals.py` is the arithmetic of runs of
pages.
"""
