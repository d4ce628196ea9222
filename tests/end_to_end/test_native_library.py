"""The library of a backend really computes, where it is installed.

`KVC_REQUIRE_XNNPACK=1` says that it must be: continuous integration sets it, so that
nothing falls back to the reference implementation there without being seen.
"""

import os
import subprocess
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tiny_decoder import factory

from kvc.compiler import compile_program
from kvc.recipes import load_recipe
from kvc.runtime import MissingLibrary, load
from kvc.runtime.delegates.reference import ReferenceHandle

REQUIRED = os.environ.get("KVC_REQUIRE_XNNPACK") == "1"
TOKENS = np.arange(6, dtype=np.int64)[None]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return what compiles the tiny decoder by a recipe, and returns the path."""
    folder = tmp_path_factory.mktemp("native")

    @cache
    def compile_by(recipe):
        spec = factory()
        path = folder / f"{recipe}.kvc"
        compile_program(spec.model, spec.methods, recipe=recipe).save(path)
        return path

    return compile_by


@pytest.fixture
def path(compiled):
    return compiled("xnnpack_q8")


def open_native(path):
    """Load without the reference, or skip where the library may be missing."""
    try:
        return load(path, reference=False)
    except MissingLibrary as error:
        if REQUIRED:
            raise
        pytest.skip(str(error))


def handles(program):
    return list(program._engine._resources._handles.values())


@pytest.mark.parametrize(
    ("recipe", "far"),
    # A step of a quantized activation, where a sum is rounded the other way.
    [("xnnpack_fp32", 1e-4), ("xnnpack_q8", 0.2), ("xnnpack_q4", 0.5)],
)
def test_the_library_computes_what_the_reference_computes(compiled, recipe, far):
    path = compiled(recipe)
    with open_native(path) as native, load(path, reference=True) as reference:
        results = [program.session().prefill(TOKENS) for program in (native, reference)]
        assert np.allclose(*results, rtol=0, atol=far)
        assert not any(isinstance(h, ReferenceHandle) for h in handles(native))
        assert all(isinstance(h, ReferenceHandle) for h in handles(reference))
        assert handles(native)


def test_its_packed_weights_are_counted_once_for_all_methods(path):
    with open_native(path) as program, program.session() as session:
        session.prefill(TOKENS)
        before = program.residency()
        session.decode(TOKENS[:, :1])
        after = program.residency()
    assert before.totals.packed == after.totals.packed > 0
    shared = [blob for blob in after.blobs if blob.packed]
    assert {blob.methods for blob in shared} == {("prefill", "decode")}
    # Packed bytes hold the weight, and sums beside it.
    assert all(blob.packed >= blob.nbytes for blob in shared if blob.nbytes > 4096)


def test_loading_as_it_comes_uses_it(path):
    open_native(path).close()
    with load(path) as program:
        program.session().prefill(TOKENS)
        assert not any(isinstance(h, ReferenceHandle) for h in handles(program))


def test_nothing_of_its_package_is_imported(path):
    with open_native(path) as program:
        program.session().prefill(TOKENS)
    assert not [name for name in sys.modules if name.startswith("executorch")]


# A process that has not imported torch: which handles pack before they are prepared.
FIRST_CALL = """
import sys
import numpy as np
from kvc.runtime import (load)
from kvc.runtime.delegates.xnnpack.handles import (XnnpackHandle)

done = []

def noted(name):
    real = getattr(XnnpackHandle, name)
    def call(self, *arguments):
        done.append((name, id(self)))
        return real(self, *arguments)
    setattr(XnnpackHandle, name, call)

noted("pack")
noted("prepare")
with load(sys.argv[1], reference=False) as program:
    assert "torch" not in sys.modules
    logits = program.session().prefill(np.arange(6)[None])
    packed = [handle for name, handle in done if name == "pack"]
    prepared = [handle for name, handle in done if name == "prepare"]
    assert packed == prepared and len(packed) > 1, done
    program.release()
    again = program.session().prefill(np.arange(6)[None])
    assert len([name for name, _ in done if name == "pack"]) == len(packed)
    assert np.array_equal(logits, again)
np.save(sys.argv[2], logits)
"""


def test_a_first_call_packs_while_torch_is_imported(tmp_path):
    spec, path = factory(), tmp_path / "left.kvc"
    recipe = replace(load_recipe("xnnpack_q8"), rest="")
    compile_program(spec.model, spec.methods, recipe=recipe).save(path)
    with open_native(path) as program:
        expected = program.session().prefill(TOKENS)
    found = tmp_path / "logits.npy"
    command = [sys.executable, "-c", FIRST_CALL, str(path), str(found)]
    subprocess.run(command, check=True, timeout=300)
    assert np.array_equal(np.load(found), expected)
