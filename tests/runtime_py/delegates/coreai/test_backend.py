"""What a partition of a stranger must be before Core AI hears of it; lost processes."""

import gc
import io
import os
from collections.abc import Callable
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path
from typing import IO

import numpy as np
import pytest
import tiny_decoder
from coreai_device import ASKED, NumpyCoreAI, use_numpy_core_ai

from kvc.compiler import compile_program
from kvc.recipes import load_recipe
from kvc.runtime import load
from kvc.runtime.delegates.coreai import CoreAI, context
from kvc.runtime.delegates.coreai.backend import pack_folder
from kvc.runtime.delegates.coreai.naming import name_partition
from kvc.runtime.delegates.lowering.builder import Builder
from kvc.runtime.delegates.lowering.plan import Plan
from kvc.runtime.delegates.lowering.runs import convert_into
from kvc.runtime.delegates.subprocess_calls import WEIGHTS, ApartCall
from kvc.runtime.execution.delegate import Options
from kvc.schema.backends.primitives import Primitive
from kvc.schema.errors import (
    BadProgram,
    CannotWrite,
    KernelFailed,
    NativeCallFailed,
    WorkerLost,
)
from kvc.schema.graph import Graph, Ref
from kvc.schema.model import Program
from kvc.tools.outputs import write_folder

TOKENS = np.arange(3, 20)[None]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = tiny_decoder.factory()
    path = tmp_path_factory.mktemp("coreai") / "tiny.kvc"
    recipe = replace(load_recipe("coreai_fp32"), buckets={"seq": (1, 4)})
    compile_program(spec.model, spec.methods, recipe).save(path)
    return path


@pytest.fixture(scope="module")
def program(path: Path) -> Program:
    with load(path) as loaded:
        return loaded._engine.program


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    use_numpy_core_ai(monkeypatch)


def with_block(program: Program, change: Callable[[Graph], Graph]) -> Program:
    """Return a program whose block of decode is another."""
    number = next(i for i, m in enumerate(program.methods) if m.name == "decode")
    method = program.methods[number]
    (block,) = method.blocks
    changed = replace(block, graph=change(block.graph))
    methods = list(program.methods)
    methods[number] = replace(method, blocks=(changed,))
    return replace(program, methods=tuple(methods))


def step_of(graph: Graph, op: str) -> int:
    return next(i for i, step in enumerate(graph.instructions) if step.op == op)


def with_step(graph: Graph, index: int, **facts: object) -> Graph:
    steps = list(graph.instructions)
    steps[index] = replace(steps[index], **facts)
    return replace(graph, instructions=tuple(steps))


def another_op(graph: Graph) -> Graph:
    return with_step(graph, step_of(graph, "aten::silu"), op="aten::sinh")


def a_length_that_is_computed(graph: Graph) -> Graph:
    index = step_of(graph, "kvc::attention")
    arguments = list(graph.instructions[index].arguments)
    arguments[3] = Ref(
        graph.instructions[step_of(graph, "aten::add.Tensor")].results[0]
    )
    return with_step(graph, index, arguments=tuple(arguments))


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
        (another_op, "it does not run aten::sinh"),
        (a_length_that_is_computed, "the position of a cache access is computed"),
        (nothing_to_compute, "has no elements"),
    ],
)
def test_a_block_that_is_not_for_it_is_refused(
    program: Program, change: Callable[[Graph], Graph], what: str
):
    with pytest.raises(BadProgram, match=what):
        CoreAI(Options("m.kvc", with_block(program, change)))
    assert ASKED == []


@pytest.mark.parametrize("payload", [b"", b"float64", b"float16 "])
def test_a_payload_that_is_no_precision_is_refused(program: Program, payload: bytes):
    delegates = tuple(replace(each, payload=payload) for each in program.delegates)
    with pytest.raises(BadProgram, match=f"{len(payload)} bytes that is no precision"):
        CoreAI(Options("m.kvc", replace(program, delegates=delegates)))


def test_sizes_without_buckets_are_refused(program: Program):
    symbols = tuple(replace(each, sizes=()) for each in program.symbols)
    with pytest.raises(BadProgram, match="a size has no buckets"):
        CoreAI(Options("m.kvc", replace(program, symbols=symbols)))


def test_numbers_are_converted_and_integers_of_more_than_32_bits_refused():
    halves = np.empty(2, np.float16)
    convert_into(halves, np.array([70000.0, 1.0], np.float32))
    assert halves.tolist() == [np.inf, 1]
    integers = np.empty(2, np.int32)
    convert_into(integers, np.array([-(2**31), 2**31 - 1]))
    assert integers.tolist() == [-(2**31), 2**31 - 1]
    for wrong in (2**31, -(2**31) - 1):
        with pytest.raises(ValueError, match=f"32 bits, and this is {wrong}"):
            convert_into(integers, np.array([0, wrong]))


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "refused"])
@pytest.mark.parametrize("do", ["build", "bind", "run"])
def test_what_fails_changes_no_session_and_the_next_call_runs(
    path: Path, monkeypatch: pytest.MonkeyPatch, do: str, lost: bool
):
    failing: list[str] = []
    ask = NumpyCoreAI.ask

    def sometimes(self, wanted, *rest, **facts):
        if wanted in failing:
            failing.clear()
            if lost:
                self.close()
            kind = WorkerLost if lost else NativeCallFailed
            raise kind(library="Core AI", what=wanted, reason="it was told to")
        return ask(self, wanted, *rest, **facts)

    monkeypatch.setattr(NumpyCoreAI, "ask", sometimes)
    monkeypatch.setattr(context, "MOST_TOGETHER", 1)
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


def test_weights_that_were_not_written_whole_are_written_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    made: list[NumpyCoreAI] = []

    class Counted(NumpyCoreAI):
        def __init__(self, *_: object) -> None:
            super().__init__()
            made.append(self)

    dumps, failing = context.json.dumps, [True]

    def full(found: object) -> str:
        if failing:
            failing.clear()
            raise OSError(ENOSPC, "no space")
        return dumps(found)

    monkeypatch.setattr(context.Context, "_start", Counted)
    with load(path) as program, program.session() as session:
        wanted = session.decode(TOKENS[:, :1])
    monkeypatch.setattr(context.json, "dumps", full)
    with load(path) as program, program.session() as session:
        with pytest.raises(KernelFailed, match="no space"):
            session.decode(TOKENS[:, :1])
        assert made[1].is_lost
        np.testing.assert_array_equal(session.decode(TOKENS[:, :1]), wanted)
        assert len(made) == 3


def test_a_weight_of_which_a_part_was_written_is_written_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    stopping = [True]

    class Partly(io.BufferedWriter):
        def write(self, content: bytes) -> int:
            if len(content) > 1000 and stopping:
                stopping.clear()
                super().write(content[:64])
                raise KeyboardInterrupt
            return super().write(content)

    class Folder(type(Path())):
        def open(self, mode: str, *rest: object, **facts: object) -> IO:
            if mode == "ab":
                return Partly(io.FileIO(str(self), mode))
            return super().open(mode, *rest, **facts)

    class Stopped(NumpyCoreAI):
        def __init__(self, *_: object) -> None:
            super().__init__()
            self.folder = Folder(self.folder)

    with load(path) as program, program.session() as session:
        wanted = session.decode(TOKENS[:, :1])
    monkeypatch.setattr(context.Context, "_start", Stopped)
    with load(path) as program, program.session() as session:
        with pytest.raises(KeyboardInterrupt):
            session.decode(TOKENS[:, :1])
        np.testing.assert_array_equal(session.decode(TOKENS[:, :1]), wanted)


@pytest.mark.linux
def test_a_call_that_cannot_be_bound_keeps_no_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refused(self: NumpyCoreAI, *_: object, **facts: object) -> None:
        raise NativeCallFailed(library="Core AI", what="bind", reason="no")

    monkeypatch.setattr(NumpyCoreAI, "_bind", refused)
    descriptors = Path("/proc/self/fd")
    with load(path) as program, program.session() as session:
        counts = []
        for _ in range(3):
            with pytest.raises(NativeCallFailed):
                session.decode(TOKENS[:, :1])
            gc.collect()
            counts.append(len([*descriptors.iterdir()]))
    assert counts[1:] == counts[:2]


def test_all_functions_share_one_process_and_weights_are_written_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    made: list[NumpyCoreAI] = []

    class Counted(NumpyCoreAI):
        def __init__(self, *_: object) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(context.Context, "_start", Counted)
    monkeypatch.setattr(context, "MOST_TOGETHER", 1)
    with load(path) as program, program.session() as session:
        session.prefill(TOKENS[:, :4])
        alone = (made[0].folder / WEIGHTS).stat().st_size
        session.decode(TOKENS[:, 4:5])
        assert ASKED.count("build") == 2
        assert (made[0].folder / WEIGHTS).stat().st_size == alone
        packed = sum(blob.packed for blob in program.residency().blobs)
        assert 0 < packed <= alone
    assert ASKED[-2:] == ["forget", "forget"]
    assert len(made) == 1


def test_a_fork_writes_to_memory_of_its_own():
    build = Builder(frozenset(Primitive))
    build.input("x", "float32", (2,))
    function = build.function("f", {}, {"y": "x"})
    plan = Plan(function, (), (), (), (), (), ())
    call = ApartCall(context.Context(), plan, lambda _: np.zeros(2), lambda _: None, 0)
    pid = os.fork()
    if pid == 0:
        call.arrays["x"][:] = 1
        os._exit(int(call.arrays["x"].sum() != 2))
    assert os.waitpid(pid, 0)[1] == 0
    assert call.arrays["x"].sum() == 0
    call.close()


def test_names_are_those_of_the_program_each_once(program: Program):
    names = [name_partition(program, n) for n in range(len(program.delegates))]
    assert [each.function for each in names] == ["prefill", "decode"]
    cache = "layers.0.attn.k_cache"
    assert {cache, "position", "position_start", "token"} <= {*names[1].inputs}
    assert "result" in names[1].outputs
    states = [replace(state, name="token") for state in program.states]
    same = name_partition(replace(program, states=tuple(states)), 1)
    assert len({*same.inputs, *same.outputs}) == len(same.inputs) + len(same.outputs)
    methods = tuple(replace(m, name="a/b") for m in program.methods)
    both = [name_partition(replace(program, methods=methods), n) for n in (0, 1)]
    assert [each.function for each in both] == ["a_b_part0", "a_b_part1"]


FILES = {"b/c.txt": b"there", "a.txt": b"here"}


def test_equal_files_give_equal_bytes_and_come_back(tmp_path: Path):
    packed = pack_folder(FILES)
    assert packed == pack_folder(dict(sorted(FILES.items())))
    write_folder(tmp_path / "made", packed)
    for name, content in FILES.items():
        assert (tmp_path / "made" / name).read_bytes() == content


def test_a_folder_is_written_whole_or_not(tmp_path: Path):
    path = tmp_path / "made"
    write_folder(path, pack_folder(FILES))
    assert (path / "a.txt").read_bytes() == b"here"
    with pytest.raises(CannotWrite, match="it exists"):
        write_folder(path, pack_folder({"a.txt": b"other"}))
    assert (path / "a.txt").read_bytes() == b"here"
    with pytest.raises(CannotWrite, match="No such file"):
        write_folder(tmp_path / "missing" / "made", pack_folder(FILES))
    assert [each.name for each in tmp_path.iterdir()] == ["made"]


def test_a_file_of_its_name_is_not_replaced(tmp_path: Path):
    path = tmp_path / "made"
    path.write_text("mine")
    with pytest.raises(CannotWrite, match="it exists"):
        write_folder(path, pack_folder(FILES))
    assert path.read_text() == "mine"
