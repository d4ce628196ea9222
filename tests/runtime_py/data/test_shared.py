"""Programs of one process that have equal blobs: in memory once, and until the last."""

import gc
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from data_programs import table_program, write_data_bundle
from resident_memory import LINUX, count_descriptors, count_maps, map_field

from kvc.runtime import FileChanged, FormatError, load
from kvc.schema.container import StoredBlobs

ROWS = 600
NBYTES = ROWS * 4096
MODES = pytest.mark.parametrize("mode", ["map", "read", "huge"])


FORKED = """
import os, sys, threading
from kvc.runtime import load
from kvc.runtime.data.shared import SHARES

mode, first, second = sys.argv[1:]
held, done = threading.Event(), threading.Event()

def hold():
    with SHARES.lock:
        held.set()
        done.wait()

with load(first, mode) as one:
    one.total()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        with load(second, mode) as two:
            total = int(two.total()[0, 0])
            print("child", total, two.residency().totals.shared, flush=True)
        del one
        os._exit(0)
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    print("parent", int(one.total()[0, 0]))
"""


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    """Two bundles, each with a file of its own, whose table has the same bytes."""
    other = np.full(9000, 7, np.float32)
    one = write_data_bundle(tmp_path / "one.kvc", table_program(ROWS))
    two = write_data_bundle(tmp_path / "two.kvc", table_program(ROWS, other=other))
    return one, two


@pytest.fixture
def checked(monkeypatch) -> list[int]:
    """The blobs that are read from files to be verified."""
    seen: list[int] = []

    def noting(original):
        def method(self, blob, *args):
            seen.append(blob)
            return original(self, blob, *args)

        return method

    for name in ("check", "read_into"):
        original = getattr(StoredBlobs, name)
        monkeypatch.setattr(StoredBlobs, name, noting(original))
    return seen


def damage(path: Path) -> None:
    """Change a byte of the table, without a trace in the file's times."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        file.write(b"!")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def place_of(program) -> int:
    with program.data["table"] as buffer:
        return buffer.array().ctypes.data


@MODES
def test_equal_blobs_of_two_files_are_in_memory_once(paths, mode, checked):
    with load(paths[0], mode) as one, load(paths[1], mode) as two:
        with one.data["table"] as first, two.data["table"] as second:
            arrays = first.array(), second.array()
            assert arrays[0].ctypes.data == arrays[1].ctypes.data
            assert arrays[1][5, 0] == 5
        assert checked == [0]


@MODES
def test_a_file_opened_twice_is_mapped_and_verified_once(paths, mode, checked):
    with load(paths[0], mode) as one, load(paths[0], mode) as two:
        assert one.total()[0, 0] == two.total()[0, 0]
        assert checked == [0]
        if mode == "map":
            assert count_maps(paths[0]) == 1


@LINUX
@MODES
def test_the_report_says_what_is_shared_and_until_when(paths, mode):
    with load(paths[0], mode) as one:
        one.total()
        assert one.residency().totals.shared == 0
        with load(paths[1], mode) as two:
            two.total()
            for program in (one, two):
                table, *others = program.residency().blobs
                assert table.touched == table.shared == NBYTES
                assert sum(blob.shared for blob in others) == 0
            two.release()
            report = two.residency().blobs[0]
            assert (report.shared, report.freed, report.handles) == (0, 0, 0)
            assert one.residency().blobs[0].touched == NBYTES
            assert one.residency().totals.shared == 0
            two.total()
            assert one.residency().totals.shared == NBYTES
        assert one.residency().totals.shared == 0
        assert one.total()[0, 0] == ROWS * (ROWS - 1) / 2
        one.release()
        assert one.residency().totals.touched == 0
        assert one.residency().totals.freed == NBYTES


@MODES
@pytest.mark.parametrize("first", [0, 1])
def test_programs_are_closed_in_any_order(paths, mode, first):
    gc.collect()
    files = count_descriptors()
    programs = [load(path, mode) for path in paths]
    for program in programs:
        program.total()
    place = place_of(programs[0])
    programs.pop(first).close()
    (left,) = programs
    assert left.total()[0, 0] == ROWS * (ROWS - 1) / 2
    assert place_of(left) == place
    left.close()
    assert count_descriptors() == files
    assert not any(map(count_maps, paths))


@MODES
def test_a_program_that_is_never_closed_gives_back_what_it_had(paths, mode):
    one, two = (load(path, mode) for path in paths)
    one.total()
    two.total()
    assert two.residency().blobs[0].shared == NBYTES
    del one
    gc.collect()
    assert two.residency().blobs[0].shared == 0
    two.close()


@LINUX
@MODES
def test_a_handle_keeps_what_the_other_program_frees(paths, mode):
    with load(paths[0], mode) as one, load(paths[1], mode) as two:
        with one.data["table"] as kept:
            assert kept.array()[:, 0].sum() == two.total()[0, 0]
            two.release()
            assert one.residency().blobs[0].touched == NBYTES
        assert one.residency().blobs[0].touched == 0


@MODES
def test_what_was_freed_by_all_is_verified_again(paths, mode, checked):
    with load(paths[0], mode) as one, load(paths[1], mode) as two:
        one.total()
        two.total()
        for program in (one, two):
            program.release()
        damage(paths[1])
        with pytest.raises(FormatError, match="table"):
            two.total()
        one.total()
        two.total()  # its bytes are those that the digest names, from the other file
        assert checked == [0, 0, 0]


def test_a_damaged_file_is_noticed_by_whoever_reads_it_and_not_by_others(paths):
    damage(paths[0])
    with load(paths[0]) as one, load(paths[1]) as two:
        with pytest.raises(FormatError):
            one.total()
        assert two.total()[0, 0] == ROWS * (ROWS - 1) / 2
        assert one.total()[0, 0] == two.total()[0, 0]


@pytest.mark.parametrize("mode", ["map"])
def test_a_program_leaves_a_changed_file_of_another_for_its_own(paths, mode):
    one, two, three = load(paths[0], mode), load(paths[1], mode), load(paths[1], mode)
    one.total()
    two.total()  # in the map of the first file
    one.close()
    with paths[0].open("r+b") as file:
        file.write(b"something else")
    with pytest.raises(FileChanged, match=r"one\.kvc"):
        two.total()
    assert three.total()[0, 0] == ROWS * (ROWS - 1) / 2  # it never had the first file
    two.release()
    assert two.total()[0, 0] == three.total()[0, 0]
    assert place_of(two) == place_of(three)
    two.close()
    three.close()
    assert not any(map(count_maps, paths))


@MODES
def test_a_removed_file_stays_for_the_programs_that_have_it(paths, mode):
    with load(paths[0], mode) as one:
        one.total()
        with load(paths[0], mode) as two:
            paths[0].unlink()
            assert two.total()[0, 0] == one.total()[0, 0]
            assert place_of(one) == place_of(two)


def test_a_file_that_takes_the_name_is_another_file(paths):
    with load(paths[0]) as one:
        one.total()
        new = write_data_bundle(paths[0].with_name("new"), table_program(ROWS + 1))
        new.rename(paths[0])
        with load(paths[0]) as two:
            assert place_of(one) != place_of(two)
            assert two.total()[0, 0] - one.total()[0, 0] == ROWS


def test_programs_of_different_modes_share_nothing(paths):
    with load(paths[0], "map") as one, load(paths[0], "read") as two:
        one.total()
        two.total()
        assert place_of(one) != place_of(two)
        assert one.residency().totals.shared == two.residency().totals.shared == 0


@LINUX
@MODES
def test_a_forked_child_opens_its_own(paths, mode):
    command = [sys.executable, "-c", FORKED, mode, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "child 179700 0\nparent 179700\n"


@MODES
def test_threads_open_use_and_close_at_the_same_time(paths, mode):
    gc.collect()
    files, wrong = count_descriptors(), []

    def work(number: int) -> None:
        chosen = random.Random(number)
        for _ in range(40):
            with load(chosen.choice(paths), mode) as program:
                for _ in range(chosen.randrange(3)):
                    if program.total()[0, 0] != ROWS * (ROWS - 1) / 2:
                        wrong.append(number)
                    chosen.choice((program.release, program.residency))()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    gc.collect()
    assert count_descriptors() == files
    assert not any(map(count_maps, paths))


@LINUX
def test_the_pages_of_one_file_count_once(paths):
    with load(paths[0]) as one, load(paths[0]) as two:
        one.total()
        once = map_field("Rss", path=paths[0])
        two.total()
        assert once == map_field("Rss", path=paths[0])
        assert NBYTES <= once < NBYTES + (1 << 17)
