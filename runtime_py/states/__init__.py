"""What a session keeps from call to call: kinds of states, and their memory.

    the program's states --owner.py--> groups that are alike --memory.py--> a kind each
    a kind --spans--> a store of its owner --host.py--> arenas

`kind.py` is the interface of a kind of state: how long calls may be, how a call is
undone, how far rows can be rewound, what a fork and a file must contain, and operations
on single rows. `linear.py`, `ring.py`, `append.py`, `counter.py` and `plain.py` are the
kinds, and `table.py` lists them: a new kind is a file there and a row in that table. A
kind addresses rows and slots through the memory's owner (`owner.py`) and never sees an
array over that memory.
"""
