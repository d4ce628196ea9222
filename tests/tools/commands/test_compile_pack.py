"""`kvc compile --pack`: packed weights, for machines like this, in their own file."""

import json
import shutil

import numpy as np
import pytest
from xnnpack_graphs import library_or_skip

from kvc.runtime import load
from kvc.runtime.delegates.xnnpack import backend
from kvc.runtime.delegates.xnnpack.weights import Weights
from kvc.schema.container import BundleFile
from kvc.schema.errors import MissingLibrary
from kvc.schema.uses import count_unpacked
from kvc.tools.packing import packed_format

MODEL = ("tiny_decoder:factory", "--recipe", "xnnpack_q8", "-q")
TOKENS = np.arange(1, 6, dtype=np.int64)[None]


@pytest.fixture(scope="module")
def here():
    """BUILD:FEATURES of this machine."""
    library_or_skip()
    return packed_format("xnnpack").partition(":")[2]


@pytest.fixture(scope="module")
def made():
    """Folders of bundles without other options, by what they are packed for."""
    return {}


@pytest.fixture
def compiled(kvc, tmp_path, tmp_path_factory, here, made):
    """Compile with options into a folder of this name; return its bundle."""

    def copy(name, *options, pack=here):
        if options:
            return make(tmp_path / name, *options, pack=pack)
        if pack not in made:
            made[pack] = make(tmp_path_factory.mktemp("made") / "one", pack=pack).parent
        return shutil.copytree(made[pack], tmp_path / name) / "tiny.kvc"

    def make(folder, *options, pack):
        folder.mkdir()
        path = folder / "tiny.kvc"
        packing = () if pack is None else ("--pack", pack)
        result = kvc("compile", *MODEL, *options, "-o", path, *packing)
        assert result.exit_code == 0, result.output
        return path

    return copy


def files(path):
    return sorted(one.name for one in path.parent.iterdir())


def program_of(path):
    with BundleFile(path) as bundle:
        return bundle.program


def test_packed_weights_lie_in_a_data_file_of_their_own(compiled, here):
    path = compiled("a")
    program = program_of(path)
    bundle, data = [], []
    for named in program.names:
        (bundle if named.format == "plain" else data).append(named)
    assert {named.format for named in data} == {f"xnnpack:{here}"}
    assert {program.blobs[named.blob].file for named in bundle} == {0}
    assert {program.blobs[named.blob].file for named in data} == {1}
    assert files(path) == sorted(["tiny.kvc", program.files[1].name])
    assert program.files[1].name.startswith("tiny-")


def test_the_bundle_is_the_plain_one_but_for_the_names(compiled):
    packed, plain = compiled("a"), compiled("b", pack=None)
    assert files(plain) == ["tiny.kvc"]
    ours, theirs = program_of(packed), program_of(plain)
    count = count_unpacked(ours)
    assert ours.names[:count] == theirs.names
    assert ours.blobs[: len(theirs.blobs)] == theirs.blobs
    assert ours.methods == theirs.methods
    end = max(blob.offset + blob.nbytes for blob in theirs.blobs)
    assert packed.read_bytes()[128:end] == plain.read_bytes()[128:end]


def test_equal_inputs_give_equal_files(compiled, made):
    one = compiled("a")
    made.clear()
    two = compiled("b")
    assert files(one) == files(two)
    for name in files(one):
        assert (one.parent / name).read_bytes() == (two.parent / name).read_bytes()


def test_loading_packs_nothing(compiled, monkeypatch):
    path = compiled("a")
    monkeypatch.setattr(Weights, "_insert", None)
    assert generated(path) == generated(compiled("b", pack=None), reference=True)


def generated(path, **options):
    """Return the likeliest tokens after some."""
    with load(path, **options) as program:
        session = program.session()
        logits, found = session.prefill(TOKENS), []
        for _ in range(5):
            found.append(int(np.argmax(logits[0])))
            logits = session.decode(np.array([[found[-1]]], np.int64))
        return found


def test_the_plain_weights_may_be_external_and_shared(compiled, tmp_path):
    base = compiled("base", "--data", "external")
    assert len(files(base)) == 3
    names = {file.name for file in program_of(base).files[1:]}
    assert names == set(files(base)) - {"tiny.kvc"}
    reuse = [option for name in names for option in ("--reuse", base.parent / name)]
    before = files(base)
    compiled("other", *reuse)
    assert files(base) == before
    assert files(tmp_path / "other" / "tiny.kvc") == ["tiny.kvc"]


@pytest.mark.parametrize("wrong", ["", "x", "000000000000:avx2", "xnnpack"])
def test_another_machine_is_refused_and_told_what_this_one_is(
    kvc, tmp_path, here, wrong
):
    result = kvc("compile", *MODEL, "-o", tmp_path / "a.kvc", "--pack", wrong)
    assert result.exit_code == 1
    assert f"cannot pack for {wrong!r}" in result.stderr
    assert f"this machine, which is {here};" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_the_library_nothing_is_packed(kvc, tmp_path, monkeypatch):
    def refused():
        raise MissingLibrary(library="XNNPACK", reason="it is gone", install="pip x")

    monkeypatch.setattr(backend, "find_library", refused)
    result = kvc("compile", *MODEL, "-o", tmp_path / "a.kvc", "--pack", "x:y")
    assert result.exit_code == 1
    assert "it is gone (this machine's FEATURES are " in result.stderr
    assert "pip install --no-deps executorch==" in result.stderr
    assert "--reference" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_without_a_backend_packs_nothing(kvc, tmp_path):
    arguments = ("tiny_decoder:factory", "-o", tmp_path / "a.kvc", "--pack", "x:y")
    result = kvc("compile", *arguments, "--recipe", "fp32")
    assert result.exit_code == 1
    assert "the recipe names no backend" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_closing_table_names_the_file(kvc, tmp_path, here):
    arguments = (*MODEL[:-1], "-o", tmp_path / "a.kvc", "--pack", here)
    result = kvc("compile", *arguments)
    assert result.exit_code == 0, result.output
    (data,) = tmp_path.glob("*.kvd")
    nbytes = f"({data.stat().st_size:,} bytes)"
    (line,) = [one for one in result.stderr.splitlines() if "packed " in one]
    assert data.name in line
    assert nbytes in line
    assert f"({(tmp_path / 'a.kvc').stat().st_size:,} bytes)" in result.stderr


def test_reports_tell_packed_bytes_from_plain_ones(kvc, compiled, here):
    path, plain = compiled("a"), compiled("b", pack=None)
    report = json.loads(kvc("dump", "--json", path).stdout)
    others = json.loads(kvc("dump", "--json", plain).stdout)
    form = f"xnnpack:{here}"
    shared = [one for one in report["sharing"] if one["format"] == "plain"]
    assert shared == others["sharing"]
    (packed,) = [one for one in report["sharing"] if one["format"] == form]
    assert packed["methods"] == ["prefill", "decode"]
    for ours, theirs in zip(report["delegates"], others["delegates"], strict=True):
        assert (ours["names"], ours["weights_nbytes"]) == (
            theirs["names"],
            theirs["weights_nbytes"],
        )
        assert theirs["packed_nbytes"] == 0
    (file,) = report["size"]["data_files"]
    (blobs,) = [part for part in file["parts"] if part["category"] == "blobs"]
    assert blobs["what"] == f"uint8, {form}"
    assert blobs["nbytes"] == packed["nbytes"]
    text = kvc("dump", "--blobs", path).stdout
    assert "nobody" not in text
    assert f"({form})" in text


def test_verify_and_gc_know_the_packed_file(kvc, compiled):
    path = compiled("a")
    (data,) = path.parent.glob("*.kvd")
    assert kvc("verify", path).exit_code == 0
    assert kvc("gc", path.parent).exit_code == 0
    assert data.exists()
    raw = bytearray(data.read_bytes())
    raw[4096] ^= 1
    data.write_bytes(raw)
    result = kvc("verify", path)
    assert result.exit_code == 1
    assert "packed/" in result.stderr


def test_splitting_keeps_packed_weights_apart(kvc, compiled, tmp_path):
    path = compiled("a")
    (packed,) = path.parent.glob("*.kvd")
    out = tmp_path / "out"
    out.mkdir()
    result = kvc("split", "-q", path, "-o", out / "tiny.kvc")
    assert result.exit_code == 0, result.output
    assert packed.name in result.stdout
    assert len(files(out / "tiny.kvc")) == 3
    assert (out / packed.name).read_bytes() == packed.read_bytes()
    assert kvc("verify", out / "tiny.kvc").exit_code == 0


def test_joining_takes_packed_weights_in(kvc, compiled, tmp_path, monkeypatch):
    path = compiled("a")
    joined = tmp_path / "joined.kvc"
    assert kvc("join", "-q", path, "-o", joined).exit_code == 0
    assert len(program_of(joined).files) == 1
    monkeypatch.setattr(Weights, "_insert", None)
    assert generated(joined) == generated(path)


def test_a_bundle_without_its_packed_file_is_a_plain_one(kvc, compiled, tmp_path):
    path, plain = compiled("a"), compiled("b", pack=None)
    (data,) = path.parent.glob("*.kvd")
    data.unlink()
    assert generated(path, reference=False) == generated(plain, reference=False)
    result = kvc("dump", path)
    assert result.exit_code == 0
    assert "the bundle works without: its weights are packed at load" in result.stdout
    assert kvc("verify", path).exit_code == 2  # it is not there
    joined = tmp_path / "joined.kvc"
    assert kvc("join", "-q", path, "-o", joined).exit_code == 0
    assert joined.read_bytes() == plain.read_bytes()


def test_what_is_packed_is_no_part_of_a_programs_identity(compiled, here):
    found = {pack: load(compiled(f"of {pack}", pack=pack)) for pack in (None, here)}
    plain, packed = found.values()
    with plain, packed:
        assert plain.digest != packed.digest
        assert plain.identity == packed.identity
