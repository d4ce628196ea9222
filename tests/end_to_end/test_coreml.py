"""Bundles of the backend `coreml`: on the host, and as functions of a package.

Functions are computed by numpy as they are handed to coremltools; and the package that
coremltools makes of them by what it knows of its own operators, where it is installed.
Core ML itself runs on Apple's systems alone: no test here has asked it.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import coreml_programs
import library_here
import numpy as np
import pytest
from click.testing import CliRunner
from coreml_programs import functions, interpreter, near, recipe
from daily import only
from tiny_runs import compiled

from kvc.runtime import Program, generate, load
from kvc.runtime.delegates import library_package
from kvc.runtime.delegates.coreml import backend, package
from kvc.runtime.delegates.coreml.mil import Data
from kvc.schema.container import BundleFile
from kvc.schema.errors import BadSetting, CacheOverflow, ExportFailed, MissingLibrary
from kvc.tools.cli import main

TOKENS = np.arange(3, 27)[None]
RECIPES = ("coreml_fp16", "coreml_q8")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same model by each recipe, and what each is held against."""
    folder = tmp_path_factory.mktemp("coreml")
    plain = folder / "plain.toml"
    plain.write_text('[linear]\nscheme = "w8"\n[embedding]\nscheme = "int8"\n')
    recipes = {name: recipe(name, seq=(1, 4, 16)) for name in RECIPES}
    found = {name: compiled(folder / f"{name}.kvc", r) for name, r in recipes.items()}
    found["as coreml_fp16"] = compiled(folder / "fp32.kvc", "fp32")
    found["as coreml_q8"] = compiled(folder / "q8.kvc", str(plain))
    return found


@pytest.fixture(params=RECIPES)
def bundle(request: pytest.FixtureRequest, paths: dict[str, Path]) -> Path:
    return paths[request.param]


@pytest.fixture
def both(bundle: Path, paths: dict[str, Path]) -> Iterator[tuple[Program, Program]]:
    with load(bundle) as mine, load(paths[f"as {bundle.stem}"]) as plain:
        yield mine, plain


def exported(bundle: Path, path: Path) -> Path:
    told = ("export", str(bundle), "--target", "coreml", "-o", str(path))
    result = CliRunner().invoke(main, told)
    assert not result.exit_code, result.output
    assert "numbers unverified on a device" in result.output
    return path


CALLS = (
    ("prefill_seq_4", TOKENS[:, :4]),
    ("prefill_seq_16", TOKENS[:, 4:20]),
    ("decode", TOKENS[:, 20:21]),
    ("decode", TOKENS[:, 21:22]),
)


def given(calls: Sequence[tuple[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """The inputs of the functions: tokens, and where they stand."""
    found, position = [], 0
    for name, tokens in calls:
        key = "token" if name == "decode" else "tokens"
        at = np.array([position], np.int32)
        found.append({key: tokens.astype(np.int32), "position": at})
        position += tokens.shape[1]
    return found


def test_the_host_is_near_what_is_computed_in_float32(both: tuple[Program, Program]):
    found = []
    for program in both:
        with program.session() as session:
            found.append([session.prefill(TOKENS[:, :9])])
            found[-1].append(session.decode(TOKENS[:, 9:10]))
            session.rewind(3)
            found[-1].append(session.prefill(TOKENS[:, 7:12]))
            with session.fork() as fork:
                found[-1].append(fork.decode(TOKENS[:, 12:13]))
            found[-1].append(session.decode(TOKENS[:, 13:14]))
            assert session.position.tolist() == [13]
    assert all(near(*pair) for pair in zip(*found, strict=True))
    assert not np.array_equal(found[0][0], found[1][0]), "something is float16"


def test_generation_is_that_of_float32(both: tuple[Program, Program]):
    found = []
    for program in both:
        with program.session() as session:
            found.append(list(generate(session, TOKENS[0, :6], max_tokens=8)))
    assert found[0] == found[1]


def test_results_and_caches_are_numbers_of_float16(bundle: Path):
    with load(bundle) as program, program.session() as session:
        logits = session.prefill(TOKENS[:, :4])
        cached = np.asarray(session.state["layers.0.attn.k_cache"])
    for array in (logits, cached):
        assert array.dtype == np.float32
        assert np.array_equal(array, array.astype(np.float16).astype(np.float32))


def test_a_full_cache_is_refused(bundle: Path):
    with load(bundle) as program, program.session() as session:
        session.prefill(TOKENS[:, :20])
        for token in TOKENS[0, :4]:
            session.decode(token[None, None])
        with pytest.raises(CacheOverflow):
            session.decode(TOKENS[:, :1])


def test_functions_compute_what_the_host_does(bundle: Path):
    with load(bundle) as program, program.session() as session:
        run = interpreter(program)
        for (name, tokens), inputs in zip(CALLS, given(CALLS), strict=True):
            call = session.decode if name == "decode" else session.prefill
            wanted, found = call(tokens), run(name, **inputs)
            assert near(found["output"], wanted)
            assert found["position_after"].tolist() == session.position.tolist()
        for name, state in session.state.items():
            if "cache" in name:
                assert near(run.states[name.replace(".", "_")], np.asarray(state))


def test_a_package_computes_what_the_host_does(bundle: Path, tmp_path: Path):
    library_here.need("coreml")
    made = exported(bundle, tmp_path / "m.mlpackage")
    calls = list(zip((name for name, _ in CALLS), given(CALLS), strict=True))
    found, states = coreml_programs.computed(made, calls, tmp_path)
    with load(bundle) as program, program.session() as session:
        for (name, tokens), results in zip(CALLS, found, strict=True):
            call = session.decode if name == "decode" else session.prefill
            assert near(results["output"], call(tokens))
        for name, array in states.items():
            assert array.dtype == np.float16
            held = {n.replace(".", "_"): s for n, s in session.state.items()}
            assert near(array, np.asarray(held[name]))


def test_each_method_is_a_function_at_each_of_its_sizes(bundle: Path):
    with load(bundle) as program:
        found = functions(program)
    names = [one.name for one in found]
    assert names == ["prefill_seq_1", "prefill_seq_4", "prefill_seq_16", "decode"]
    for one in found:
        kept = {var.name: (var.dtype, var.shape) for var in one.states}
        assert kept == {
            f"layers_0_attn_{name}_cache": ("fp16", (1, 1, 24, 16)) for name in "kv"
        }
        assert [var.name for var in one.inputs][1:] == ["position"]
        assert [v.name for v in one.outputs] == ["output", "position_after"]


def test_functions_share_their_weights(paths: dict[str, Path]):
    stored = {}
    for name in RECIPES:
        with load(paths[name]) as program:
            found = [f.constants for f in functions(program)]
        weights = [{n for n, c in f.items() if isinstance(c, Data)} for f in found]
        assert all(each == weights[0] for each in weights)
        stored[name] = {c.dtype for c in found[0].values() if isinstance(c, Data)}
    assert stored == {
        "coreml_fp16": {"fp16", "fp32"},  # tables of angles are float32
        "coreml_q8": {"fp16", "fp32", "int8"},
    }


def test_a_package_has_each_weight_once(paths: dict[str, Path], tmp_path: Path):
    library_here.need("coreml")
    sizes = []
    for name in RECIPES:
        made = exported(paths[name], tmp_path / f"{name}.mlpackage")
        weights = made / "Data" / "com.apple.CoreML" / "weights" / "weight.bin"
        sizes.append(weights.stat().st_size)
        with load(paths[name]) as program:
            constants = {
                n: c for f in functions(program) for n, c in f.constants.items()
            }
        width = {"fp16": 2, "fp32": 4, "int32": 4, "int8": 1, "bool": 1}
        nbytes = [np.prod(c.shape) * width[c.dtype] for c in constants.values()]
        assert sizes[-1] < sum(nbytes) + 192 * len(nbytes)  # each with a header
    assert sizes[1] < 0.75 * sizes[0]


def test_equal_bundles_are_equal_packages(paths: dict[str, Path], tmp_path: Path):
    library_here.need("coreml")
    found = []
    for name in ("one", "other"):
        made = exported(paths["coreml_q8"], tmp_path / name)
        files = [path for path in made.rglob("*") if path.is_file()]
        found.append({p.relative_to(made): p.read_bytes() for p in files})
    assert found[0] == found[1]
    manifest = json.loads(found[0][Path("Manifest.json")])
    assert len(found[0]) == 3
    assert manifest["rootModelIdentifier"] in manifest["itemInfoEntries"]


@pytest.mark.parametrize("kind", ["a folder", "a file", "a link"])
def test_a_package_takes_no_place_of_another_file(
    kind: str, paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "m.mlpackage"
    if kind == "a folder":
        path.mkdir()
    elif kind == "a file":
        path.write_text("mine")
    else:
        path.symlink_to("nowhere")
    monkeypatch.setattr(backend, "package_of", None)  # nothing is made first
    told = ("export", str(paths["coreml_q8"]), "--target", "coreml", "-o", str(path))
    result = CliRunner().invoke(main, told)
    assert result.exit_code == 1
    assert "it exists; give another name" in result.output
    assert [*tmp_path.iterdir()] == [path]


def test_another_version_of_coremltools_is_refused(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(library_package, "version", lambda name: "8.1")
    with load(bundle) as program, pytest.raises(MissingLibrary) as told:
        program.pack("coreml")
    assert "coremltools 9.0" in str(told.value)
    assert "8.1, where 9.0 is needed" in str(told.value)
    assert "pip install 'kvc[coreml]'" in str(told.value)


def test_a_backend_of_one_target_is_enough_to_name_it(bundle: Path):
    with load(bundle) as program, pytest.raises(BadSetting, match="coreml:ios18"):
        program.pack("coreml:ios17")


def test_what_coremltools_refuses_is_told_in_its_words(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    worker = tmp_path / "worker.py"
    worker.write_text("import sys\nsys.exit('no such operator')\n")
    monkeypatch.setattr(library_package.LibraryPackage, "check", lambda self: None)
    monkeypatch.setattr(package.worker, "__file__", str(worker))
    with load(bundle) as program, pytest.raises(ExportFailed, match="no such operator"):
        program.pack("coreml")


def test_coremltools_is_found_where_this_process_finds_it(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "coremltools.py").write_text("raise SystemExit('found by its path')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(library_package.LibraryPackage, "check", lambda self: None)
    with load(bundle) as program, pytest.raises(ExportFailed, match="found by its"):
        program.pack("coreml")


def test_equal_models_are_equal_bytes(tmp_path: Path):
    one, other = (
        compiled(tmp_path / f"{name}.kvc", "coreml_q8").read_bytes()
        for name in ("one", "other")
    )
    assert one == other


def test_a_decoder_is_whole(bundle: Path):
    with BundleFile.open(bundle) as file:
        ops = [s.op for m in file.program.methods for s in m.graph.instructions]
        assert {one.backend for one in file.program.delegates} == {"coreml"}
    assert set(ops) <= {"kvc::delegate", "aten::select.int", "aten::view"}


@only(bundle=["coreml_q8"])
def test_nothing_of_coremltools_is_imported(bundle: Path):
    code = (
        "import sys, numpy; from kvc.runtime import load\n"
        f"with load({str(bundle)!r}) as p, p.session() as s:\n"
        "    s.decode(numpy.array([[1]]))\n"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "kvc.runtime.delegates.coreml.backend" in loaded
    assert not [name for name in loaded if name.startswith("coremltools")]
