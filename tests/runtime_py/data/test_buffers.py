"""Named data through the public door: lazy, verified, freeable, in each mode."""

import gc
import threading

import numpy as np
import pytest
from data_programs import table_of, table_program, write_data_bundle
from resident_memory import (
    LINUX,
    count_descriptors,
    map_field,
    resident_within,
)

from kvc.runtime import BufferFreed, Closed, DigestMismatch, UnknownName, load

MIB = 1 << 20
# Linux maps 64 KiB of a file at a time, or 2 MiB where they lie together in its cache.
PAGE_NBYTES = 2 * MIB
SMALL = np.arange(4, dtype=np.float32)
MODES = ("map", "read", "huge")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The path of a bundle with a table of 16 MiB."""
    folder = tmp_path_factory.mktemp("data")
    return write_data_bundle(folder / "t.kvc", table_program(4096, small=SMALL))


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


@pytest.fixture
def opened(path, mode):
    with load(path, mode) as program:
        yield program


def test_an_array_has_the_declared_type_and_is_read_only(opened):
    with opened.data["table"] as buffer:
        array = buffer.array()
        assert (array.dtype, array.shape) == (np.float32, (4096, 1024))
        assert buffer.nbytes == array.nbytes
        assert np.array_equal(array, table_of(4096))
        assert not array.flags.writeable


@LINUX
def test_memory_comes_with_use_and_goes_with_the_last_handle(opened):
    first, second = opened.data["table"], opened.data["table"]
    assert first.array().max() == second.array().max() == 4095
    table = first.array().ctypes.data, first.nbytes
    assert resident_within(*table) >= 15 * MIB
    first.free()
    assert resident_within(*table) >= 15 * MIB
    second.free()
    assert resident_within(*table) <= 4 * MIB


@LINUX
def test_a_handle_that_is_dropped_gives_the_memory_back(opened):
    buffer = opened.data["table"]
    assert buffer.array().max() == 4095
    table = buffer.array().ctypes.data, buffer.nbytes
    assert resident_within(*table) >= 15 * MIB
    del buffer
    assert resident_within(*table) <= 4 * MIB


@LINUX
def test_nothing_is_in_memory_before_it_is_used(path):
    with load(path) as opened, opened.data["table"] as buffer:
        array = buffer.array()
        assert map_field("Rss", path=path) == 0
        assert array[2000, 3] == 2000
        assert 0 < map_field("Rss", path=path) <= PAGE_NBYTES


@LINUX
def test_a_row_of_an_embedding_costs_no_more_than_its_page(path):
    with load(path) as opened:
        assert opened.row(np.array([1234])).min() == 1234
        assert 0 < map_field("Rss", path=path) <= PAGE_NBYTES


def test_a_freed_handle_says_so_and_freeing_twice_is_safe(opened):
    first, second = opened.data["table"], opened.data["table"]
    first.array()
    first.free()
    first.free()
    with pytest.raises(BufferFreed, match=r"'table' has been freed; ask program.data"):
        first.array()
    assert second.array()[1, 1] == 1


def test_leaving_the_with_block_frees(opened):
    with opened.data["table"] as buffer:
        assert not buffer.freed
        assert repr(buffer) == "<FreeableBuffer 'table': float32[4096, 1024]>"
    assert buffer.freed
    assert repr(buffer) == "<FreeableBuffer 'table': freed>"


def test_views_never_dangle(opened):
    with opened.data["table"] as buffer:
        row = buffer.array()[4000]
    assert row[5] == 4000
    again = opened.data["table"].array()
    assert again[4000, 5] == 4000
    opened.close()
    gc.collect()
    assert row[5] == again[4000, 5] == 4000


def test_a_torch_view_keeps_the_memory(opened):
    import torch

    with opened.data["table"] as buffer:
        row = torch.from_numpy(buffer.private_array())[4000]
    opened.close()
    gc.collect()
    assert row.min() == row.max() == 4000


@LINUX
@pytest.mark.parametrize("mode", ["read", "huge"])
def test_own_memory_goes_with_the_last_view(path, mode):
    with load(path, mode) as opened:
        with opened.data["table"] as buffer:
            table = buffer.array().ctypes.data, buffer.nbytes
            row = buffer.array()[4000]
        assert resident_within(*table) >= 15 * MIB
        assert opened.residency().blobs[0].freed == 0
        del row
        assert resident_within(*table) <= 4 * MIB
        assert opened.residency().blobs[0].freed == 16 * MIB


def test_a_flipped_bit_is_an_error_that_names_the_data(tmp_path, mode):
    table = table_program(9, small=SMALL)
    path = write_data_bundle(tmp_path / "w.kvc", table)
    content = bytearray(path.read_bytes())
    content[content.index(table_of(9).tobytes()) + 20000] ^= 1
    path.write_bytes(content)
    with load(path, mode) as opened:
        assert opened.data["small"].array().tolist() == [0, 1, 2, 3]
        for _ in range(2):
            with pytest.raises(DigestMismatch, match="table is damaged"):
                opened.data["table"].array()


def test_a_write_by_mistake_never_reaches_the_file(path, mode):
    before = path.read_bytes()
    with load(path, mode) as opened:
        opened.data["small"].private_array()[0] = 9
    assert path.read_bytes() == before


def test_a_handle_of_a_closed_program_says_so(opened):
    buffer = opened.data["table"]
    opened.close()
    with pytest.raises(Closed, match="the program has been closed"):
        buffer.array()
    buffer.free()


def test_an_unknown_name_lists_some_that_there_are(opened):
    assert "nothing" not in opened.data
    assert list(opened.data) == ["table", "small"]
    assert len(opened.data) == 2
    with pytest.raises(UnknownName, match="no data 'nothing'; it has: table, small"):
        _ = opened.data["nothing"]


@LINUX
def test_many_threads_may_take_and_free(opened):
    wrong, tables = [], []

    def take():
        for _ in range(10):
            with opened.data["table"] as buffer:
                tables.append((buffer.array().ctypes.data, buffer.nbytes))
                if buffer.array()[3, 7] != 3:
                    wrong.append(1)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert max(resident_within(*table) for table in tables) <= 4 * MIB


def test_a_program_works_after_the_user_freed_its_data(opened):
    first = opened.total()
    with opened.data["table"] as buffer:
        buffer.array()
    assert np.array_equal(opened.total(), first)


@LINUX
def test_a_dropped_program_closes_its_files_after_the_last_handle(path, mode):
    before = count_descriptors()
    program = load(path, mode)
    program.row(np.array([1]))
    buffer = program.data["table"]
    del program
    gc.collect()
    assert buffer.array()[7, 7] == 7
    del buffer
    gc.collect()
    assert count_descriptors() == before
    assert map_field("Size", path=path) == 0
