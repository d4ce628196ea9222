"""What a partition of a stranger must be before the device hears of it."""

import gc
import os
from collections.abc import Callable
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path

import numpy as np
import pytest
import tiny_decoder
from qnn_device import ASKED, NumpyDevice, use_numpy_device

from kvc.compiler import compile_program
from kvc.recipes import load_recipe
from kvc.runtime import load
from kvc.runtime.delegates.qnn import Qnn, context
from kvc.runtime.delegates.qnn.context_file import read_contexts, write_contexts
from kvc.runtime.delegates.qnn.model_file import Model, Value
from kvc.runtime.delegates.qnn.plan import Plan
from kvc.runtime.delegates.subprocess_calls import WEIGHTS, ApartCall
from kvc.runtime.execution.delegate import Options
from kvc.schema.errors import BadProgram, KernelFailed, NativeCallFailed, WorkerLost
from kvc.schema.graph import Graph, Ref
from kvc.schema.model import Program
from kvc.tools.packing import pack_bundle

pytestmark = pytest.mark.filterwarnings("ignore::kvc.runtime.SoftwareDevice")
TOKENS = np.arange(3, 20)[None]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = tiny_decoder.factory()
    path = tmp_path_factory.mktemp("qnn") / "tiny.kvc"
    recipe = replace(load_recipe("qnn_fp16"), buckets={"seq": (1, 4)})
    compile_program(spec.model, spec.methods, recipe).save(path)
    return path


@pytest.fixture(scope="module")
def program(path: Path) -> Program:
    with load(path) as loaded:
        return loaded._engine.program


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    use_numpy_device(monkeypatch)


def with_block(program: Program, change: Callable[[Graph], Graph]) -> Program:
    """Return a program whose block that qnn runs in decode is another."""
    number, partition = next(
        (i, each)
        for i, each in enumerate(program.delegates)
        if each.backend == "qnn" and program.methods[each.method].name == "decode"
    )
    assert number is not None
    method = program.methods[partition.method]
    block = method.blocks[partition.block]
    blocks = list(method.blocks)
    blocks[partition.block] = replace(block, graph=change(block.graph))
    methods = list(program.methods)
    methods[partition.method] = replace(method, blocks=tuple(blocks))
    return replace(program, methods=tuple(methods))


def step_of(graph: Graph, op: str) -> int:
    return next(i for i, step in enumerate(graph.instructions) if step.op == op)


def with_step(graph: Graph, index: int, **facts: object) -> Graph:
    steps = list(graph.instructions)
    steps[index] = replace(steps[index], **facts)
    return replace(graph, instructions=tuple(steps))


def another_op(graph: Graph) -> Graph:
    return with_step(graph, step_of(graph, "aten::silu"), op="aten::erf")


def a_cache_read_by_others(graph: Graph) -> Graph:
    """The sum of the last layer reads the new content of a cache."""
    cache = graph.instructions[step_of(graph, "kvc::cache_update")].results[0]
    index = max(
        i for i, s in enumerate(graph.instructions) if s.op == "aten::add.Tensor"
    )
    _, other, alpha = graph.instructions[index].arguments
    return with_step(graph, index, arguments=(Ref(cache), other, alpha))


def keys_written_elsewhere(graph: Graph) -> Graph:
    index = step_of(graph, "kvc::cache_update")
    cache, rows, _, *rest = graph.instructions[index].arguments
    return with_step(graph, index, arguments=(cache, rows, None, *rest))


def keys_without_values(graph: Graph) -> Graph:
    """Attention has the new keys, and the old values."""
    index = step_of(graph, "kvc::attention")
    q, k, v, *rest = graph.instructions[index].arguments
    writes = (s for s in graph.instructions if s.op == "kvc::cache_update")
    old = next(s.arguments[0] for s in writes if s.results[0] == v.value)
    return with_step(graph, index, arguments=(q, k, old, *rest))


def another_layout(graph: Graph) -> Graph:
    index = step_of(graph, "kvc::attention")
    arguments = list(graph.instructions[index].arguments)
    arguments[12] = "circular"
    return with_step(graph, index, arguments=tuple(arguments))


def a_length_that_is_computed(graph: Graph) -> Graph:
    """The valid length of attention is a result of the device's."""
    index = step_of(graph, "kvc::attention")
    arguments = list(graph.instructions[index].arguments)
    arguments[3] = arguments[0]
    return with_step(graph, index, arguments=tuple(arguments))


def a_cache_of_a_cache(graph: Graph) -> Graph:
    one, other = (
        i for i, s in enumerate(graph.instructions) if s.op == "kvc::cache_update"
    )
    _, *rest = graph.instructions[other].arguments
    made = Ref(graph.instructions[one].results[0])
    return with_step(graph, other, arguments=(made, *rest))


def nothing_to_compute(graph: Graph) -> Graph:
    values = [
        replace(value, type=replace(value.type, dims=(0, *value.type.dims[1:])))
        if i in graph.instructions[step_of(graph, "aten::silu")].results
        else value
        for i, value in enumerate(graph.values)
    ]
    return replace(graph, values=tuple(values))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (another_op, "it does not run aten::erf"),
        (a_cache_read_by_others, "other than attention reads a cache's new content"),
        (keys_written_elsewhere, "not written at the same place"),
        (keys_without_values, "not written at the same place"),
        (another_layout, "in another layout than it is written"),
        (a_length_that_is_computed, "the position of a cache access is computed"),
        (a_cache_of_a_cache, "another instruction of the partition computes a cache"),
        (nothing_to_compute, "has no elements"),
    ],
)
def test_a_block_that_is_not_for_it_is_refused(
    program: Program, change: Callable[[Graph], Graph], what: str
):
    with pytest.raises(BadProgram, match=what):
        Qnn(Options("m.kvc", with_block(program, change)))
    assert ASKED == []


def test_a_payload_that_has_no_grids_is_refused(program: Program):
    delegates = tuple(replace(each, payload=b"abc") for each in program.delegates)
    with pytest.raises(BadProgram, match="grids in a payload of 3 bytes"):
        Qnn(Options("m.kvc", replace(program, delegates=delegates)))


def test_sizes_without_buckets_are_refused(program: Program):
    symbols = tuple(replace(each, sizes=()) for each in program.symbols)
    with pytest.raises(BadProgram, match="a size has no buckets"):
        Qnn(Options("m.kvc", replace(program, symbols=symbols)))


def packed(path: Path, folder: Path, change: Callable[[bytes], bytes]) -> Path:
    """Return a bundle with contexts, changed before they are stored."""
    made = folder / "packed.kvc"
    made.write_bytes(path.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        write = write_contexts
        patch.setattr(
            "kvc.runtime.delegates.qnn.backend.write_contexts",
            lambda *arguments: change(write(*arguments)),
        )
        pack_bundle(made, "qnn:v73")
    ASKED.clear()
    return made


def of_another_model(raw: bytes) -> bytes:
    graphs = read_contexts(raw, "v73").values()
    return write_contexts("v73", [replace(one, digest="0" * 64) for one in graphs])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda raw: b"x" + raw[1:], "these are no contexts to use: it does not begin"),
        (of_another_model, "was made of another model"),
    ],
)
def test_contexts_that_are_not_its_own_are_refused(
    path: Path, tmp_path: Path, change: Callable[[bytes], bytes], what: str
):
    made = packed(path, tmp_path, change)
    with load(made, device="qnn:v73") as program, program.session() as session:
        with pytest.raises(BadProgram, match=what):
            session.decode(TOKENS[:, :1])
        assert "load" not in ASKED
    with load(made) as program, program.session() as session:
        session.decode(TOKENS[:, :1])  # where no device is asked for, it builds


def test_contexts_whose_file_is_gone_are_made_again(path: Path, tmp_path: Path):
    made = packed(path, tmp_path, lambda raw: raw)
    for file in tmp_path.glob("*.kvd"):
        file.unlink()
    with load(made, device="qnn:v73") as program, program.session() as session:
        session.decode(TOKENS[:, :1])
    assert "build" in ASKED


@pytest.mark.parametrize("do", ["build", "bind", "run"])
@pytest.mark.parametrize("lost", [True, False])
def test_a_call_that_fails_leaves_the_session_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch, do: str, lost: bool
):
    """And the next one has a device again, where the process was lost."""
    failing: list[str] = []
    ask = NumpyDevice.ask

    def sometimes(self, wanted, *rest, **facts):
        if wanted in failing:
            failing.clear()
            if lost:
                self.close()
            kind = WorkerLost if lost else NativeCallFailed
            raise kind(library="QNN", what=wanted, reason="it was told to")
        return ask(self, wanted, *rest, **facts)

    monkeypatch.setattr(NumpyDevice, "ask", sometimes)
    monkeypatch.setattr(NumpyDevice, "end", NumpyDevice.close, raising=False)
    with load(path) as program, program.session() as session:
        session.prefill(TOKENS[:, :4])
        wanted = session.fork().decode(TOKENS[:, 4:5]) if do == "run" else None
        before = {name: np.array(session.state[name]) for name in session.state}
        failing.append(do)
        with pytest.raises((WorkerLost, NativeCallFailed), match="told to"):
            session.decode(TOKENS[:, 4:5])
        assert session.position.tolist() == [4]
        for name, was in before.items():
            np.testing.assert_array_equal(session.state[name], was)
        found = session.decode(TOKENS[:, 4:5])
        if wanted is not None:
            np.testing.assert_array_equal(found, wanted)


def test_a_session_is_closed_where_its_process_is_gone(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    def lost(self, descriptor, number):
        raise WorkerLost(library="QNN", what="forget", reason="it was told to")

    monkeypatch.setattr(NumpyDevice, "_forget", lost)
    given_back: list[int] = []
    close = os.close
    with load(path) as program, program.session() as session:
        session.decode(TOKENS[:, :1])
        monkeypatch.setattr(os, "close", lambda n: (given_back.append(n), close(n)))
    assert given_back
    assert "forget" in ASKED


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(ENOSPC, "no space"), KernelFailed),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
    ids=["full", "interrupted"],
)
def test_weights_that_were_not_written_whole_are_written_again(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    told: type[BaseException],
):
    monkeypatch.setattr(NumpyDevice, "end", NumpyDevice.close, raising=False)
    encode, failing = context.encode_model, [True]

    def full(*arguments: object) -> bytes:
        if failing:
            failing.clear()
            raise error
        return encode(*arguments)

    with load(path) as program:
        with program.session() as session:
            wanted = session.decode(TOKENS[:, :1])
        ASKED.clear()
    monkeypatch.setattr(context, "encode_model", full)
    made: list[NumpyDevice] = []
    begin = NumpyDevice.__init__
    monkeypatch.setattr(
        NumpyDevice, "__init__", lambda self, *_: (made.append(self), begin(self))[1]
    )
    with load(path) as program, program.session() as session:
        with pytest.raises(told):
            session.decode(TOKENS[:, :1])
        assert [each.is_lost for each in made] == [True]
        np.testing.assert_array_equal(session.decode(TOKENS[:, :1]), wanted)


@pytest.mark.linux
def test_a_call_that_cannot_be_bound_keeps_no_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refused(self: NumpyDevice, *_: object, **facts: object) -> None:
        raise NativeCallFailed(library="the device", what="bind", reason="no")

    monkeypatch.setattr(NumpyDevice, "_bind", refused)
    descriptors = Path("/proc/self/fd")
    with load(path) as program, program.session() as session:
        counts = []
        for _ in range(3):
            with pytest.raises(NativeCallFailed):
                session.decode(TOKENS[:, :1])
            gc.collect()
            counts.append(len([*descriptors.iterdir()]))
    assert counts[1:] == counts[:2]


def test_a_fork_writes_to_memory_of_its_own(path: Path):
    plan = Plan(Model("m", (), (Value("x", "float16", (2,)),), ()), (), (), (), ())
    call = ApartCall(context.Context(75), plan, lambda _: np.zeros(2), None, 0)
    pid = os.fork()
    if pid == 0:
        call.arrays["x"][:] = 1
        os._exit(int(call.arrays["x"].sum() != 2))
    assert os.waitpid(pid, 0)[1] == 0
    assert call.arrays["x"].tolist() == [0, 0]
    call.close()


def test_all_graphs_share_one_process_and_weights_are_written_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    made: list[NumpyDevice] = []

    class Counted(NumpyDevice):
        def __init__(self, *_: object) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(context.Context, "_start", Counted)
    with load(path) as program, program.session() as session:
        session.prefill(TOKENS[:, :4])
        alone = (made[0].folder / WEIGHTS).stat().st_size
        session.decode(TOKENS[:, 4:5])
        assert ASKED.count("build") == 2
        assert (made[0].folder / WEIGHTS).stat().st_size == alone
        session.decode(TOKENS[:, 5:6])
    assert ASKED[-2:] == ["forget", "forget"]
    assert len(made) == 1
