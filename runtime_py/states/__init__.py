"""The states of a session between calls: kinds of states, and their memory.

    the program's states --owner.py--> groups of similar states --memory.py--> kinds
    a kind --spans--> a store of its owner --host.py--> arenas

`kind.py` is the interface of a kind of state: the greatest length of a call, the undo
of a call, how far rows can be rewound, the content of a fork and of a file, and
operations on single rows. `linear.py`, `ring.py`, `growing.py`, `counter.py` and
`plain.py` are the kinds, and `table.py` lists them: a new kind is a file there and a
row in that table. A kind addresses rows and slots through the memory's owner
(`owner.py`) and never sees an array over that memory.
"""
