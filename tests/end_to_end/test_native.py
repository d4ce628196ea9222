"""Bundles of the backend `cpu`: natively, interrupted, after a fork."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import tiny_decoder
import torch
from daily import only
from torch import nn

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import DigestMismatch, load
from kvc.schema.ops import DELEGATE, OPS, Aliasing

TOKENS = np.arange(9)[None]


@pytest.fixture(scope="module", params=["cpu_fp32", "cpu_bf16", "cpu_q8", "cpu_q4"])
def path(request, tmp_path_factory) -> Path:
    spec = tiny_decoder.factory()
    path = tmp_path_factory.mktemp(request.param) / "tiny.kvc"
    compile_program(
        spec.model,
        spec.methods,
        recipe=request.param,
        metadata=spec.metadata,
    ).save(path)
    return path


def answers(path: Path, **options: object) -> list[np.ndarray]:
    with load(path, **options) as program, program.session() as session:
        found = [session.prefill(TOKENS)]
        found += [session.decode(np.array([[token]])) for token in range(4)]
        return found


def test_a_method_is_one_native_call(path: Path):
    with load(path) as program:
        for method in program._engine.program.methods:
            ops = [each.op for each in method.graph.instructions]
            assert ops.count(DELEGATE) == 1
            others = {OPS[op].aliasing for op in ops if op != DELEGATE}
            assert others <= {Aliasing.VIEW}


def test_weights_are_checked_when_they_are_first_needed(path: Path, tmp_path: Path):
    with load(path) as program:
        blob = program._engine.program.blobs[0]
        assert program.pack() == ()
    damaged = bytearray(path.read_bytes())
    damaged[blob.offset] ^= 1
    other = tmp_path / "damaged.kvc"
    other.write_bytes(damaged)
    with load(other) as program, program.session() as session:
        for _ in range(2):
            with pytest.raises(DigestMismatch):
                program.pack()
            with pytest.raises(DigestMismatch):
                session.prefill(TOKENS)


def test_results_are_those_of_the_reference(path: Path):
    for found, expected in zip(
        answers(path), answers(path, reference=True), strict=True
    ):
        assert is_near(found, expected, path)


def is_near(found: np.ndarray, expected: np.ndarray, path: Path) -> bool:
    """Compare results; a value that is quantized may be on the other side of a half."""
    near = 1e-5 if path.parent.name.startswith("cpu_fp32") else 0.01
    return bool(np.abs(found - expected).max() <= near * np.abs(expected).max())


@only(path=["cpu_fp32", "cpu_q8"])
def test_the_number_of_threads_changes_no_bit(path: Path):
    code = textwrap.dedent("""
        import sys
        import numpy as np
        from kvc.runtime import (load)
        with load(sys.argv[1], threads=int(sys.argv[2])) as program:
            session = program.session()
            print(session.prefill(np.arange(16)[None]).tobytes().hex())
            print(session.decode(np.array([[3]])).tobytes().hex())
    """)
    most = min(3, len(os.sched_getaffinity(0)))
    found = {
        subprocess.run(
            [sys.executable, "-c", code, str(path), str(threads)],
            stdout=subprocess.PIPE,  # what it says of an error, pytest shows
            check=True,
        ).stdout
        for threads in range(1, most + 1)
    }
    assert len(found) == 1


@only(path=["cpu_bf16", "cpu_q4"])
def test_the_portable_kernels_give_the_same(path: Path):
    code = textwrap.dedent("""
        import sys
        import numpy as np
        from kvc.runtime import (load)
        from kvc.runtime.native.library import (find_library)
        assert find_library().processor == "portable"
        with load(sys.argv[1], reference=False) as program:
            session = program.session()
            np.save(sys.argv[2], session.prefill(np.arange(9)[None]))
    """)
    target = path.with_name("portable.npy")
    environment = {**os.environ, "KVC_PROCESSOR": "portable"}
    command = [sys.executable, "-c", code, str(path), str(target)]
    subprocess.run(command, env=environment, check=True)
    with load(path, reference=False) as program, program.session() as session:
        expected = session.prefill(TOKENS)
    assert is_near(np.load(target), expected, path)


@only(path=["cpu_q8"])
def test_a_fork_of_the_process_computes_too(path: Path):
    code = textwrap.dedent("""
        import os, sys
        import numpy as np
        from kvc.runtime import (load)
        with load(sys.argv[1]) as program, program.session() as session:
            first = session.prefill(np.arange(16)[None])
            child = os.fork()
            if child == 0:
                with load(sys.argv[1]) as again, again.session() as other:
                    same = np.array_equal(other.prefill(np.arange(16)[None]), first)
                os._exit(0 if same else 1)
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    run = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, timeout=60
    )
    assert run.returncode == 0, run.stderr


def test_an_interrupt_leaves_the_session_as_it_was(path: Path, monkeypatch):
    with load(path) as program, program.session() as session:
        session.prefill(TOKENS)
        expected = session.decode(np.array([[5]]))
        session.rewind(1)
        library = sys.modules["kvc.runtime.native.library"].find_library()
        run, calls = library._run, []

        def interrupted(steps, count, first, *others):
            calls.append(first)
            done = run(steps, count // 2, first, *others)
            os.kill(os.getpid(), signal.SIGINT)
            return done

        monkeypatch.setattr(library, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.decode(np.array([[6]]))
        monkeypatch.undo()
        assert calls == [0]
        assert session.position == 9
        np.testing.assert_array_equal(session.decode(np.array([[5]])), expected)


class Stacking(nn.Module):
    """Its state becomes a stack of results, which no kernel makes in its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(1, 2, 4))

    def step(self, x: torch.Tensor) -> torch.Tensor:
        """Take x float32 [1, 2, 4]."""
        before = self.held.clone()
        self.held.copy_(torch.stack([x[:, 0] * 2, x[:, 1] * 3], dim=1))
        return before + 1


def test_what_is_moved_into_a_state_needs_no_torch(tmp_path: Path):
    x = torch.arange(8.0).reshape(1, 2, 4)
    path = tmp_path / "m.kvc"
    bundle = compile_program(Stacking(), [Method("step", (x,))], recipe="cpu_fp32")
    bundle.save(path)
    assert "aten::copy" in {
        step.op for step in bundle.program.methods[0].graph.instructions
    }
    code = """
        import sys
        sys.modules["torch"] = None
        import numpy as np
        from kvc.runtime import (load)
        x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
        with load(sys.argv[1]) as program, program.session() as session:
            for scale in (1, 2, 3):
                print(*session.step(x * scale).ravel())
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), path],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    model = Stacking()
    wanted = [model.step(x * scale).flatten().tolist() for scale in (1, 2, 3)]
    assert [[*map(float, line.split())] for line in run.stdout.splitlines()] == wanted


class Moving(nn.Module):
    """It writes a caller's array and clones another, both without torch."""

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Write float32 x [n, 2, 4], take y of its shape."""
        x.copy_(torch.stack([y[:, 0] * 2, y[:, 1] * 3], dim=1))
        return y.transpose(1, 2).clone()


@pytest.mark.parametrize("recipe", ["cpu_fp32", "fp32"])
def test_moves_follow_the_arrays_and_sizes_of_each_call(recipe, tmp_path: Path):
    whole, several = torch.arange(24.0).reshape(3, 2, 4), {0: Dim("n", 1, 8)}
    method = Method("step", (whole, whole), dynamic={"x": several, "y": several})
    path = tmp_path / "m.kvc"
    compile_program(Moving(), [method], recipe=recipe).save(path)
    with load(path) as program, program.session() as session:
        kept = []
        for n in (3, 3, 1, 8, 2):
            y = torch.arange(8.0 * n).reshape(n, 2, 4) + n
            x, into = torch.zeros_like(y), np.zeros((n, 2, 4), np.float32)
            given = session.step(into, y.numpy())
            np.testing.assert_array_equal(given, Moving().step(x, y).numpy())
            kept.append((into, x.numpy()))
        for into, x in kept:
            np.testing.assert_array_equal(into, x)
