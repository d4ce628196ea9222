"""What a session keeps from call to call: kinds of states, and who has their memory.

    the program's states --groups.py--> states that are alike --memory.py--> a kind each
    a kind --spans--> a store of its owner --host.py--> arenas

`kind.py` says what a kind of state has to answer: how long calls may be, how a call is
undone, how far it goes back, what a fork and a file must have of it, and what becomes
of one row. `linear.py`, `ring.py`, `append.py`, `counter.py` and `plain.py` are the
kinds, and `table.py` lists them: a new one is a file there and a row in that table. A
kind speaks of rows and slots to the memory's owner (`owner.py`) and never sees an array
over that memory.
"""
