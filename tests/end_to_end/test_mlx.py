"""Bundles of the backend `mlx`: on MLX, and where it is missing.

Numbers are held against kvc's own kernels over the same int8 weights.
"""

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import spec_from_file_location
from pathlib import Path

import library_here
import numpy as np
import pytest
import torch
from hf_models import build
from tiny_runs import TOKENS, answers, compiled, distance
from torch import nn

from kvc.compiler import CacheConfig, Method, compile_program, export_hf
from kvc.recipes import load_recipe
from kvc.runtime import Program, load
from kvc.runtime.delegates import library_package
from kvc.runtime.delegates.mlx import backend as mlx_backend
from kvc.runtime.execution import delegate as interface
from kvc.schema.container import BundleFile
from kvc.schema.errors import BadProgram, KvcError, MissingLibrary, TargetMissing

NEAR = 1e-5  # of the largest number


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("mlx") / "m.kvc", "mlx_q8")


@pytest.fixture
def both(bundle: Path) -> Iterator[tuple[Program, Program]]:
    library_here.need("mlx")
    with load(bundle) as mine, load(bundle, reference=True) as plain:
        yield mine, plain


def test_a_method_is_whole_and_its_states_are_arrays_of_mlx(bundle: Path):
    library_here.need("mlx")
    with BundleFile.open(bundle) as file:
        ops = {s.op for m in file.program.methods for s in m.graph.instructions}
        assert {one.backend for one in file.program.delegates} == {"mlx"}
    assert ops == {"kvc::delegate"}
    from kvc.runtime.delegates.mlx.states import MlxState

    seen = []
    with pytest.MonkeyPatch.context() as patch:
        run = mlx_backend.MlxHandle._run

        def look(self, own, inputs, outputs):
            seen.extend(each for each in inputs if isinstance(each, MlxState))
            run(self, own, inputs, outputs)

        patch.setattr(mlx_backend.MlxHandle, "_run", look)
        with load(bundle) as program, program.session() as session:
            session.decode(TOKENS[:, :1])
    assert len(seen) == 3  # keys, values, and the position


def test_a_call_that_fails_leaves_the_session_as_it_was(
    both: tuple[Program, Program], monkeypatch: pytest.MonkeyPatch
):
    from kvc.runtime.delegates.mlx import evaluation

    mine, _ = both
    sigmoid, broken = evaluation.PLAIN["sigmoid"], []
    failing = lambda x: 1 / 0 if broken else sigmoid(x)  # noqa: E731
    monkeypatch.setitem(evaluation.PLAIN, "sigmoid", failing)
    with mine.session() as session, mine.session() as other:
        for each in (session, other):
            each.prefill(TOKENS[:, :5])
        broken.append(True)
        with pytest.raises(KvcError, match=r"aten::silu .*division by zero"):
            session.decode(TOKENS[:, 5:6])
        broken.clear()
        assert session.position.tolist() == [5]
        wanted = other.decode(TOKENS[:, 5:6])
        assert np.array_equal(session.decode(TOKENS[:, 5:6]), wanted)


def test_threads_take_turns(both: tuple[Program, Program]):
    mine, _ = both
    found: dict[int, list[np.ndarray]] = {}

    def say(number: int) -> None:
        with mine.session() as session:
            found[number] = answers(session)

    threads = [threading.Thread(target=say, args=(n,)) for n in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    wanted = answers(mine.session())
    assert len(found) == 3
    for own in found.values():
        assert all(map(np.array_equal, own, wanted))


def test_weights_are_released_and_taken_again(both: tuple[Program, Program]):
    mine, _ = both
    with mine.session() as session:
        session.prefill(TOKENS[:, :4])
        before = session.decode(TOKENS[:, 4:5])
        assert sum(mine._engine._resources.packed().values()) > 0
        session.rewind(1)
        mine.release()
        assert np.array_equal(session.decode(TOKENS[:, 4:5]), before)


# Rings and windows, slopes, soft caps, layer norms; rows of several lengths.
ARCHITECTURES = ("llama", "gpt2", "mistral", "gemma2", "bloom", "phi", "mpt", "qwen3")


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("mistral", 1),
        ("bloom", 2),
        *(
            pytest.param(name, rows, marks=pytest.mark.exhaustive)
            for name in ARCHITECTURES
            for rows in (1, 2)
        ),
    ],
)
def test_architectures_are_what_the_reference_says(
    name: str, rows: int, tmp_path: Path
):
    library_here.need("mlx")
    cache, random = CacheConfig(max_length=48, batch=rows), np.random.default_rng(0)
    model = build(name, shallow=True)
    made = export_hf(model, recipe="mlx_q8", cache=cache, prefill_chunk=6)
    made.save(tmp_path / "m.kvc")
    found = []
    calls = []
    for count in (5, 1, 6, 1, 3, 1):
        own = {
            "token" if count == 1 else "tokens": random.integers(3, 90, (rows, count))
        }
        if rows > 1 and count > 1:
            own["lengths"] = random.integers(1, count + 1, rows)
        elif rows > 1:
            own["active"] = np.arange(rows) != random.integers(rows)
        calls.append(("decode" if count == 1 else "prefill", own))
    sizes = {"batch": rows} if rows > 1 else {}
    for reference in (None, True):
        with (
            load(tmp_path / "m.kvc", reference=reference) as program,
            program.session(**sizes) as session,
        ):
            assert {d.backend for d in program._engine.program.delegates} == {"mlx"}
            found.append([getattr(session, called)(**own) for called, own in calls])
    assert distance(*found) <= NEAR


class Left(nn.Module):
    """Has what MLX is not given between what it is, and a state that others write."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 3)
        self.register_buffer("past", torch.zeros(4, 3))

    def forward(self, x):
        self.past[1:3].copy_(self.out(x).cumsum(1))
        return (self.past * 2).tanh()


def test_what_is_left_runs_on_the_host(tmp_path: Path):
    library_here.need("mlx")
    torch.manual_seed(0)
    path = tmp_path / "left.kvc"
    method = Method("forward", (torch.zeros(2, 3),))
    compile_program(Left(), [method], recipe="mlx_q8").save(path)
    x = np.array([[1.5, -2.0, 3.0], [0.25, 1.0, -1.0]], np.float32)
    found = []
    for reference in (None, True):
        with load(path, reference=reference) as program, program.session() as session:
            assert {"mlx", "cpu"} == {
                one.backend for one in program._engine.program.delegates
            }
            found.append([session.forward(x), session.forward(2 * x)])
    assert distance(*found) <= NEAR


def test_a_payload_is_refused(bundle: Path, monkeypatch: pytest.MonkeyPatch):
    with load(bundle, reference=True) as program:
        engine = program._engine
        (first, *_) = engine.program.delegates
        options = interface.Options("m.kvc", engine.program, reference=True)
        delegate = mlx_backend.Mlx(options)
        with pytest.raises(BadProgram, match="a payload of 1 bytes"):
            delegate.init(replace(first, payload=b"1"), program.data)


def missing() -> None:
    raise MissingLibrary(
        library="mlx 0.32.4", reason="it is not installed", install="i"
    )


def test_without_mlx_the_reference_runs(bundle: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mlx_backend, "import_mlx", missing)
    monkeypatch.setattr(interface, "_warned", set())
    with (
        pytest.warns(interface.ReferenceUsed, match=r"mlx 0\.32\.4"),
        load(bundle) as program,
        program.session() as session,
    ):
        found = session.prefill(TOKENS[:, :4])
    with load(bundle, reference=True) as program, program.session() as session:
        assert np.array_equal(session.prefill(TOKENS[:, :4]), found)
    with pytest.raises(MissingLibrary, match=r"mlx 0\.32\.4"):
        load(bundle, reference=False)


def test_another_version_of_mlx_is_none(monkeypatch: pytest.MonkeyPatch):
    from kvc.runtime.delegates.mlx import backend

    monkeypatch.setattr(library_package, "version", lambda name: "0.1")
    with pytest.raises(MissingLibrary, match=r"version 0\.1"):
        backend.check_installed()
    monkeypatch.setattr(library_package, "version", lambda name: backend.VERSION)
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    with pytest.raises(MissingLibrary, match="without a backend"):
        backend.check_installed()


def without_its_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let `mlx.core` be a module that needs what is not there, as Python's own part."""
    from kvc.runtime.delegates.mlx import backend

    core = folder / "mlx" / "core.py"
    core.parent.mkdir()
    core.write_text("raise ImportError('libmlx.so: cannot open shared object file')")
    for name in [n for n in sys.modules if n.partition(".")[0] == "mlx"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setattr(library_package, "version", lambda name: backend.VERSION)
    spec = spec_from_file_location("mlx.core", core)
    monkeypatch.setattr(backend, "find_spec", lambda name: spec)
    return core.parent


def test_mlx_without_the_package_that_computes_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from kvc.runtime.delegates.mlx import backend

    folder = without_its_library(tmp_path, monkeypatch)
    with pytest.raises(MissingLibrary, match="without a backend"):
        backend.check_installed()
    (folder / "lib").mkdir()
    (folder / "lib" / "libmlx.so").touch()
    backend.check_installed()


def test_mlx_that_cannot_be_loaded_is_none(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = without_its_library(tmp_path, monkeypatch)
    (folder / "lib").mkdir()
    (folder / "lib" / "libmlx.so").touch()
    monkeypatch.setattr(interface, "_warned", set())
    with (
        pytest.warns(interface.ReferenceUsed, match="cannot be loaded: libmlx"),
        load(bundle) as program,
        program.session() as session,
    ):
        session.decode(TOKENS[:, :1])
    with pytest.raises(MissingLibrary, match="cannot be loaded: libmlx"):
        load(bundle, reference=False)


def test_a_fork_makes_no_memory(both: tuple[Program, Program]):
    from kvc.runtime.delegates.mlx.states import MlxStore

    mine, _ = both
    with mine.session() as session, pytest.MonkeyPatch.context() as patch:
        session.prefill(TOKENS[:, :4])
        made = []
        patch.setattr(MlxStore, "first", lambda self, state: made.append(state))
        with session.fork() as other:
            assert other.position.tolist() == [4]
        assert not made


def test_mps_is_refused_with_what_to_use():
    with pytest.raises(TargetMissing, match=r"mlx_q8.*Core AI"):
        load_recipe("mps_q8")
