"""The states of a session, which persist between calls: their kinds and memory.

    the program's states --owner.py--> groups --session_states.py--> kinds
    a kind --spans--> a store of its owner --host.py--> arenas

`kind.py` is the interface of a kind of state: how many tokens a call can add, the undo
of a call, how far rows can be rewound, the content of a fork and of a file, and
operations on single rows. `linear.py`, `ring.py`, `growing.py`, `counter.py` and
`plain.py` are the kinds, and `table.py` maps states to kinds: a new kind is a file in
this folder and a row in the table. A kind reads and writes rows and slots through the
owner of the memory (`owner.py`), never through arrays.
"""
