"""What is resident, as the page table tells it."""

import mmap

import numpy as np
import pytest
from resident_memory import LINUX, map_field

from kvc.runtime.memory import pages
from kvc.runtime.memory.pages import PAGE_NBYTES, PageTable

MIB = 1 << 20


@pytest.fixture
def memory():
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, 600 * MIB, flags=flags) as whole:
        whole.madvise(mmap.MADV_NOHUGEPAGE)
        yield np.ndarray((600 * MIB,), np.uint8, whole)


@LINUX
def test_only_bytes_of_the_run_itself_are_counted(memory):
    address = memory.ctypes.data
    memory[2 * PAGE_NBYTES] = 1
    memory[3 * PAGE_NBYTES] = 1
    with PageTable() as table:
        assert table.resident_nbytes(address, 2 * PAGE_NBYTES) == 0
        assert table.resident_nbytes(address, 10 * PAGE_NBYTES) == 2 * PAGE_NBYTES
        inside = address + 2 * PAGE_NBYTES + 100
        assert table.resident_nbytes(inside, 1) == 1
        assert table.resident_nbytes(inside, PAGE_NBYTES) == PAGE_NBYTES
        assert table.resident_nbytes(inside, 9 * PAGE_NBYTES) == 2 * PAGE_NBYTES - 100
        assert table.resident_nbytes(address + 100, 3 * PAGE_NBYTES) == (
            PAGE_NBYTES + 100
        )
        assert table.resident_nbytes(inside, 0) == 0


@LINUX
def test_it_agrees_with_smaps_over_more_than_one_read(memory):
    memory[:: 3 * PAGE_NBYTES] = 1
    memory[pages._ENTRIES_AT_ONCE * PAGE_NBYTES] = 1  # where the second read begins
    address = memory.ctypes.data
    with PageTable() as table:
        found = table.resident_nbytes(address, memory.nbytes)
    assert found == map_field("Rss", address=address)


def test_without_a_page_table_nobody_can_say(monkeypatch):
    monkeypatch.setattr(pages, "_PATH", "/proc/self/none")
    with PageTable() as table:
        assert table.resident_nbytes(0, 4096) is None
        assert table.resident_nbytes(0, 0) is None


@LINUX
def test_memory_that_no_process_can_have_is_not_resident():
    with PageTable() as table:
        assert table.resident_nbytes(1 << 62, 4096) == 0
