"""Packed weights of several programs: packed once, and there until the last goes."""

import gc
import threading

import numpy as np
import pytest
from hand_built import write_bundle
from resident_memory import LINUX, resident_nbytes
from xnnpack_graphs import library_or_skip
from xnnpack_programs import linear_sketch, numbers, partition_program

from kvc.runtime import load
from kvc.runtime.delegates.xnnpack.packed_bytes import may_be_offered
from kvc.runtime.delegates.xnnpack.weights import Weights
from kvc.tools.packing import pack_bundle, packed_format

ROWS, COLUMNS = 2048, 1024
WEIGHT = numbers((ROWS, COLUMNS))
SCALES = np.linspace(0.01, 0.02, ROWS, dtype=np.float32)
X = np.random.default_rng(5).standard_normal((3, COLUMNS)).astype(np.float32)


@pytest.fixture(autouse=True)
def library():
    return library_or_skip()


@pytest.fixture
def paths(tmp_path):
    """Two bundles with files of their own: a weight of both, and one of the second."""
    linear, other = linear_sketch(WEIGHT, SCALES), linear_sketch(-WEIGHT, SCALES)
    one = write_bundle(tmp_path / "1.kvc", partition_program({"forward": linear}))
    both = partition_program({"other": other, "forward": linear})
    return one, write_bundle(tmp_path / "2.kvc", both)


@pytest.fixture
def packed_by_library(monkeypatch):
    """The weights that the library packs, by their identity's digest."""
    digests = []
    insert = Weights._insert

    def noted(self, asked, address, nbytes):
        digests.append(self._places[asked.kernel].identity.digest)
        return insert(self, asked, address, nbytes)

    monkeypatch.setattr(Weights, "_insert", noted)
    return digests


def opened(path):
    return load(path, reference=False)


@LINUX
@pytest.mark.parametrize("first", [0, 1])
def test_an_equal_weight_is_packed_once(paths, packed_by_library, first):
    programs = [opened(path) for path in paths]
    wanted = programs[0].forward(X)
    before = resident_nbytes()
    assert np.array_equal(programs[1].forward(X), wanted)
    assert resident_nbytes() - before < WEIGHT.nbytes / 2
    assert len(packed_by_library) == 1
    packed = [program.residency().totals.packed for program in programs]
    assert packed[0] == packed[1] >= WEIGHT.nbytes
    programs.pop(first).close()
    assert np.array_equal(programs[0].forward(X), wanted)
    before = resident_nbytes()
    programs[0].close()
    assert before - resident_nbytes() > WEIGHT.nbytes / 2
    gc.collect()
    assert not may_be_offered(packed_by_library[0])


@LINUX
def test_what_no_other_program_uses_goes_with_its_own(paths):
    one, two = map(opened, paths)
    two.other(X)
    wanted = two.forward(X)
    assert np.array_equal(one.forward(X), wanted)
    before = resident_nbytes()
    two.release()
    freed = before - resident_nbytes()
    assert WEIGHT.nbytes / 2 < freed < 1.5 * WEIGHT.nbytes
    assert two.residency().totals.packed == 0
    assert np.array_equal(one.forward(X), wanted)
    assert np.array_equal(two.forward(X), wanted)
    one.close()
    two.close()


def test_a_packing_that_a_bundle_brings_is_no_other_programs(paths, packed_by_library):
    pack_bundle(paths[1], packed_format("xnnpack"))
    packed_by_library.clear()
    with opened(paths[1]) as two:
        two.forward(X)
        assert packed_by_library == []
        with opened(paths[0]) as one:
            one.forward(X)
            assert len(packed_by_library) == 1


def test_threads_pack_and_close_at_the_same_time(paths):
    with opened(paths[0]) as program:
        wanted = program.forward(X)
    wrong = []

    def work(number):
        for step in range(6):
            with opened(paths[(number + step) % 2]) as program:
                if not np.array_equal(program.forward(X), wanted):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
