"""Maps of files: pages go when no blob in use needs them."""

import mmap

import numpy as np
import pytest
from data_programs import table_program, write_data_bundle
from resident_memory import LINUX, count_maps, is_resident, map_field

from kvc.runtime import OutOfMemory, load
from kvc.runtime.data import mapped_files
from kvc.runtime.memory import pages

PAGE = mmap.PAGESIZE


def numbers(nbytes, start):
    return np.arange(start, start + nbytes // 4, dtype=np.float32)


@pytest.fixture
def opened(tmp_path):
    """Blobs that share pages: 1, 2 and 3 lie on two pages, 4 begins its own."""
    others = {
        "first": numbers(1000, 1),
        "second": numbers(4000, 2),
        "third": numbers(1000, 3),
        "large": numbers(40 * PAGE, 4),
    }
    path = write_data_bundle(tmp_path / "t.kvc", table_program(1, **others), True)
    with load(path) as program:
        yield program


def sum_of(buffer):
    return float(buffer.array().astype(np.float64).sum())


@LINUX
def test_a_page_goes_when_no_blob_in_use_lies_on_it(opened):
    first, second, third = (opened.data[n] for n in ("first", "second", "third"))
    addresses = {b.name: b.array().ctypes.data for b in (first, second, third)}
    own = addresses["second"] // PAGE * PAGE
    assert addresses["first"] // PAGE * PAGE == own
    assert addresses["third"] // PAGE * PAGE == own + PAGE
    total = [sum_of(first), sum_of(second), sum_of(third)]
    second.free()
    assert is_resident(own)
    assert is_resident(own + PAGE)
    first.free()
    assert not is_resident(own)
    assert is_resident(own + PAGE)
    again = opened.data["second"]
    assert [sum_of(opened.data["first"]), sum_of(again), sum_of(third)] == total
    again.free()
    assert not is_resident(own)
    assert is_resident(own + PAGE)
    third.free()
    assert not is_resident(own + PAGE)


@LINUX
def test_the_last_blob_in_use_takes_along_what_linux_brought_with_it(opened):
    path = next(iter(opened.residency().blobs)).file
    with opened.data["first"] as first, opened.data["large"] as large:
        assert sum_of(first) > 0
        assert sum_of(large) > 0
    folder = opened.path.rpartition("/")[0]
    assert map_field("Size", path=f"{folder}/{path}") > 0
    assert map_field("Rss", path=f"{folder}/{path}") == 0


@LINUX
def test_a_file_has_one_map_however_many_blobs(tmp_path):
    others = {f"w{i}": numbers(8, i) for i in range(500)}
    path = write_data_bundle(tmp_path / "t.kvc", table_program(1, **others))
    with load(path) as opened:
        buffers = [opened.data[name] for name in opened.data]
        arrays = [buffer.array() for buffer in buffers]
        assert count_maps(path) == 1
        assert len(arrays) == 501


@LINUX
def test_what_was_resident_and_went_is_counted(opened):
    with opened.data["large"] as large:
        sum_of(large)
    by_name = {blob.names[0]: blob for blob in opened.residency().blobs}
    assert by_name["large"].freed == 40 * PAGE
    assert by_name["large"].touched == 0
    assert by_name["first"].freed == 0
    with opened.data["large"] as large:
        large.array()
    assert opened.residency().totals.freed == 40 * PAGE


def test_where_nobody_can_say_it_is_not_counted(opened, monkeypatch):
    monkeypatch.setattr(pages, "_PATH", "/proc/self/none")
    for _ in range(2):
        with opened.data["large"] as large:
            sum_of(large)
    residency = opened.residency()
    assert residency.totals.freed is None
    assert residency.totals.touched is None
    assert residency.blobs[0].freed == 0


def test_a_system_without_address_space_says_so(opened, monkeypatch):
    def refuse(*_, **__):
        raise OSError(12, "no")

    monkeypatch.setattr(mapped_files.mmap, "mmap", refuse)
    with pytest.raises(OutOfMemory, match=r"refuses \d+ bytes for a map of .*kvd"):
        opened.data["large"].array()
