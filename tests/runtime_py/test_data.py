"""Named data: lazy, verified, freeable."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hand_built import affine_program, program, write_bundle

from kvc.runtime import (
    BufferFreed,
    Closed,
    DigestMismatch,
    FileChanged,
    UnknownName,
    load,
)

MIB = 1 << 20


def built(**arrays):
    made = affine_program()[0]
    return program(
        made.methods, {"scale": np.ones(4, np.float32), **arrays}, symbols=made.symbols
    )


@pytest.fixture
def large(tmp_path):
    weight = np.arange(4 * MIB, dtype=np.float32).reshape(-1, 1024)
    with load(write_bundle(tmp_path / "w.kvc", built(weight=weight))) as opened:
        yield opened


def resident_kib(path):
    """Return the resident KiB of this process's maps of a file."""
    total, inside = 0, False
    with Path("/proc/self/smaps").open() as lines:
        for line in lines:
            if "-" in line.split()[0]:
                inside = line.rstrip().endswith(str(path))
            elif inside and line.startswith("Rss:"):
                total += int(line.split()[1])
    return total


def test_an_array_has_the_declared_type_and_is_read_only(large):
    with large.data["weight"] as buffer:
        array = buffer.array()
        assert (array.dtype, array.shape) == (np.float32, (4096, 1024))
        assert array[1, 1] == 1025
        assert not array.flags.writeable


def test_nothing_is_mapped_before_it_is_asked_for(large):
    buffer = large.data["weight"]
    assert resident_kib(large.path) == 0
    buffer.array()
    assert resident_kib(large.path) >= 16 * 1024


def test_the_last_handles_free_gives_the_pages_back(large):
    first, second = large.data["weight"], large.data["weight"]
    first.array(), second.array()
    first.free()
    assert resident_kib(large.path) >= 16 * 1024
    second.free()
    assert resident_kib(large.path) <= 64


def test_a_handle_that_is_dropped_gives_the_pages_back(large):
    large.data["weight"].array()
    assert resident_kib(large.path) <= 64


def test_a_freed_handle_says_so_and_freeing_twice_is_safe(large):
    first, second = large.data["weight"], large.data["weight"]
    first.array()
    first.free()
    first.free()
    with pytest.raises(BufferFreed, match=r"'weight' has been freed; ask program.data"):
        first.array()
    assert second.array()[0, 1] == 1


def test_leaving_the_with_block_frees(large):
    with large.data["weight"] as buffer:
        buffer.array()
    assert buffer.freed


def test_views_never_dangle(large):
    with large.data["weight"] as buffer:
        row = buffer.array()[4000]
    large.close()
    assert row[5] == 4000 * 1024 + 5


def test_a_flipped_bit_is_an_error_that_names_the_data(tmp_path):
    path = write_bundle(tmp_path / "w.kvc", built(weight=np.ones(9000, np.float32)))
    content = bytearray(path.read_bytes())
    content[content.index(np.ones(64, np.float32).tobytes()) + 20000] ^= 1
    path.write_bytes(content)
    with load(path) as opened:
        assert opened.data["scale"].array().tolist() == [1, 1, 1, 1]
        for _ in range(2):
            with pytest.raises(DigestMismatch, match="weight is damaged"):
                opened.data["weight"].array()


def test_bytes_that_change_after_a_free_are_found(tmp_path):
    path = write_bundle(tmp_path / "w.kvc", built(weight=np.ones(9000, np.float32)))
    with load(path) as opened:
        with opened.data["weight"] as buffer:
            buffer.array()
        with path.open("r+b") as file:
            file.seek(8192)
            file.write(b"\7")
        with pytest.raises(FileChanged, match="changed while it was in use"):
            opened.data["weight"].array()


def test_a_truncated_file_is_found_before_it_is_touched(tmp_path):
    path = write_bundle(tmp_path / "w.kvc", built(weight=np.ones(9000, np.float32)))
    with load(path) as opened:
        os.truncate(path, 4096)
        with pytest.raises(FileChanged):
            opened.data["weight"].array()


def test_a_write_by_mistake_never_reaches_the_file(tmp_path):
    path = write_bundle(tmp_path / "w.kvc", built())
    before = path.read_bytes()
    with load(path) as opened:
        opened.data["scale"].private_array()[0] = 9
    assert path.read_bytes() == before


def test_a_handle_of_a_closed_program_says_so(large):
    buffer = large.data["weight"]
    large.close()
    with pytest.raises(Closed, match="the program has been closed"):
        buffer.array()
    buffer.free()


def test_an_unknown_name_lists_some_that_there_are(large):
    assert "nothing" not in large.data
    with pytest.raises(UnknownName, match="no data 'nothing'; it has: scale, weight"):
        _ = large.data["nothing"]


def test_many_threads_may_take_and_free(large):
    wrong = []

    def take():
        for _ in range(20):
            with large.data["weight"] as buffer:
                if buffer.array()[3, 7] != 3079:
                    wrong.append(1)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert resident_kib(large.path) <= 64


def test_a_program_works_after_the_user_freed_its_data(large):
    x = np.ones((1, 4), np.float32)
    first = large.forward(x)
    with large.data["scale"] as buffer:
        buffer.array()
    assert np.array_equal(large.forward(x), first)


def test_a_file_replaced_by_rename_stays_readable_as_it_was(tmp_path):
    path = write_bundle(tmp_path / "w.kvc", built(weight=np.ones(9000, np.float32)))
    with load(path) as opened:
        other = built(weight=np.zeros(9000, np.float32))
        write_bundle(tmp_path / "new.kvc", other).rename(path)
        assert opened.data["weight"].array().min() == 1
