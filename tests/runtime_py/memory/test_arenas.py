"""Reserved memory: nothing is used before it is written, all of it can go back."""

import mmap
import subprocess
import sys

import numpy as np
import pytest
from resident_memory import LINUX, resident_nbytes

from kvc.runtime import OutOfMemory
from kvc.runtime.memory.arenas import PAGE_NBYTES, Arena, align_up
from kvc.schema.dtypes import DType


def test_align_up_gives_the_next_multiple():
    assert [align_up(n) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]


def test_arrays_share_the_arena_at_their_offsets():
    arena = Arena(256)
    whole = arena.array(0, DType.UINT8, (256,))
    part = arena.array(64, DType.FLOAT32, (2, 3))
    part[:] = 1
    assert whole[64:88].view(np.float32).tolist() == [1] * 6
    assert not whole[:64].any()


def test_an_empty_arena_and_an_empty_array_are_fine():
    assert Arena(0).array(0, DType.FLOAT32, (0, 4)).shape == (0, 4)


def test_an_array_beyond_the_end_is_refused():
    with pytest.raises(TypeError):
        Arena(64).array(mmap.PAGESIZE * 3, DType.FLOAT32, (4,))


def test_a_tensor_over_a_part_has_a_storage_of_exactly_its_size():
    from kvc.runtime.execution.values import array_as_tensor

    part = Arena(4096).array(64, DType.BFLOAT16, (2, 3))
    assert array_as_tensor(part).untyped_storage().nbytes() == 12


@pytest.mark.parametrize("nbytes", [1 << 60, 1 << 63, 1 << 70])
def test_more_address_space_than_there_is_is_told_with_its_purpose(nbytes):
    with pytest.raises(OutOfMemory) as caught:
        Arena(nbytes, "the states of a session")
    assert caught.value.facts == {"what": "the states of a session", "nbytes": nbytes}


def test_a_limit_of_the_process_is_a_typed_error():
    script = (
        "import resource\n"
        "from kvc.runtime import OutOfMemory\n"
        "from kvc.runtime.memory.arenas import Arena\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))\n"
        "Arena(1 << 20)\n"
        "try:\n"
        "    Arena(1 << 33)\n"
        "except OutOfMemory as error:\n"
        "    assert str(error) == "
        "'the system refuses 8589934592 bytes for scratch memory'\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, 10), (5, 0), (100, 3 * PAGE_NBYTES), (PAGE_NBYTES, 64)]
)
def test_a_run_that_is_cleared_is_zero_and_no_more(offset, nbytes):
    arena = Arena(5 * PAGE_NBYTES)
    whole = arena.array(0, DType.UINT8, (5 * PAGE_NBYTES,))
    whole[:] = 1
    arena.clear(offset, nbytes)
    assert not whole[offset : offset + nbytes].any()
    assert whole.sum() == 5 * PAGE_NBYTES - nbytes


def test_only_whole_pages_are_given_back():
    arena = Arena(4 * PAGE_NBYTES)
    whole = arena.array(0, DType.UINT8, (4 * PAGE_NBYTES,))
    whole[:] = 1
    start, end = arena.give_back(PAGE_NBYTES - 1, 2 * PAGE_NBYTES)
    assert (start, end) == (PAGE_NBYTES, 2 * PAGE_NBYTES)
    assert whole.sum() == 3 * PAGE_NBYTES
    assert arena.give_back(1, PAGE_NBYTES) == (1, 1)
    assert whole.sum() == 3 * PAGE_NBYTES


@LINUX
def test_pages_appear_when_written_and_go_when_discarded():
    arena = Arena(1 << 36)
    array = arena.array(0, DType.UINT8, (1 << 36,))
    before = resident_nbytes()
    array[: 16 << 20] = 1
    assert resident_nbytes() - before > 14 << 20
    arena.discard()
    assert resident_nbytes() - before < 4 << 20
    assert not array[:4096].any()
