"""What every backend should pass, by one that was written from the page alone."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from sealing import parts, seal
from torch import nn
from toy_backend import EVENTS, Alone, AloneDelegate, Toy, ToyDelegate, ToyHandle

from kvc.compiler import Dim, Method, compile_program, register_backend
from kvc.compiler.backends import BACKENDS
from kvc.runtime import FormatError, KernelFailed, load, register_delegate
from kvc.runtime.delegates.table import DELEGATES
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadOption

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


class Model(nn.Module):
    """Three methods that share a weight, and a state."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(4, 4, bias=False)
        self.scale = nn.Parameter(torch.rand(4) + 1)
        self.register_buffer("last", torch.zeros(1, 4))

    def prefill(self, x):
        y = self.project(x) * self.scale
        self.last.copy_(y[-1:])
        return y.exp()

    def decode(self, x):
        return self.project(x) * self.scale + self.last

    def keep(self, x):
        self.last.copy_(x * self.scale)
        return x + x


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    """Register the backends for one test."""
    for table in (BACKENDS, DELEGATES):
        for name in ("toy", "alone"):
            monkeypatch.setitem(table, name, None)
            del table[name]
    register_backend(Toy)
    register_backend(Alone)
    register_delegate("toy", ToyDelegate)
    register_delegate("alone", AloneDelegate)
    EVENTS.clear()
    Toy.lowered.clear()


def compiled(folder, backend="toy", options=""):
    """Compile the model for a backend, and return the bundle's path."""
    recipe = folder / "mine.toml"
    recipe.write_text(f'[backend]\nname = "{backend}"\n{options}')
    x = torch.ones(3, 4)
    methods = [
        Method("prefill", (x,), dynamic={"x": {0: Dim("seq", 1, 8)}}),
        Method("decode", (x[:1],)),
        Method("keep", (x[:1],)),
    ]
    path = folder / f"{backend}.kvc"
    compile_program(Model().eval(), methods, recipe=recipe).save(path)
    return path


@pytest.fixture
def path(tmp_path):
    return compiled(tmp_path)


def check_calls(session):
    """Call every method, with two sizes, and compare with eager mode."""
    model = Model()
    for rows in (X, X[:2], X):
        with torch.no_grad():
            expected = model.prefill(torch.from_numpy(rows))
            again = model.decode(torch.from_numpy(rows[:1]))
        assert np.allclose(session.prefill(rows), expected, atol=1e-6)
        assert np.allclose(session.decode(rows[:1]), again, atol=1e-6)


@pytest.mark.parametrize("backend", ["toy", "alone"])
@pytest.mark.parametrize("mode", ["map", "read", "huge"])
def test_it_computes_what_eager_computes(tmp_path, backend, mode):
    with load(compiled(tmp_path, backend), mode) as program:
        check_calls(program.session())
        program.release()
        check_calls(program.session())


def test_it_sees_the_partitions_of_all_methods_before_the_first_payload(path):
    (seen,) = Toy.lowered
    ops = {
        name: [node.op for graph in graphs for node in graph.nodes]
        for name, graphs in seen.items()
    }
    assert ops == {
        "prefill": ["aten::linear", "aten::mul.Tensor"],
        "decode": ["aten::linear", "aten::mul.Tensor", "aten::add.Tensor"],
        "keep": ["aten::mul.Tensor", "aten::add.Tensor"],
    }


@pytest.mark.parametrize("backend", ["toy", "alone"])
def test_a_weight_of_two_methods_is_one_blob(tmp_path, backend):
    with load(compiled(tmp_path, backend)) as program:
        inner = program._engine.program
        names = {
            partition.method: {inner.names[i].name for i in partition.names}
            for partition in inner.delegates
        }
        assert names == {
            0: {"project.weight", "scale"},
            1: {"project.weight", "scale"},
            2: {"scale"},
        }
        assert sorted(blob.nbytes for blob in inner.blobs) == [16, 64]


def test_options_of_the_recipe_arrive(tmp_path):
    compiled(tmp_path, options='[backend.options]\nops = "mul"\n')
    graphs = [graph for seen in Toy.lowered[0].values() for graph in seen]
    assert {node.op for graph in graphs for node in graph.nodes} == {"aten::mul.Tensor"}


def test_an_option_that_it_does_not_have_is_refused(tmp_path):
    with pytest.raises(
        BadOption, match="backend toy, option 'opps': expected ops = a text"
    ):
        compiled(tmp_path, options='[backend.options]\nopps = "mul"\n')


def test_states_are_read_and_written_where_they_lie(path):
    with load(path) as program, program.session() as session:
        session.prefill(X)
        state = session.state["last"].ctypes.data
        session.decode(X[:1])
        inputs, _, _ = ToyHandle.prepared
        assert state in [array.ctypes.data for array in inputs]
        session.keep(X[:1])
        _, outputs, _ = ToyHandle.prepared
        assert state in [array.ctypes.data for array in outputs]
        assert np.array_equal(
            session.state["last"], X[:1] * Model().scale.detach().numpy()
        )


def test_it_works_on_planned_memory_that_stays(path):
    with load(path) as program, program.session() as session:
        session.prefill(X)
        (idle,) = program._engine._pool._idle
        inputs, outputs, sizes = ToyHandle.prepared
        assert sizes == {"seq": 3}
        whole = idle.scratch.array(0, DType.UINT8, (idle.scratch.nbytes,))
        for array in (*inputs, *outputs):
            assert np.shares_memory(array, whole)
        ToyHandle.prepared = ()
        session.prefill(X)
        assert ToyHandle.prepared == ()  # what was prepared was used again


def test_weights_are_packed_once_for_all_methods_and_contexts(path):
    with load(path) as program:
        sessions = [program.session() for _ in range(2)]
        for session in sessions:
            session.prefill(X)
            session.decode(X[:1])
            session.keep(X[:1])
        packed = [event for event in EVENTS if event.startswith("packed")]
        assert sorted(packed) == ["packed project.weight", "packed scale"]
        report = program.residency()
        assert {blob.names: blob.packed for blob in report.blobs} == {
            ("project.weight",): 64,
            ("scale",): 16,
        }
        assert [blob.handles for blob in report.blobs] == [0, 0]
        assert report.totals.freed == 80  # nobody needs the source any more
        assert report.totals.touched == 0


def test_one_that_ignores_sharing_packs_for_each_partition(tmp_path):
    with load(compiled(tmp_path, "alone")) as program, program.session() as session:
        session.prefill(X)
        session.decode(X[:1])
        assert EVENTS.count("packed project.weight") == 2
        assert program.residency().totals.packed == 2 * 80


def test_everything_is_closed_in_order(path):
    with load(path) as program, program.session() as session:
        session.prefill(X)
        session.decode(X[:1])
        session.decode(X[:1])
        program.release()
        assert [event for event in EVENTS if event.split()[1] == "closed"] == [
            "counter closed after 2 runs",
            "counter closed after 1 runs",
            "handle closed",
            "handle closed",
            "delegate closed",
        ]
        session.decode(X[:1])
        assert EVENTS.count("delegate made") == 2
    assert EVENTS[-3:] == [
        "counter closed after 1 runs",
        "handle closed",
        "delegate closed",
    ]


DAMAGES = {
    "not one of this backend": (0, b"TOX"),
    "a weight that is not declared": (14, b"q"),
    "no op 9": (-18, b"\x09"),
    "an operand that is not there yet": (-16, b"\x63"),
    "a result outside of the workspace": (-12, b"\xff\xff"),
    "an output that no step makes": (-2, b"\x00"),
    "buffer of": (10, b"\x09"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_payload_is_refused_before_anything_runs(path, what):
    at, patch = DAMAGES[what]
    blobs, program = parts(path)
    with load(path) as opened:
        payload = opened._engine.program.delegates[2].payload
    at %= len(payload)
    damaged = payload[:at] + patch + payload[at + len(patch) :]
    assert program.count(payload) == 1
    path.write_bytes(seal(blobs, program.replace(payload, damaged)))
    with load(path) as opened, opened.session() as session:
        before = session.state["last"].copy()
        with pytest.raises(FormatError, match=what):
            session.keep(X[:1])
        assert np.array_equal(session.state["last"], before)
        check_calls(session)  # the other partitions are whole


@pytest.mark.parametrize("step", ["init", "prepare"])
def test_what_raises_before_the_run_leaves_the_session_as_it_was(
    path, monkeypatch, step
):
    owner = {"init": ToyDelegate, "prepare": ToyHandle}[step]
    with load(path) as program, program.session() as session:
        session.prefill(X)
        kept = session.state["last"].copy()
        with monkeypatch.context() as broken:

            def fail(*_):
                raise RuntimeError("out of luck")

            broken.setattr(owner, step, fail)
            for _ in range(2):
                with pytest.raises(KernelFailed, match=r"method decode.*out of luck"):
                    session.decode(X[:1])
        assert np.array_equal(session.state["last"], kept)
        check_calls(session)


def test_a_run_that_raises_poisons_nothing_that_it_has_not_written(path, monkeypatch):
    class Broken:
        def wait(self, seconds):
            raise RuntimeError("out of luck")

    with load(path) as program, program.session() as session:
        session.prefill(X)
        with monkeypatch.context() as broken:
            broken.setattr(ToyHandle, "meeting", Broken())
            with pytest.raises(KernelFailed, match=r"kvc::delegate.*out of luck"):
                session.decode(X[:1])
        check_calls(session)


def test_a_handle_runs_in_two_threads_at_a_time(path, monkeypatch):
    with load(path) as program:
        sessions = [program.session() for _ in range(2)]
        for session in sessions:
            session.prefill(X)
        monkeypatch.setattr(ToyHandle, "meeting", threading.Barrier(2))
        results = [None, None]

        def decode(index):
            results[index] = sessions[index].decode((index + 1) * X[:1])

        threads = [threading.Thread(target=decode, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        model = Model()
        with torch.no_grad():
            model.prefill(torch.from_numpy(X))
            for index, result in enumerate(results):
                expected = model.decode(torch.from_numpy((index + 1) * X[:1]))
                assert np.allclose(result, expected, atol=1e-6)
    assert EVENTS.count("handle made") == 2
    assert EVENTS.count("counter made") == 3  # prefill in one context, decode in two


@pytest.mark.parametrize(("runs_torch", "expected"), [(False, 1), (True, 3)])
def test_torch_has_one_thread_beside_a_backend_that_has_its_own(
    path, monkeypatch, runs_torch, expected
):
    from kvc.runtime.execution import frames
    from kvc.runtime.kernels.table import load_kernels

    seen = []

    def exp(out, x):
        seen.append(torch.get_num_threads())
        return torch.exp(x, out=out)

    kernels = {**load_kernels(), "aten::exp": exp}
    monkeypatch.setattr(frames, "load_kernels", lambda: kernels)
    monkeypatch.setattr(frames, "settle_threads", lambda: 3)
    monkeypatch.setattr(ToyHandle, "runs_torch", runs_torch)
    before = torch.get_num_threads()
    with load(path) as program, program.session() as session:
        session.prefill(X)
    assert seen == [expected]
    assert torch.get_num_threads() == before


PACKAGE = """\
[kvc.backends]
toy = toy_backend:Toy
broken = toy_backend:Nothing

[kvc.delegates]
toy = toy_backend:ToyDelegate
broken = toy_backend:Nothing
"""


@pytest.mark.exhaustive
def test_an_installed_backend_is_found_by_its_entry_points(tmp_path):
    (tmp_path / "toy_backend-1.dist-info").mkdir()
    (tmp_path / "toy_backend-1.dist-info" / "entry_points.txt").write_text(PACKAGE)
    (tmp_path / "toy_backend-1.dist-info" / "METADATA").write_text("Name: toy\n")
    (tmp_path / "toy.toml").write_text('[backend]\nname = "toy"\n')
    (tmp_path / "broken.toml").write_text('[backend]\nname = "broken"\n')
    (tmp_path / "doubled.py").write_text(
        "import torch\n"
        "from kvc.compiler import Method, ModelSpec\n"
        "class Twice(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x + x\n"
        "def factory():\n"
        "    return ModelSpec(Twice(), (Method('forward', args=(torch.zeros(2),)),))\n"
    )
    np.save(tmp_path / "x.npy", np.array([3, 4], np.float32))
    support = str(Path(__file__).parents[1] / "support")
    folders = os.pathsep.join([str(tmp_path), support])
    environment = {**os.environ, "PYTHONPATH": folders}
    kvc = Path(sys.executable).parent / "kvc"

    def run(*command, **changes):
        return subprocess.run(
            [kvc, *command],
            cwd=tmp_path,
            env={**environment, **changes},
            capture_output=True,
            text=True,
        )

    done = run(
        "compile", "doubled:factory", "--recipe", "toy.toml", "-o", "d.kvc", "-q"
    )
    assert done.returncode == 0, done.stderr
    done = run("run", "d.kvc", "-i", "x.npy")
    assert "[6. 8.]" in done.stdout, done.stderr
    done = run("run", "d.kvc", "-i", "x.npy", PYTHONPATH=support)
    assert "needs the backend toy, but nothing of this name" in done.stderr
    done = run("compile", "doubled:factory", "--recipe", "broken.toml")
    assert "its entry point toy_backend:Nothing failed" in done.stderr
