"""Where torch cannot be imported: bundles whose methods backends run do all they do.

Programs run in processes of their own, in which what only compiling needs is missing.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import library_here
import numpy as np
import pytest
import tiny_decoder
import torch
from hand_built import affine_program, write_bundle
from hf_folders import word_tokenizer
from small_models import Decomposing
from xnnpack_graphs import library_or_skip

from kvc.compiler import Method, compile_program
from kvc.runtime import load

# A module that is None cannot be imported.
PREPARE = """
import sys
for name in ("torch", "transformers", "safetensors", "executorch", "ml_dtypes", "rich"):
    sys.modules[name] = None
import numpy as np
from kvc.runtime import (KvcError, MissingPackage, generate, load)
from kvc.tools.cli import (main)


def kvc(*arguments):
    main(arguments, standalone_mode=False)


path = sys.argv[1]
"""


def run(code: str, *arguments: Path) -> str:
    """Return what a program prints that cannot import torch."""
    command = [sys.executable, "-c", PREPARE + textwrap.dedent(code), *arguments]
    # The environment as Python knows it: readline, in pytest, adds COLUMNS to it.
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=["cpu_q8", "xnnpack_q8", "mlx_q8"])
def path(request, tmp_path_factory) -> Path:
    """A bundle that runs natively, with a tokenizer."""
    if request.param == "xnnpack_q8":
        library_or_skip()
    if request.param == "mlx_q8":
        library_here.need("mlx")
    path = tmp_path_factory.mktemp(request.param) / "tiny.kvc"
    spec = tiny_decoder.untold()
    files = {"tokenizer.json": word_tokenizer(256).encode()}
    bundle = compile_program(
        spec.model, spec.methods, recipe=request.param, files=files
    )
    bundle.save(path)
    return path


def test_commands_work(path: Path, tmp_path: Path):
    np.save(tmp_path / "tokens.npy", np.array([[3]]))
    told = run(
        """
        kvc("generate", path, "3 14 15", "--max-tokens", "5", "--no-reference")
        print()
        kvc("dump", path)
        kvc("verify", path)
        kvc("recipes")
        for _ in range(2):
            kvc("run", path, "--method", "decode", "-i", sys.argv[2], "--no-reference",
                "--session", sys.argv[3])
        kvc("dump", sys.argv[3])
        """,
        path,
        tmp_path / "tokens.npy",
        tmp_path / "kept.session",
    )
    words = told.splitlines()[0].split()
    assert len(words) == 5
    assert all(0 <= int(word) < 256 for word in words)
    assert "METHODS" in told
    assert told.count("float32[1, 256]") >= 2
    assert "a saved session" in told


def test_sessions_are_saved_restored_forked_and_rewound(path: Path, tmp_path: Path):
    run(
        """
        with load(path, reference=False) as program, program.session() as session:
            text = "".join(generate(session, "3 14", max_tokens=4, seed=1).text())
            assert len(text.split()) == 4, text
            session.reset()
            results = [session.prefill(np.arange(9)[None])]
            session.save(sys.argv[2])
            results.append(session.decode(np.array([[5]])))
            with session.fork() as other:
                results.append(other.decode(np.array([[6]])))
            session.rewind(1)
            with program.restore(sys.argv[2]) as again:
                for each in (session, again):
                    found = each.decode(np.array([[5]]))
                    assert np.array_equal(found, results[1])
            with program.prefix(range(9)) as prefix, prefix.session() as begun:
                assert np.array_equal(begun.decode(np.array([[5]])), results[1])
        np.save(sys.argv[3], np.stack(results))
        """,
        path,
        tmp_path / "kept.session",
        tmp_path / "results.npy",
    )
    with load(path, reference=False) as program, program.session() as session:
        expected = [session.prefill(np.arange(9)[None])]
        expected += [session.decode(np.array([[token]])) for token in (5, 6)]
    np.testing.assert_array_equal(np.load(tmp_path / "results.npy"), np.stack(expected))


def test_what_needs_torch_says_so_and_how_to_get_it(path: Path, tmp_path: Path):
    plain = write_bundle(tmp_path / "plain.kvc", affine_program())
    told = run(
        """
        def refused(action):
            try:
                action()
            except MissingPackage as error:
                assert error.package == "torch"
                print(error)
            except Exception as error:
                print(type(error), error)

        def compiler():
            import kvc.compiler

        def reference():
            with load(path, reference=True) as program, program.session() as session:
                session.prefill(np.arange(9)[None])

        refused(compiler)
        refused(lambda: load(sys.argv[2]))
        refused(reference)
        for arguments in (["generate", sys.argv[2], "3"], ["run", sys.argv[2]]):
            try:
                kvc(*arguments)
            except Exception as error:
                print(error)
        """,
        path,
        plain,
    ).splitlines()
    assert len(told) == 5, told
    for line in told:
        assert "needs the package torch: it is not installed" in line
        assert "pip install 'kvc[compile]'" in line
    assert told[0].startswith("kvc's compiler")
    assert told[1].startswith(str(plain))
    assert told[2].startswith("method prefill")
    assert "no backend runs aten::mul.Tensor at model:1 nor 2 more" in told[1]
    assert "in method forward" in told[1]
    assert "the reference of a backend computes " in told[2]


def test_a_method_with_an_operator_that_no_backend_runs_names_it_and_its_line(
    tmp_path: Path,
):
    torch.manual_seed(0)
    methods = [Method(name, (torch.ones(4, 4),)) for name in ("ordered", "plain")]
    bundle = compile_program(Decomposing().eval(), methods, "cpu_fp32")
    bundle.save(tmp_path / "model.kvc")
    told = run(
        """
        with load(path, reference=False) as program, program.session() as session:
            print(session.plain(np.ones((4, 4), np.float32)).shape)
            for action in (lambda: session.ordered(np.ones((4, 4), np.float32)),
                           program.pack):
                try:
                    action()
                except MissingPackage as error:
                    print(error)
        """,
        tmp_path / "model.kvc",
    ).splitlines()
    assert told[0] == "(4, 4)"
    assert len(told) == 3, told
    for line in told[1:]:
        assert line.startswith("method ordered needs the package torch")
        assert "and no backend runs aten::_linalg_eigh at " in line
        assert "small_models:" in line


def test_compiling_does_too(tmp_path: Path):
    code = """
    import sys
    sys.modules["torch"] = None
    from kvc.tools.cli import (main)
    main(["compile", "demo", "-o", sys.argv[1]])
    """
    target = tmp_path / "demo.kvc"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), target],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "kvc's compiler needs the package torch: it is not installed" in done.stderr
    assert "pip install 'kvc[compile]'" in done.stderr
    assert not target.exists()
