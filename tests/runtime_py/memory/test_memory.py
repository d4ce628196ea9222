"""What forks cost: pages where they differ, counted exactly."""

import gc
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fork_ways import WAYS
from hand_built import write_bundle
from resident_memory import LINUX, count_descriptors, count_maps
from session_contents import contents, random_rows
from stateful_programs import linear_program

from kvc.runtime.memory.arenas import PAGE_NBYTES
from kvc.runtime.memory.forking import share_arena
from kvc.runtime.memory.shared_pages import MAPS
from kvc.runtime.states import host

rows = partial(random_rows, width=64)
pytestmark = LINUX

# One cache, three heads of 256 slots of 256 bytes, after 64 bytes of the position: a
# head is 16 pages, and 100 tokens of it lie in 7.
HEADS, PREFIX_PAGES = 3, 3 * 7


@pytest.fixture
def parent(opened):
    with opened(linear_program(capacity=256)).session() as session:
        session.write(rows(64))
        session.write(rows(36))
        yield session


def frozen_nbytes(*sessions):
    """Return the memory that sessions have in common, each memfd once."""
    found = {}
    for session in sessions:
        found.update(session.residency().frozen)
    return sum(found.values())


def test_two_forks_cost_pages_only_where_they_differ(parent):
    assert parent.residency().own == PREFIX_PAGES * PAGE_NBYTES
    with parent.fork() as one, parent.fork() as other:
        for session in (parent, one, other):
            found = session.residency()
            assert found.own == 0
            assert found.shared == PREFIX_PAGES * PAGE_NBYTES
            assert found.total == PREFIX_PAGES * PAGE_NBYTES
        assert frozen_nbytes(parent, one, other) == PREFIX_PAGES * PAGE_NBYTES
        one.write(rows(1))
        # The position lies in the first page of the first head, the token in each last.
        assert one.residency().own == (HEADS + 1) * PAGE_NBYTES
        one.write(rows(30))
        assert one.residency().own == (HEADS * 3 + 1) * PAGE_NBYTES
        assert other.residency().own == parent.residency().own == 0
        assert frozen_nbytes(parent, one, other) == PREFIX_PAGES * PAGE_NBYTES


def test_a_fork_of_a_fork_shares_what_both_have(parent):
    with parent.fork() as child:
        child.write(rows(64))
        child.write(rows(27))
        assert child.residency().own == (HEADS * 6 + 1) * PAGE_NBYTES
        with child.fork() as grandchild:
            # Six pages a head join what is frozen; that of the position is copied.
            assert child.residency().own == PAGE_NBYTES
            assert grandchild.residency().own == PAGE_NBYTES
            assert len(grandchild.residency().frozen) == 2
            joined = (PREFIX_PAGES + HEADS * 6) * PAGE_NBYTES
            assert frozen_nbytes(parent, child, grandchild) == joined


def test_rewinding_a_fork_gives_its_own_pages_back(parent):
    with parent.fork() as child:
        child.write(rows(64))
        child.rewind(64)
        # Of each head, where the prefix ends and where the last token was.
        assert child.residency().own <= (HEADS * 2 + 1) * PAGE_NBYTES
        child.rewind(90)
        found = child.residency()
        assert found.own <= HEADS * 3 * PAGE_NBYTES
        assert found.shared == 0
        child.reset()
        assert child.residency().own == 0
        assert child.residency().frozen == {}


def test_what_nobody_shares_any_more_goes_back(parent):
    gc.collect()  # what other tests have left
    descriptors, taken = count_descriptors(), MAPS.taken
    child = parent.fork()
    assert count_descriptors() == descriptors + 1
    assert MAPS.taken > taken
    parent.reset()
    assert frozen_nbytes(parent) == 0
    assert frozen_nbytes(child) == PREFIX_PAGES * PAGE_NBYTES
    child.close()
    del child
    gc.collect()
    assert count_descriptors() == descriptors
    assert MAPS.taken == taken


def test_maps_are_counted_as_the_system_does_or_above(parent):
    parent.fork().close()
    gc.collect()  # what other tests have left
    before, taken = count_maps(), MAPS.taken
    children = [parent.fork() for _ in range(20)]
    made = count_maps() - before
    # Memory of others may go meanwhile; most maps are those of the forks.
    assert 20 * 5 <= made <= MAPS.taken - taken + 20 * 4
    for child in children:
        child.rewind(10)
        child.write(rows(40))
    assert count_maps() - before <= MAPS.taken - taken + 20 * 4


def test_a_fork_without_maps_to_spare_maps_the_arena_whole(parent, monkeypatch):
    WAYS["whole"](monkeypatch)
    with parent.fork() as one, parent.fork() as other:
        assert one.residency().maps == other.residency().maps == 1
        assert one.residency().own == other.residency().own == 0
        one.write(rows(64))
        other.write(rows(64))
        # What is written after the prefix is paid once more, for all of them.
        more = HEADS * 4
        assert frozen_nbytes(parent, one, other) == (PREFIX_PAGES + more) * PAGE_NBYTES


def test_residency_says_nothing_where_the_system_does_not(parent, monkeypatch):
    WAYS["untold"](monkeypatch)
    with parent.fork() as child:
        found = child.residency()
        assert found.own is found.total is None
        assert found.shared == PREFIX_PAGES * PAGE_NBYTES


def test_pages_that_were_only_read_are_nobodys(opened):
    with opened(linear_program(capacity=256)).session() as session:
        assert not session.state["cache0"].any()
        assert session.residency().own == 0


SCRIPT = """
import mmap, sys
import numpy as np
from kvc.runtime import (OutOfMemory, load)

path, most = sys.argv[1], int(open("/proc/sys/vm/max_map_count").read())
rows = np.arange(3 * 64 * 64, dtype=np.float32).reshape(1, 3, 64, 64) + 1
program = load(path)
parents = []
for _ in range(6):
    parents.append(program.session())
    parents[-1].write(rows)

def count():
    with open("/proc/self/maps") as lines:
        return sum(1 for _ in lines)

# Single pages with none between them, so that no two become one map.
spare = mmap.mmap(-1, 2 * most * mmap.PAGESIZE, flags=0x4022)
from kvc.runtime.memory import (mapping)
address = np.frombuffer(spare, np.uint8).ctypes.data
import ctypes
protect = ctypes.CDLL(None).mprotect
protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
left, place = most - count(), 1
for i in range((left - {left}) // 2):
    assert protect(address + (2 * i + 1) * mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
assert most - count() < {left} + 4, most - count()
children = []
for parent in parents:
    try:
        children.append(parent.fork())
    except OutOfMemory:  # the system has no map left, not even for a new arena
        pass
assert children
for session in parents + children:
    assert np.array_equal(session.state["cache0"][:, :, :64], rows)
for session in parents + children:
    session.rewind(50)
    session.write(rows[:, :, :20])
for session in parents + children:
    assert np.array_equal(session.state["cache0"][:, :, 14:34], rows[:, :, :20])
    assert np.array_equal(session.state["cache0"][:, :, :14], rows[:, :, :14])
    assert not session.state["cache0"][:, :, 34:].any()
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("left", range(16, 80, 4))
def test_nothing_is_lost_where_maps_run_out_midway(tmp_path: Path, left: int):
    path = write_bundle(tmp_path / "p.kvc", linear_program(capacity=256))
    script = SCRIPT.replace("{left}", str(left))
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_no_room_for_files_means_copies(parent, monkeypatch):
    def refuse(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    before = contents(parent)
    with parent.fork() as child:
        assert contents(child) == contents(parent) == before
        assert child.residency().own == PREFIX_PAGES * PAGE_NBYTES


def test_no_memory_for_files_means_copies_of_the_rest(parent, monkeypatch):
    real, calls = os.pwrite, []

    def some(*arguments):
        calls.append(arguments)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(os, "pwrite", some)
    before = contents(parent)
    with parent.fork() as child:
        monkeypatch.undo()
        assert contents(child) == contents(parent) == before
        assert child.residency().own == PREFIX_PAGES * PAGE_NBYTES * 2 // 3
        child.rewind(100)
        assert not np.any(child.state["cache0"])
        assert contents(parent) == before


def test_a_fork_that_broke_off_leaves_nothing_stale_to_the_next(parent, monkeypatch):
    def interrupted(*arguments):
        share_arena(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(host, "share_arena", interrupted)
    with pytest.raises(KeyboardInterrupt):
        parent.fork()
    monkeypatch.undo()
    parent.write(rows(40))
    with parent.fork() as child:
        assert contents(child) == contents(parent)
