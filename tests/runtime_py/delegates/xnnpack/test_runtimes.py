"""Runtimes in contexts: where operands may lie, what changes between calls, threads."""

import ctypes
import mmap
import subprocess
import sys
import threading
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from hand_built import write_bundle
from partition_sketch import SEQ, Sketch
from resident_memory import LINUX
from xnnpack_graphs import library_or_skip
from xnnpack_programs import float_sketch, linear_sketch, numbers, partition_program

from kvc.runtime import load
from kvc.runtime.delegates.xnnpack.externals import is_readable_behind, place_externals
from kvc.runtime.delegates.xnnpack.subgraph import Subgraph
from kvc.runtime.execution.delegate import Workspace
from kvc.runtime.memory.arenas import Arena
from kvc.runtime.memory.arrays import borrowed
from kvc.schema.dtypes import DType
from kvc.schema.errors import Closed, NativeCallFailed, OutOfMemory

WEIGHT = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


@pytest.fixture(autouse=True)
def library():
    return library_or_skip()


@pytest.fixture
def opened(tmp_path):
    made = []

    def open_program(**partitions):
        path = write_bundle(
            tmp_path / f"{len(made)}.kvc", partition_program(partitions)
        )
        made.append(load(path, reference=False))
        return made[-1]

    yield open_program
    for program in made:
        program.close()


@pytest.fixture
def workspace():
    made = Workspace(Arena(64))
    yield made
    made.close()


@pytest.fixture
def handle(opened):
    """The handle of x [seq, 16] -> x @ WEIGHT.T."""
    return handle_of(opened(forward=float_sketch(WEIGHT)))


def handle_of(program, index=0):
    return program._engine._resources._delegate(index)


def noise(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(handle, workspace, x, y):
    handle.prepare([x], [y], workspace, {"seq": x.shape[0]})()
    return np.allclose(y, x @ WEIGHT.T, atol=1e-4)


class Counted:
    """The library's functions, each call of which is noted."""

    def __init__(self, functions):
        self._functions = functions
        self.calls = []

    def __getattr__(self, name):
        function = getattr(self._functions, name)

        def noted(*arguments):
            self.calls.append(name)
            return function(*arguments)

        return noted


@pytest.fixture
def counted(handle, workspace):
    """The calls of the handle's runtime in `workspace`."""
    handle.prepare([noise(1, 16)], [noise(1, 8)], workspace, {"seq": 1})
    (runtime,) = runtimes_in(workspace)
    runtime._xnn = Counted(runtime._xnn)
    return runtime._xnn.calls


def runtimes_in(workspace):
    return [v for v in workspace._owned.values() if hasattr(v, "prepare")]


def test_one_runtime_serves_all_lengths(handle, workspace):
    for length in (1, 64, 7, 1, 33):
        assert run(handle, workspace, noise(length, 16), noise(length, 8))
    assert len(runtimes_in(workspace)) == 1


def test_calls_of_several_lengths_take_turns(handle, workspace):
    """As the frames that a context keeps do."""
    calls = []
    for length in (3, 5, 3):
        x, y = noise(length, 16, seed=len(calls)), noise(length, 8)
        prepared = handle.prepare([x], [y], workspace, {"seq": length})
        calls.append((prepared, x, y))
    for turn in range(9):
        prepared, x, y = calls[turn % 3]
        y[:] = 0
        prepared()
        assert np.allclose(y, x @ WEIGHT.T, atol=1e-4)


def test_nothing_but_the_run_is_called_where_nothing_changed(
    handle, workspace, counted
):
    x, y = noise(2, 16), noise(2, 8)
    prepared = handle.prepare([x], [y], workspace, {"seq": 2})
    counted.clear()
    for _ in range(3):
        y[:] = 0
        prepared()
        assert np.allclose(y, x @ WEIGHT.T, atol=1e-4)
    assert counted == []  # kvc's own loop runs it


def test_equal_sizes_at_another_address_are_set_up_but_not_reshaped(
    handle, workspace, counted
):
    handle.prepare([noise(2, 16)], [noise(2, 8)], workspace, {"seq": 2})
    counted.clear()
    assert run(handle, workspace, noise(2, 16), noise(2, 8))
    assert counted == ["xnn_setup_runtime_v2"]


def test_a_run_that_was_prepared_last_keeps_no_operand_alive(handle, workspace):
    x = noise(2, 16)
    seen = weakref.ref(x)
    handle.prepare([x], [noise(2, 8)], workspace, {"seq": 2})
    del x
    assert seen() is None


def test_a_strided_input_is_copied_at_each_run(handle, workspace):
    whole, y = noise(3, 32), np.zeros((3, 8), np.float32)
    x = whole[:, ::2]
    prepared = handle.prepare([x], [y], workspace, {"seq": 3})
    for _ in range(2):
        prepared()
        assert np.allclose(y, x @ WEIGHT.T, atol=1e-4)
        whole *= -2


def test_a_strided_output_gets_its_elements_and_no_others(handle, workspace):
    x, whole = noise(3, 16), np.full((3, 16), 7, np.float32)
    assert run(handle, workspace, x, whole[:, ::2])
    assert (whole[:, 1::2] == 7).all()


def test_operands_that_are_not_aligned_are_copied(handle, workspace):
    raw, out = np.zeros(3 * 64 + 1, np.uint8), np.zeros(3 * 32 + 1, np.uint8)
    x, y = raw[1:].view(np.float32).reshape(3, 16), out[1:].view(np.float32)
    x[:] = noise(3, 16)
    assert run(handle, workspace, x, y.reshape(3, 8))


def test_an_output_that_lies_over_an_input_does_not_disturb_it(handle, workspace):
    memory = noise(64, 16)
    x, y = memory, memory[32:].reshape(64, 8)
    wanted = x @ WEIGHT.T
    handle.prepare([x], [y], workspace, {"seq": 64})()
    assert np.allclose(y, wanted, atol=1e-4)


@LINUX
def test_an_input_at_the_very_end_of_memory_is_copied(handle, workspace):
    """Nothing can be read past it, and some kernels would try."""
    with guarded(1 * 16 * 4) as memory:
        x = memory.reshape(1, 16)
        x[:] = noise(1, 16)
        assert place_externals([x], []).before
        assert run(handle, workspace, x, noise(1, 8))


def test_bytes_behind_an_operand_can_be_read_on_its_own_page():
    page = np.zeros(2 * mmap.PAGESIZE, np.uint8)
    start = -page.ctypes.data % mmap.PAGESIZE
    inside = borrowed(page[start : start + 100])
    last = borrowed(page[start : start + mmap.PAGESIZE])
    assert is_readable_behind(inside, 16)
    assert not is_readable_behind(last, 16)


def test_bytes_behind_an_operand_can_be_read_within_what_it_is_a_view_of():
    whole = np.zeros(4 * mmap.PAGESIZE, np.uint8)
    end = -whole.ctypes.data % mmap.PAGESIZE + mmap.PAGESIZE
    assert is_readable_behind(whole[:end].reshape(1, -1), 16)
    arena = Arena(mmap.PAGESIZE)
    assert is_readable_behind(arena.array(0, DType.UINT8, (mmap.PAGESIZE,)), 16)


def test_partitions_that_share_memory_between_nodes_do_not_disturb_each_other(opened):
    """The second asks for more, which moves the memory of the first."""

    def sums(width):
        sketch = Sketch()
        x = sketch.input(SEQ, width)
        y = sketch("aten::exp", sketch("aten::softmax.int", x, 1))
        z = sketch("aten::silu", sketch("aten::mul.Tensor", y, x))
        return sketch, (sketch("aten::add.Tensor", z, y, 1),)

    program = opened(small=sums(8), large=sums(512))
    with load(program.path, reference=True) as theirs:
        for length in (2, 64, 1, 64, 5):
            for name, width in (("small", 8), ("large", 512), ("small", 8)):
                x = noise(length, width)
                found, wanted = program.call(name, x), theirs.call(name, x)
                assert np.allclose(found, wanted, atol=1e-5)
    (context,) = program._engine._resources.pool._idle
    assert len(runtimes_in(context.workspace)) == 2


def test_a_failing_call_names_method_and_delegate(handle, workspace, monkeypatch):
    handle.prepare([noise(1, 16)], [noise(1, 8)], workspace, {"seq": 1})
    (runtime,) = runtimes_in(workspace)

    class Broken(Counted):
        def __getattr__(self, name):
            real = super().__getattr__(name)
            return (lambda _: 6) if name == "xnn_reshape_runtime" else real

    real, runtime._xnn = runtime._xnn, Broken(runtime._xnn)
    said = "method forward, delegate 0: xnn_reshape_runtime: out of memory"
    with pytest.raises(NativeCallFailed, match=said):
        run(handle, workspace, noise(2, 16), noise(2, 8))
    runtime._xnn = real
    assert run(handle, workspace, noise(1, 16), noise(1, 8)), "it is set up anew"


@pytest.fixture
def crowd(opened):
    """Three prepared methods of one context: `first`, `refused`, `large`.

    Each is (prepare, x, y, wanted). The memory between nodes that `large` asks for is
    more than the others have; `first` is the one that was made first.
    """

    def chain(width):
        sketch = Sketch()
        x = sketch.input(SEQ, width)
        y = sketch("aten::exp", sketch("aten::softmax.int", x, 1))
        z = sketch("aten::silu", sketch("aten::mul.Tensor", y, x))
        return sketch, (sketch("aten::add.Tensor", z, y, 1),)

    def product():
        sketch = Sketch()
        x, y = sketch.input(1, SEQ, 4), sketch.input(1, 4, 5)
        e = sketch("aten::exp", x)
        return sketch, (sketch("aten::exp", sketch("aten::bmm", e, y)),)

    program = opened(first=chain(8192), refused=product(), large=chain(16384))
    return [handle_of(program, i) for i in range(3)]


def softmax_chain(x):
    powers = np.exp(x - x.max(1, keepdims=True))
    y = np.exp(powers / powers.sum(1, keepdims=True))
    product = y * x
    return product / (1 + np.exp(-product)) + y


def refuse(handle, workspace, monkeypatch):
    """Have the library itself refuse a reshape: there is nothing to sum over."""
    shapes = [(1, 3, 0), (1, 0, 5), (1, 3, 5)]
    operands = [noise(*shape) for shape in shapes]
    with monkeypatch.context() as patch:
        patch.setattr(Subgraph, "external_shapes", lambda *_: shapes)
        with pytest.raises(NativeCallFailed, match="xnn_reshape_runtime: invalid"):
            handle.prepare(operands[:2], operands[2:], workspace, {"seq": 3})


def test_a_refused_reshape_leaves_no_runtime_of_the_context_on_lost_memory(
    crowd, workspace, monkeypatch
):
    first, refused, large = crowd
    x, y = noise(64, 8192), np.zeros((64, 8192), np.float32)
    prepared = first.prepare([x], [y], workspace, {"seq": 64})
    prepared()
    factors, out = [noise(1, 3, 4), noise(1, 4, 5)], np.zeros((1, 3, 5), np.float32)
    product = refused.prepare(factors, [out], workspace, {"seq": 3})
    refuse(refused, workspace, monkeypatch)
    big, result = noise(64, 16384), np.zeros((64, 16384), np.float32)
    large.prepare([big], [result], workspace, {"seq": 64})()
    assert np.allclose(result, softmax_chain(big), atol=1e-4)
    y[:] = 0
    prepared()
    assert np.allclose(y, softmax_chain(x), atol=1e-4)
    product()
    assert np.allclose(out, np.exp(np.exp(factors[0]) @ factors[1]), rtol=1e-3)
    assert len(runtimes_in(workspace)) == 3


def test_after_a_refused_reshape_each_call_is_prepared_once_again(
    crowd, workspace, monkeypatch
):
    first, refused, _ = crowd
    x, y = noise(2, 8192), noise(2, 8192)
    prepared = first.prepare([x], [y], workspace, {"seq": 2})
    (runtime,) = runtimes_in(workspace)
    runtime._xnn = Counted(runtime._xnn)
    refuse(refused, workspace, monkeypatch)
    for _ in range(2):
        prepared()
    made = [name for name in runtime._xnn.calls if name != "xnn_reshape_external_value"]
    assert made[0] == "xnn_create_runtime_v4"
    assert made.count("xnn_reshape_runtime") == made.count("xnn_setup_runtime_v2") == 1


def test_an_interrupt_in_a_reshape_makes_all_runtimes_of_the_context_anew(
    handle, workspace, monkeypatch
):
    x, y = noise(2, 16), noise(2, 8)
    prepared = handle.prepare([x], [y], workspace, {"seq": 2})
    (runtime,) = runtimes_in(workspace)
    real = runtime._xnn

    class Interrupted(Counted):
        def __getattr__(self, name):
            if name == "xnn_setup_runtime_v2":
                raise KeyboardInterrupt
            return super().__getattr__(name)

    runtime._xnn = Interrupted(real)
    with pytest.raises(KeyboardInterrupt):
        run(handle, workspace, noise(3, 16), noise(3, 8))
    runtime._xnn = Counted(real)
    y[:] = 0
    prepared()
    assert "xnn_create_runtime_v4" in runtime._xnn.calls
    assert np.allclose(y, x @ WEIGHT.T, atol=1e-4)


def test_a_runtime_whose_packing_fails_is_deleted_at_once(
    handle, workspace, monkeypatch
):
    """Not when the failure, whose traceback knows it, is forgotten."""
    backend_weights = handle._weights
    create = handle._weights.packing
    made = []

    @contextmanager
    def failing():
        with create() as cache:
            yield cache
            raise OutOfMemory(what="a packing", nbytes=1)

    class Deleting(Counted):
        def __getattr__(self, name):
            function = getattr(self._functions, name)
            if name != "xnn_delete_runtime":
                return function
            return lambda pointer: made.append(pointer.value) or function(pointer)

    library = SimpleNamespace(**vars(backend_weights.library))
    library.xnn, library.check = Deleting(library.xnn), backend_weights.library.check
    library.pool, library.lent = backend_weights.library.pool, lambda pool: 0
    monkeypatch.setattr(backend_weights, "packing", failing)
    monkeypatch.setattr(backend_weights, "library", library)
    with pytest.raises(OutOfMemory) as caught:
        run(handle, workspace, noise(2, 16), noise(2, 8))
    assert len(made) == 1
    assert made[0], caught
    monkeypatch.undo()
    assert run(handle, workspace, noise(2, 16), noise(2, 8))


def test_shapes_that_the_library_sees_otherwise_are_refused(
    handle, workspace, monkeypatch
):
    """It would write past the end of an output."""
    monkeypatch.setattr(Subgraph, "external_shapes", lambda *_: [(9, 16), (9, 8)])
    with pytest.raises(NativeCallFailed, match=r"operand 0: it has shape \(9, 16\)"):
        run(handle, workspace, noise(2, 16), noise(2, 8))


def test_a_runtime_is_closed_with_its_context_and_runs_no_more(handle, workspace):
    x, y = noise(2, 16), noise(2, 8)
    prepared = handle.prepare([x], [y], workspace, {"seq": 2})
    (runtime,) = runtimes_in(workspace)
    workspace.close()
    with pytest.raises(Closed):
        prepared()
    runtime.close()


def test_each_context_has_a_runtime_of_its_own(handle, workspace):
    other = Workspace(Arena(64))
    assert run(handle, workspace, noise(2, 16), noise(2, 8))
    assert run(handle, other, noise(3, 16), noise(3, 8))
    other.close()
    assert run(handle, workspace, noise(2, 16), noise(2, 8))


def test_threads_compute_what_one_does(opened):
    weight, scales = numbers((256, 128)), np.full(256, 0.01, np.float32)
    program = opened(
        one=linear_sketch(weight, scales), two=linear_sketch(weight, 2 * scales)
    )
    xs = [noise(1 + i, 128, seed=i) for i in range(4)]
    wanted = [(program.one(x), program.two(x)) for x in xs]
    program.release()
    wrong = []
    start = threading.Barrier(4)

    def work(i):
        start.wait()
        for _ in range(30):
            found = program.one(xs[i]), program.two(xs[i])
            if not all(map(np.array_equal, found, wanted[i])):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    backend = program._engine._resources._backends["xnnpack"]
    assert len(backend._weights.entries()) == 2, "each is packed once"


FORKED = """
import os, sys
import numpy as np
from kvc.runtime import (Forked, load)

program = load(sys.argv[1], reference=False, threads=2)
x = np.ones((40, 16), np.float32)
wanted = program.forward(x)
pid = os.fork()
if pid == 0:
    code = 1
    try:
        try:
            program.forward(x)
        except Forked:
            program.close()
            with load(sys.argv[1], reference=False, threads=2) as own:
                code = int(not np.array_equal(own.forward(x), wanted))
    finally:
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert np.array_equal(program.forward(x), wanted)
"""


@LINUX
def test_a_child_of_the_process_is_refused_and_may_load_anew(tmp_path):
    path = write_bundle(
        tmp_path / "f.kvc", partition_program({"forward": float_sketch(WEIGHT)})
    )
    subprocess.run([sys.executable, "-c", FORKED, str(path)], check=True, timeout=300)


class guarded:  # noqa: N801
    """Floats at the end of the last page that can be read."""

    def __init__(self, nbytes):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._map = mmap.mmap(-1, 2 * mmap.PAGESIZE)
        self._nbytes = nbytes

    def __enter__(self):
        whole = np.frombuffer(self._map, np.uint8)
        address = whole.ctypes.data
        behind = ctypes.c_void_p(address + mmap.PAGESIZE)
        assert self._libc.mprotect(behind, mmap.PAGESIZE, 0) == 0
        start = address + mmap.PAGESIZE - self._nbytes
        memory = (ctypes.c_char * self._nbytes).from_address(start)
        return np.frombuffer(memory, np.float32)

    def __exit__(self, *_):
        behind = np.frombuffer(self._map, np.uint8).ctypes.data + mmap.PAGESIZE
        self._libc.mprotect(ctypes.c_void_p(behind), mmap.PAGESIZE, 3)
