"""The backend: library or reference, what it refuses, what it keeps, how it closes."""

import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
from delegated_partitions import delegated_program, partition_graph
from hand_built import write_bundle
from xnnpack_graphs import library_or_skip
from xnnpack_programs import float_sketch, linear_sketch, numbers, partition_program

from kvc.runtime import load
from kvc.runtime.delegates.reference import ReferenceHandle
from kvc.runtime.delegates.xnnpack import Xnnpack, backend
from kvc.runtime.delegates.xnnpack.handles import XnnpackHandle
from kvc.runtime.execution import delegate
from kvc.runtime.execution.delegate import Options, ReferenceUsed
from kvc.schema.errors import BadProgram, MissingLibrary, NativeCallFailed
from kvc.schema.graph import Instruction, Ref

WEIGHT = numbers((8, 16))
SCALES = np.linspace(0.01, 0.02, 8, dtype=np.float32)
X = np.random.default_rng(5).standard_normal((3, 16)).astype(np.float32)


@pytest.fixture(autouse=True)
def library():
    return library_or_skip()


@pytest.fixture
def path(tmp_path):
    """A bundle of `forward(x [seq, 16]) -> [seq, 8]`."""
    return write_with(tmp_path, SCALES)


def write_with(tmp_path, scales):
    built = partition_program({"forward": linear_sketch(WEIGHT, scales)})
    return write_bundle(tmp_path / "p.kvc", built)


@pytest.fixture
def missing(monkeypatch):
    """A process without the library, which has warned of nothing yet."""

    def refused():
        raise MissingLibrary(library="XNNPACK", reason="it is gone", install="pip x")

    monkeypatch.setattr(backend, "find_library", refused)
    monkeypatch.setattr(delegate, "_warned", set())


def handle_of(program):
    return program._engine._resources._delegate(0)


def test_the_library_is_used_where_there_is_one(path):
    with load(path) as program:
        assert isinstance(handle_of(program), XnnpackHandle)


def test_the_reference_is_used_where_it_is_asked_for(path):
    with load(path, reference=True) as program:
        assert isinstance(handle_of(program), ReferenceHandle)


def test_both_compute_the_same(path):
    with load(path) as ours, load(path, reference=True) as theirs:
        assert np.allclose(ours.forward(X), theirs.forward(X), rtol=1e-5, atol=1e-6)


def test_without_the_library_the_reference_runs_with_one_warning(path, missing):
    program = load(path)
    with pytest.warns(ReferenceUsed, match=r"it is gone.*`pip x`.*runs its reference"):
        program.forward(X)
    with warnings.catch_warnings(), load(path) as again:
        warnings.simplefilter("error")
        assert np.array_equal(again.forward(X), program.forward(X))
    program.close()


def test_without_torch_too_the_warning_promises_no_reference(
    path, missing, monkeypatch
):
    monkeypatch.setattr(delegate, "has_torch", lambda: False)
    said = "`pip x`.*xnnpack cannot run here: its reference needs PyTorch"
    with load(path) as program, pytest.warns(ReferenceUsed, match=said):
        program.forward(X)


def test_asking_for_the_reference_warns_of_nothing(path, missing):
    with load(path, reference=True) as program:
        assert program.forward(X).shape == (3, 8)


def test_without_the_library_asking_for_it_fails_at_load(path, missing):
    with pytest.raises(MissingLibrary, match="it is gone"):
        load(path, reference=False)


def test_a_backend_made_without_the_library_fails_if_it_is_asked_for(path, missing):
    """The library may go between load and the first call."""
    with load(path, reference=True) as program, pytest.raises(MissingLibrary):
        Xnnpack(options_of(program))


def test_a_process_without_the_wheel_still_runs(path):
    """The public door, with the package hidden."""
    code = """
import sys, warnings
import numpy as np
from kvc.runtime import (MissingLibrary, load)
from kvc.runtime.delegates.xnnpack import (library)
library.PACKAGE = "hidden"
try:
    load(sys.argv[1], reference=False)
    raise SystemExit("it was not refused")
except MissingLibrary:
    pass
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    with load(sys.argv[1]) as program:
        assert program.forward(np.ones((3, 16), np.float32)).shape == (3, 8)
assert [w.category.__name__ for w in seen] == ["ReferenceUsed"], seen
"""
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


@pytest.mark.parametrize(
    "wrong", [np.nan, np.inf, -1, 0, 1e-45], ids=["nan", "inf", "negative", "0", "tiny"]
)
def test_scales_that_are_no_scales_are_refused(tmp_path, wrong):
    scales = SCALES.copy()
    scales[3] = wrong
    program = load(write_with(tmp_path, scales), reference=False)
    refused = pytest.raises(BadProgram, match=r"forward\.c1.*not all positive")
    with program, refused:
        program.forward(X)


@pytest.mark.parametrize("reference", [False, True])
def test_an_op_that_the_library_does_not_take_is_refused(tmp_path, reference):
    """By the reference, too: a bundle runs here if it runs where the library is."""
    graph = partition_graph()
    spoiled = Instruction("aten::cumsum", (Ref(2), 1), (4,), "")
    steps = (*graph.instructions[:2], spoiled)
    built = delegated_program(graph=replace(graph, instructions=steps))
    program = load(write_bundle(tmp_path / "s.kvc", built), reference=reference)
    refused = pytest.raises(BadProgram, match=r"instruction 2: .*aten::cumsum")
    with program, refused:
        program.forward(np.ones((2, 4), np.float32))


def test_packed_bytes_are_reported_by_name(path):
    with load(path, reference=False) as program:
        assert program.residency().totals.packed == 0
        program.forward(X)
        packed = {b.names[0]: b.packed for b in program.residency().blobs}
        assert packed["forward.c0"] >= WEIGHT.nbytes
        assert packed["forward.c1"] == SCALES.nbytes


def test_it_closes_twice_and_before_any_use(path):
    with load(path, reference=False) as program:
        made = Xnnpack(options_of(program))
    made.close()
    made.close()
    assert made.packed() == {}


def options_of(program):
    return Options("p.kvc", program._engine.program, False, 1)


def test_two_partitions_of_one_method_share_what_they_both_use(tmp_path):
    weight = WEIGHT.astype(np.float32)
    partitions = {"one": float_sketch(weight), "two": float_sketch(weight)}
    path = write_bundle(tmp_path / "t.kvc", partition_program(partitions))
    with load(path, reference=False) as program:
        program.one(X)
        before = program.residency().totals.packed
        program.two(X)
        assert program.residency().totals.packed == before > 0


def test_a_node_that_the_library_refuses_is_named_with_its_method(path, monkeypatch):
    with load(path, reference=False) as program:
        define = "xnn_define_fully_connected"
        monkeypatch.setattr(program_library(program), define, lambda *_: 2)
        refused = pytest.raises(
            NativeCallFailed, match=f"method forward, delegate 0: {define}: "
        )
        with refused:
            program.forward(X)


def program_library(program):
    return handle_of(program)._weights.library.xnn
