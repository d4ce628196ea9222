"""Memory of their own for blobs."""

import mmap
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from data_programs import table_program, write_data_bundle
from resident_memory import LINUX, count_maps, map_field, resident_nbytes

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


def huge_pages_of(array):
    return map_field("AnonHugePages", address=array.ctypes.data)


def system_gives_huge_pages():
    """Try it without kvc."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, 4 * HUGE_PAGE_NBYTES, flags=flags) as probe:
        with suppress(OSError):
            probe.madvise(mmap.MADV_HUGEPAGE)
        probe[2 * HUGE_PAGE_NBYTES] = 1
        inside = np.ndarray((1,), np.uint8, probe, 2 * HUGE_PAGE_NBYTES)
        return huge_pages_of(inside) > 0


@LINUX
def test_large_blobs_lie_in_huge_pages(tmp_path):
    if not system_gives_huge_pages():
        pytest.skip("the system gives no huge pages")
    path = write_data_bundle(tmp_path / "t.kvc", table_program(1300))
    with load(path, "huge") as opened, opened.data["table"] as buffer:
        array = buffer.array()
        assert array[:, 5].sum() == 1299 * 650
        assert array.ctypes.data % HUGE_PAGE_NBYTES == 0
        # 1300 rows of 4 KiB: two huge pages and an end in ordinary ones.
        assert huge_pages_of(array) == 2 * HUGE_PAGE_NBYTES
        assert opened.residency().blobs[0].touched == 1300 * 4096


@LINUX
def test_plain_memory_asks_for_no_huge_pages(tmp_path):
    path = write_data_bundle(tmp_path / "t.kvc", table_program(1300))
    with load(path, "read") as opened, opened.data["table"] as buffer:
        array = buffer.array()
        assert opened.residency().blobs[0].touched == 1300 * 4096
        if "[always]" not in HUGE_PAGES.read_text():
            assert huge_pages_of(array) == 0


@LINUX
@pytest.mark.parametrize("mode", ["read", "huge"])
def test_small_blobs_cost_neither_a_map_nor_a_page_each(tmp_path, mode):
    others = {f"w{i}": np.full(16, i, np.float32) for i in range(2000)}
    path = write_data_bundle(tmp_path / "t.kvc", table_program(1, **others))
    with load(path, mode) as opened:
        buffers = [opened.data[name] for name in opened.data]
        maps, before = count_maps(), resident_nbytes()
        arrays = [buffer.array() for buffer in buffers]
        assert count_maps() - maps <= 100
        assert resident_nbytes() - before < 4 * MIB
        assert [float(array.max()) for array in arrays[1:]] == list(range(2000))


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
