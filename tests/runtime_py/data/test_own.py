"""Memory of their own for blobs."""

from pathlib import Path

import numpy as np
import pytest
from data_programs import table_program, write_data_bundle
from resident_memory import LINUX, count_maps, map_field

from kvc.runtime import OutOfMemory, load
from kvc.runtime.data import own
from kvc.runtime.data.own import HUGE_PAGE_NBYTES, SMALL_NBYTES, reserve

MIB = 1 << 20
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize("huge", [False, True])
@pytest.mark.parametrize("nbytes", [0, 1, 63, SMALL_NBYTES, MIB, 3 * MIB + 1])
def test_memory_is_aligned_and_may_be_read_a_little_behind(nbytes, huge):
    place = reserve(nbytes, huge)
    assert place.address % 64 == 0
    with place.view(nbytes) as view:
        assert view.nbytes == nbytes
    with place.view(nbytes + 64) as view:
        assert view.nbytes == nbytes + 64


@LINUX
def test_large_blobs_lie_in_huge_pages(tmp_path):
    if "[never]" in HUGE_PAGES.read_text():
        pytest.skip("the system allows no huge pages")
    path = write_data_bundle(tmp_path / "t.kvc", table_program(1300))
    with load(path, "huge") as opened:
        assert opened.total()[0, 0] == 1299 * 650
        with opened.data["table"] as buffer:
            address = buffer.array().ctypes.data
        assert address % HUGE_PAGE_NBYTES == 0
        huge = map_field("AnonHugePages", address=address)
        if not huge:
            pytest.skip("the system has no huge page left")
        # 1300 rows of 4 KiB: two huge pages and an end in ordinary ones.
        assert huge == 2 * HUGE_PAGE_NBYTES
        assert opened.residency().blobs[0].touched == 1300 * 4096


@LINUX
def test_plain_memory_asks_for_no_huge_pages(tmp_path):
    path = write_data_bundle(tmp_path / "t.kvc", table_program(1300))
    with load(path, "read") as opened, opened.data["table"] as buffer:
        address = buffer.array().ctypes.data
        assert opened.residency().blobs[0].touched == 1300 * 4096
        if "[always]" not in HUGE_PAGES.read_text():
            assert map_field("AnonHugePages", address=address) == 0


@LINUX
@pytest.mark.parametrize("mode", ["read", "huge"])
def test_small_blobs_cost_no_map_each(tmp_path, mode):
    others = {f"w{i}": np.full(2000, i, np.float32) for i in range(300)}
    path = write_data_bundle(tmp_path / "t.kvc", table_program(1, **others))
    with load(path, mode) as opened:
        before = count_maps()
        arrays = [opened.data[name].array() for name in opened.data]
        assert count_maps() - before <= 10
        assert [float(array.max()) for array in arrays[1:]] == list(range(300))


def test_a_system_without_memory_says_so(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(12, "no")

    path = write_data_bundle(tmp_path / "t.kvc", table_program(64))
    with load(path, "read") as opened:
        monkeypatch.setattr(own.mmap, "mmap", refuse)
        with pytest.raises(OutOfMemory, match="262144 bytes for the data of a program"):
            opened.data["table"].array()
        monkeypatch.undo()
        assert opened.data["table"].array()[5, 0] == 5


@LINUX
def test_it_is_private_memory():
    place = reserve(MIB, huge=False)
    kinds = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        run, kind, *_ = line.split()
        start, end = (int(part, 16) for part in run.split("-"))
        kinds += [kind] if start <= place.address < end else []
    assert kinds == ["rw-p"]
