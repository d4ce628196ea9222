"""Frozen pages."""

import gc
import mmap
import os

import numpy as np
import pytest
from resident_memory import LINUX, count_descriptors

from kvc.runtime.memory.intervals import one_run
from kvc.runtime.memory.mapping import Frozen

PAGE = mmap.PAGESIZE
pytestmark = LINUX


@pytest.fixture
def frozen():
    made = Frozen(64 * PAGE)
    made.write(4 * PAGE, np.full(2 * PAGE, 7, np.uint8))
    made.seal(one_run(4 * PAGE, 6 * PAGE))
    return made


def test_memory_is_taken_for_what_was_written_alone(frozen):
    assert frozen.nbytes == 2 * PAGE
    assert frozen.runs.tolist() == [[4 * PAGE, 6 * PAGE]]
    assert os.pread(frozen.fd, 2, 6 * PAGE - 1) == b"\x07\x00"


def test_nobody_can_change_what_is_sealed(frozen):
    with pytest.raises(PermissionError):
        os.pwrite(frozen.fd, b"x", 4 * PAGE)
    for length in (PAGE, 128 * PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(frozen.fd, length)
    with pytest.raises(PermissionError):
        mmap.mmap(frozen.fd, PAGE)  # a shared map that can be written


def test_the_file_is_closed_with_the_last_reference():
    before = count_descriptors()
    made = Frozen(PAGE)
    assert count_descriptors() == before + 1
    del made
    gc.collect()
    assert count_descriptors() == before
