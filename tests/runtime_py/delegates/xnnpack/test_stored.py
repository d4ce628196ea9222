"""Packed weights that a bundle brings along: used where they fit, and only there."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hand_built import write_bundle
from xnnpack_graphs import library_or_skip
from xnnpack_programs import float_sketch, linear_sketch, numbers, partition_program

from kvc.runtime import load
from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.xnnpack.backend import describe_processor
from kvc.runtime.delegates.xnnpack.weights import Weights
from kvc.schema.container import (
    BundleFile,
    StoredBlobs,
    save_bundle,
    stored_contents,
    verify_bundle,
)
from kvc.schema.container.store_once import Content
from kvc.schema.errors import DataFileMissing, DigestMismatch, NativeCallFailed
from kvc.schema.types import TensorType
from kvc.schema.uses import count_unpacked
from kvc.tools.packing import pack_bundle, packed_format

WEIGHT = numbers((64, 128))
SCALES = np.linspace(0.01, 0.02, 64, dtype=np.float32)
BIAS = np.arange(64, dtype=np.float32)
X = np.random.default_rng(5).standard_normal((3, 128)).astype(np.float32)


@pytest.fixture(autouse=True)
def library():
    return library_or_skip()


@pytest.fixture
def path(tmp_path):
    """A packed bundle: `one` and `two` share a weight, `other` has another bias."""
    partitions = {
        "one": linear_sketch(WEIGHT, SCALES, BIAS),
        "two": linear_sketch(WEIGHT, SCALES, BIAS),
        "other": linear_sketch(WEIGHT, SCALES, -BIAS),
    }
    plain = write_bundle(tmp_path / "p.kvc", partition_program(partitions))
    pack_bundle(plain, packed_format("xnnpack"))
    return plain


@pytest.fixture
def packed_by_library(monkeypatch):
    """The weights that the library packs, by name."""
    names = []
    insert = Weights._insert

    def noted(self, asked, address, nbytes):
        names.append(self._places[asked.kernel].identity.weight)
        return insert(self, asked, address, nbytes)

    monkeypatch.setattr(Weights, "_insert", noted)
    return names


@pytest.fixture
def read_by(monkeypatch):
    """The names of the data whose bytes are asked for."""
    names = []
    for door in ("private_array", "read_into"):
        inner = getattr(FreeableBuffer, door)

        def noted(self, *rest, inner=inner):
            names.append(self.name)
            return inner(self, *rest)

        monkeypatch.setattr(FreeableBuffer, door, noted)
    return names


def packed_file(path):
    (found,) = Path(path).parent.glob("*.kvd")
    return found


def results(path, **options):
    """Return what all methods compute, and the packed bytes by the program's blobs."""
    with load(path, reference=False, **options) as program:
        found = [program.one(X), program.two(X), program.other(X)]
        return found, program.residency()


def rewrite(path, change):
    """Write a bundle again, its packed names and their bytes changed."""
    with StoredBlobs.open(BundleFile(path)) as stored:
        program, plain = stored.program, stored_contents(stored)
        count = count_unpacked(program)
        raws, names = [], list(program.names[:count])
        for index, named in enumerate(program.names[count:], count):
            raw = b"".join(bytes(chunk) for chunk in plain(index).chunks())
            named, raw = change(named, raw)
            raws.append(raw)
            kind = TensorType(named.type.dtype, (len(raw),))
            names.append(replace(named, type=kind))

        def content(name):
            if name < count:
                return plain(name)
            raw = memoryview(raws[name - count])
            return Content(len(raw), lambda: iter([raw]), ("changed", name))

        changed = replace(program, names=tuple(names))
        save_bundle(path, changed, content, packed_apart=True)


def test_nothing_is_packed_where_the_bundle_has_it(path, packed_by_library, read_by):
    _, residency = results(path)
    assert packed_by_library == []
    assert not {"one.c0", "two.c0", "other.c0"} & set(read_by)
    assert len([name for name in read_by if name.startswith("packed/")]) == 2
    assert residency.totals.packed > 2 * WEIGHT.nbytes


@pytest.mark.parametrize("mode", ["map", "read", "huge"])
def test_the_numbers_are_those_of_packing(path, mode, packed_by_library):
    found, residency = results(path, mode=mode)
    assert packed_by_library == []
    packed_file(path).unlink()
    wanted, others = results(path, mode=mode)
    assert sorted(packed_by_library) == ["one.c0", "other.c0"]
    assert all(map(np.array_equal, found, wanted))
    assert residency.totals.packed == others.totals.packed


def test_methods_that_share_a_weight_share_its_packing(path):
    with BundleFile(path) as bundle:
        program = bundle.program
    count = count_unpacked(program)
    assert len(program.names) == count + 2
    used = [{i - count for i in one.names if i >= count} for one in program.delegates]
    assert used[0] == used[1]
    assert used[0] | used[2] == {0, 1}
    assert not used[0] & used[2]
    assert {named.provenance for named in program.names[count:]} == {
        "one.c0",
        "other.c0",
    }


def test_packed_blobs_take_no_memory_of_their_own(path):
    """They are read straight to where the library finds them."""
    for mode in ("map", "read"):
        _, residency = results(path, mode=mode)
        blobs = [b for b in residency.blobs if b.names[0].startswith("packed/")]
        assert len(blobs) == 2
        assert {(b.handles, b.mapped, b.packed) for b in blobs} == {(0, 0, 0)}


@pytest.mark.parametrize(
    "wrong", ["xnnpack:000000000000:avx", "plain:x", "xnnpack:" + "a" * 12]
)
def test_another_format_is_packed_anew(path, packed_by_library, wrong):
    wanted, _ = results(path)
    rewrite(path, lambda named, raw: (replace(named, format=wrong), bytes(len(raw))))
    found, _ = results(path)
    assert sorted(packed_by_library) == ["one.c0", "other.c0"]
    assert all(map(np.array_equal, found, wanted))


def test_another_key_is_packed_anew(path, packed_by_library):
    """The key says the library's fingerprint and the digests of all that is packed."""

    def change(named, raw):
        return replace(named, name=named.name[:-1] + "x"), bytes(len(raw))

    wanted, _ = results(path)
    rewrite(path, change)
    found, _ = results(path)
    assert len(packed_by_library) == 2
    assert all(map(np.array_equal, found, wanted))


def test_other_weights_never_get_a_packing(path, tmp_path, packed_by_library):
    """A packed file of the same names beside a bundle of another weight."""
    other = linear_sketch(WEIGHT, 2 * SCALES, BIAS)
    built, arrays = partition_program({"one": other})
    with BundleFile(path) as bundle:
        names = bundle.program.names[count_unpacked(bundle.program) :]
    arrays = arrays | {
        named.name: np.zeros(named.type.dims, np.uint8) for named in names
    }
    count = len(built.names)
    packed = [replace(n, blob=i) for i, n in enumerate(names, count)]
    built = replace(built, names=(*built.names, *packed))
    again = write_bundle(tmp_path / "o.kvc", (built, arrays))
    with load(again, reference=False) as program:
        assert np.abs(program.one(X)).max() > 1
    assert packed_by_library == ["one.c0"]


def test_a_damaged_packing_is_refused_and_named(path):
    file = packed_file(path)
    raw = bytearray(file.read_bytes())
    raw[4096 + 5] ^= 1
    file.write_bytes(raw)
    refused = pytest.raises(DigestMismatch, match=r"packed/[0-9a-f]{64}-")
    with load(path, reference=False) as program, refused:
        program.pack()
    with pytest.raises(DigestMismatch, match="packed/"):
        verify_bundle(path)


@pytest.mark.parametrize("nbytes", [0, 1, 100, 70_000])
def test_a_packing_of_a_wrong_size_is_memory_safe(path, nbytes, packed_by_library):
    """It gives wrong numbers, of memory that is there."""
    rewrite(path, lambda named, raw: (named, (raw * 8)[:nbytes]))
    found, _ = results(path)
    assert packed_by_library == []
    assert [each.shape for each in found] == [(3, 64)] * 3


def test_a_short_packing_lies_before_readable_memory(path, monkeypatch):
    """At least as much as any packing of the weight takes."""
    rewrite(path, lambda named, raw: (named, raw[:1]))
    with load(path, reference=False) as program:
        program.pack()
        weights = program._engine._resources._backends["xnnpack"]._weights
        heap = weights._heap
        (chunk,) = heap._chunks
        bounds = [token.identity.packed_bound for token in weights._tokens.values()]
        for entry in weights.entries():
            assert entry.nbytes == 1
            assert entry.address + max(bounds) <= chunk.address + chunk.nbytes


def test_a_packing_that_is_far_too_long_is_refused(path):
    rewrite(path, lambda named, raw: (named, bytes(4 << 20)))
    with (
        load(path, reference=False) as program,
        pytest.raises(
            NativeCallFailed, match=r"4194304 bytes are no packing of 'one\.c0'"
        ),
    ):
        program.one(X)


def test_bounds_hold_for_what_the_library_packs(tmp_path):
    shapes = [(1, 1), (1, 300), (300, 1), (3, 5), (257, 33), (64, 128)]
    partitions = {}
    for index, shape in enumerate(shapes):
        weight = numbers(shape)
        scales = np.ones(shape[0], np.float32)
        partitions[f"q{index}"] = linear_sketch(weight, scales)
        partitions[f"f{index}"] = float_sketch(weight.astype(np.float32))
    path = write_bundle(tmp_path / "b.kvc", partition_program(partitions))
    with load(path, reference=False) as program:
        packings = {one.weight: one.nbytes for one in program.pack()}
        weights = program._engine._resources._backends["xnnpack"]._weights
        bounds = {i.weight: i.packed_bound for i in weights._tokens}
    assert len(packings) == 2 * len(shapes)
    for name, nbytes in packings.items():
        assert nbytes <= bounds[name], name


def test_without_its_file_a_bundle_packs_and_says_what_is_missing(path):
    packed_file(path).unlink()
    with load(path, reference=False) as program:
        assert program.one(X).shape == (3, 64)
        (name, *_) = [n for n in program.data if n.startswith("packed/")]
        with pytest.raises(DataFileMissing, match=r"p-[0-9a-f]{12}\.kvd"):
            program.data[name].array()
    with pytest.raises(DataFileMissing):
        verify_bundle(path)


def test_the_reference_does_without(path):
    with load(path, reference=True) as program:
        assert program.pack() == ()
        reference = program.one(X)
    assert np.allclose(results(path)[0][0], reference, rtol=1e-5, atol=1e-4)


def test_packings_are_the_same_every_time(path, library):
    def packed():
        with load(path, reference=False) as program:
            return [(one.key, one.partitions, one.content()) for one in program.pack()]

    stored = packed()
    packed_file(path).unlink()
    assert packed() == packed() == stored


def test_packing_runs_no_method_and_is_done_once(path, packed_by_library):
    packed_file(path).unlink()
    with load(path, reference=False) as program:
        program.pack()
        assert sorted(packed_by_library) == ["one.c0", "other.c0"]
        program.pack()
        program.one(X)
        program.other(X)
        assert len(packed_by_library) == 2


def test_the_processor_is_told_by_what_kernels_are_chosen_by():
    intel = "model name: x\nflags\t\t: fpu sse avx2 clzero avx fma avx512_vnni\n" * 2
    assert describe_processor("x86_64", intel) == "avx+fma+avx2+avx512_vnni"
    assert describe_processor("x86_64", "flags : fpu\n") == "x86_64"
    one = describe_processor("aarch64", "Features : fp asimd\nCPU part : 0xd0c\n")
    two = describe_processor("aarch64", "Features : fp asimd\nCPU part : 0xd40\n")
    assert one.startswith("aarch64-")
    assert one != two


def test_the_format_says_the_build_and_the_processor(library):
    found = packed_format("xnnpack")
    backend, build, features = found.split(":")
    assert backend == "xnnpack"
    assert library.build.startswith(build)
    assert len(build) == 12
    assert features
