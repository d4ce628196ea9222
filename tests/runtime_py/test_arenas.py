"""Reserved memory: nothing is used before it is written, all of it can go back."""

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from kvc.runtime.arenas import Arena, align_up
from kvc.schema.dtypes import DType


def resident_pages():
    return int(Path("/proc/self/statm").read_text().split()[1])


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
    from kvc.runtime.tensors import array_as_tensor

    part = Arena(4096).array(64, DType.BFLOAT16, (2, 3))
    assert array_as_tensor(part).untyped_storage().nbytes() == 12


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted in /proc")
def test_pages_appear_when_written_and_go_when_discarded():
    arena = Arena(1 << 36)
    array = arena.array(0, DType.UINT8, (1 << 36,))
    before = resident_pages()
    array[: 16 << 20] = 1
    assert resident_pages() - before > 3500
    arena.discard()
    assert resident_pages() - before < 500
    assert not array[:4096].any()
