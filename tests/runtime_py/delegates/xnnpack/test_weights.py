"""Packed weights: never those of another weight, and each packed once."""

import gc

import numpy as np
import pytest
from hand_built import write_bundle
from partition_sketch import Sketch
from resident_memory import LINUX, is_resident, resident_nbytes
from xnnpack_graphs import library_or_skip
from xnnpack_programs import (
    float_sketch,
    linear_sketch,
    numbers,
    partition_program,
    product_sketch,
)

from kvc.runtime import load
from kvc.runtime.delegates.xnnpack import layouts
from kvc.runtime.delegates.xnnpack.functions import CacheKey
from kvc.runtime.delegates.xnnpack.identities import identify
from kvc.runtime.delegates.xnnpack.provider import NOT_FOUND
from kvc.runtime.delegates.xnnpack.weights import Weights
from kvc.schema.errors import DigestMismatch, NativeCallFailed

WEIGHT = numbers((8, 16))
SCALES = np.linspace(0.01, 0.02, 8, dtype=np.float32)
BIAS = np.arange(8, dtype=np.float32)
X = np.random.default_rng(5).standard_normal((3, 16)).astype(np.float32)


@pytest.fixture(autouse=True)
def library():
    return library_or_skip()


@pytest.fixture
def opened(tmp_path):
    """Open programs of sketches with the library; all are closed after the test."""
    made = []

    def open_program(name="p.kvc", **partitions):
        path = tmp_path / name
        if not path.exists():
            write_bundle(path, partition_program(partitions))
        made.append(load(path, reference=False))
        return made[-1]

    yield open_program
    for program in made:
        program.close()


def weights_of(program):
    return program._engine._resources._backends["xnnpack"]._weights


def expected(x, weight=WEIGHT, scales=SCALES, bias=0):
    """Return the linear in float32; rows of x are quantized to about 1 in 100."""
    return x @ (weight * scales[:, None]).T + bias


def close(found, wanted):
    return np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()


def test_a_linear_is_computed(opened):
    program = opened(forward=linear_sketch(WEIGHT, SCALES, BIAS))
    assert close(program.forward(X), expected(X, bias=BIAS))


def test_equal_bytes_with_other_scales_are_another_weight(opened):
    program = opened(
        one=linear_sketch(WEIGHT, SCALES), two=linear_sketch(WEIGHT, 3 * SCALES)
    )
    assert close(program.one(X), expected(X))
    assert close(program.two(X), expected(X, scales=3 * SCALES))
    assert len(weights_of(program).entries()) == 2


def test_equal_bytes_with_another_bias_are_another_weight(opened):
    """The bias is packed in with the weight."""
    program = opened(
        none=linear_sketch(WEIGHT, SCALES),
        one=linear_sketch(WEIGHT, SCALES, BIAS),
        two=linear_sketch(WEIGHT, SCALES, -BIAS),
    )
    assert close(program.none(X), expected(X))
    assert close(program.one(X), expected(X, bias=BIAS))
    assert close(program.two(X), expected(X, bias=-BIAS))
    assert len(weights_of(program).entries()) == 3


def test_equal_bytes_of_another_shape_are_another_weight(opened):
    """XNNPACK's own seed is the same for both."""
    flat = np.random.default_rng(4).standard_normal(64 * 128).astype(np.float32)
    wide, tall = flat.reshape(64, 128), flat.reshape(128, 64)
    program = opened(wide=float_sketch(wide), tall=float_sketch(tall))
    x = np.random.default_rng(5).standard_normal((3, 128)).astype(np.float32)
    assert np.allclose(program.wide(x), x @ wide.T, atol=1e-4)
    assert np.allclose(program.tall(x[:, :64]), x[:, :64] @ tall.T, atol=1e-4)
    one, two = weights_of(program).entries()
    assert (one.seed, one.fingerprint) == (two.seed, two.fingerprint)


def test_a_weight_that_two_methods_use_is_packed_once(opened):
    program = opened(
        one=linear_sketch(WEIGHT, SCALES), two=linear_sketch(WEIGHT, SCALES)
    )
    assert np.array_equal(program.one(X), program.two(X))
    (entry,) = weights_of(program).entries()
    assert entry.name == "one.c0"
    assert program.residency().totals.packed == entry.nbytes + SCALES.nbytes


def transposed_sketch(weight, groups):
    sketch = Sketch()
    settings = ((2, 2), (1, 1), (0, 0), groups, (1, 1))
    x, weight = sketch.input(2, 4, 5, 5), sketch.constant(weight)
    return sketch, (sketch("aten::conv_transpose2d.input", x, weight, None, *settings),)


def test_a_transposed_convolution_of_two_methods_is_packed_once(opened):
    """The library packs it without asking, and shows the cache what it has packed."""
    weight = numbers((4, 6, 4, 4)).astype(np.float32)
    program = opened(
        one=transposed_sketch(weight, 1),
        two=transposed_sketch(weight, 1),
        other=transposed_sketch(weight, 2),
    )
    x = np.random.default_rng(5).standard_normal((2, 4, 5, 5)).astype(np.float32)
    assert np.array_equal(program.one(x), program.two(x))
    assert program.other(x).shape == (2, 12, 10, 10)
    names = [entry.name for entry in weights_of(program).entries()]
    assert names == ["one.c0", "other.c0"]


def test_a_second_method_reads_nothing_from_the_file(opened, monkeypatch):
    program = opened(
        one=float_sketch(WEIGHT.astype(np.float32)),
        two=float_sketch(WEIGHT.astype(np.float32)),
    )
    program.one(X)
    monkeypatch.setattr(layouts, "arrange", None)
    touched = program._engine._blobs.touch
    asked = []
    monkeypatch.setattr(
        program._engine._blobs, "touch", lambda *a: asked.append(a) or touched(*a)
    )
    program.two(X)
    assert asked == []


def test_two_programs_do_not_share_addresses_or_weights(opened):
    one = opened("1.kvc", forward=linear_sketch(WEIGHT, SCALES))
    two = opened("2.kvc", forward=linear_sketch(-WEIGHT, SCALES))
    assert close(one.forward(X), expected(X))
    assert close(two.forward(X), -expected(X))
    assert close(one.forward(X), expected(X))
    places = [set(weights_of(program)._places) for program in (one, two)]
    assert places[0].isdisjoint(places[1])


def test_a_reused_address_never_shows_what_lay_there_before(opened):
    """Each program gives its addresses back, and the next may well get them."""
    seen = set()
    reused = 0
    for seed in range(12):
        weight = numbers((8, 16), seed)
        program = opened(f"{seed}.kvc", forward=linear_sketch(weight, SCALES))
        assert close(program.forward(X), expected(X, weight))
        places = set(weights_of(program)._places)
        reused += len(places & seen)
        seen |= places
        program.close()
    assert reused, "the system never gave an address again, so nothing was tested"


def test_a_released_program_packs_anew(opened):
    program = opened(forward=linear_sketch(WEIGHT, SCALES))
    first = program.forward(X)
    program.release()
    assert program.residency().totals.packed == 0
    assert np.array_equal(program.forward(X), first)
    assert program.residency().totals.packed > 0


def test_the_weight_is_given_back_after_packing(opened):
    weight = numbers((1024, 512))
    program = opened(forward=linear_sketch(weight, np.ones(1024, np.float32)))
    program.forward(np.ones((1, 512), np.float32))
    blob = program.residency().blobs[0]
    assert blob.handles == 0
    assert blob.touched == 0
    assert blob.packed >= weight.nbytes


@LINUX
def test_no_page_of_a_weights_own_address_stays(opened):
    weight = numbers((1024, 512))
    program = opened(forward=linear_sketch(weight, np.ones(1024, np.float32)))
    program.forward(np.ones((1, 512), np.float32))
    (address,) = weights_of(program)._places
    assert not is_resident(address)


def test_a_weight_that_torch_reads_too_keeps_its_plain_form(tmp_path):
    """An embedding and an output head may be the same bytes."""
    import torch

    from kvc.compiler import Method, compile_program

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(64, 32)
            self.head = torch.nn.Linear(32, 64, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens):
            return self.head(self.embedding(tokens))

    torch.manual_seed(0)
    path = tmp_path / "tied.kvc"
    tokens = torch.arange(64).reshape(1, 64)
    made = compile_program(Tied(), [Method("forward", (tokens,))], "xnnpack_q8")
    made.save(path)
    with load(path, reference=False) as ours, load(path, reference=True) as theirs:
        for _ in range(3):
            found = ours.forward(tokens.numpy())
            assert np.allclose(found, theirs.forward(tokens.numpy()), atol=1e-5)


def test_products_of_batches_see_their_constant(opened):
    """XNNPACK packs it for each runtime by itself, and asks no cache."""
    matrices = np.random.default_rng(1).standard_normal((2, 16, 8)).astype(np.float32)
    program = opened(one=product_sketch(matrices), two=product_sketch(-matrices))
    x = np.random.default_rng(2).standard_normal((2, 4, 16)).astype(np.float32)
    assert np.allclose(program.one(x), x @ matrices, atol=1e-5)
    assert np.allclose(program.two(x), -(x @ matrices), atol=1e-5)
    assert weights_of(program).entries() == ()


def test_a_damaged_weight_is_refused_and_named(opened, tmp_path):
    opened(forward=linear_sketch(WEIGHT, SCALES)).close()
    path = tmp_path / "p.kvc"
    raw = bytearray(path.read_bytes())
    raw[bytes(raw).index(WEIGHT.tobytes())] ^= 1
    path.write_bytes(raw)
    program = opened()
    for _ in range(2):
        with pytest.raises(DigestMismatch, match=r"forward\.c0"):
            program.forward(X)
    assert weights_of(program).entries() == ()


def test_a_failure_leaves_other_methods_alone(opened, monkeypatch):
    program = opened(
        one=linear_sketch(WEIGHT, SCALES), two=linear_sketch(2 * (WEIGHT // 2), SCALES)
    )
    weights = None

    def refused(*_):
        raise MemoryError("no room")

    program.one(X)
    weights = weights_of(program)
    monkeypatch.setattr(weights._heap, "room", refused)
    with pytest.raises(Exception, match="no room"):
        program.two(X)
    monkeypatch.undo()
    assert close(program.one(X), expected(X))
    assert close(program.two(X), expected(X, 2 * (WEIGHT // 2)))


def test_an_address_that_nobody_gave_out_is_refused(library):
    weights = Weights(library)
    key = CacheKey(seed=1, kernel=4096, bias=None, fingerprint=0)
    refused = pytest.raises(NativeCallFailed, match="no address of its own")
    with refused, weights.packing():
        assert weights._look_up(key) == NOT_FOUND
        assert weights._reserve(64) == 0
    weights.close()


def test_a_weight_that_the_library_took_without_asking_is_refused(opened):
    program = opened(forward=linear_sketch(WEIGHT, SCALES))
    program.forward(X)
    declared = program._engine.program
    weights = weights_of(program)
    identity = identify(declared, (0, None, None), "plain", (8, 16), "linear")
    refused = pytest.raises(NativeCallFailed, match=r"forward\.c0.*was not asked for")
    with refused, weights.packing():
        weights.address(identity, program.data)


def test_keys_mean_the_same_in_every_program(opened):
    one = opened("1.kvc", forward=linear_sketch(WEIGHT, SCALES))
    two = opened("2.kvc", other=linear_sketch(WEIGHT, SCALES), forward=float_sketch(X))
    one.forward(X)
    two.other(X)
    (mine,), (others,) = weights_of(one).entries(), weights_of(two).entries()
    assert mine.key == others.key
    assert mine.name != others.name


@LINUX
def test_memory_is_flat_over_many_programs(opened):
    weight = numbers((512, 512))
    partitions = {"forward": linear_sketch(weight, np.ones(512, np.float32))}
    opened("big.kvc", **partitions).close()
    x = np.ones((1, 512), np.float32)

    def cycle(count):
        for _ in range(count):
            program = opened("big.kvc")
            program.forward(x)
            program.close()
        gc.collect()
        return resident_nbytes()

    before = cycle(5)
    assert cycle(40) < before + (4 << 20)  # a leak: 35 times 256 KiB


@LINUX
def test_memory_goes_with_a_program_that_nobody_closed(opened, tmp_path):
    weight = numbers((512, 512))
    partitions = {"forward": linear_sketch(weight, np.ones(512, np.float32))}
    path = write_bundle(tmp_path / "big.kvc", partition_program(partitions))
    x = np.ones((1, 512), np.float32)

    def cycle(count):
        for _ in range(count):
            load(path, reference=False).forward(x)
        gc.collect()
        return resident_nbytes()

    before = cycle(5)
    assert cycle(40) < before + (4 << 20)  # a leak: 35 times 256 KiB


def test_a_sketch_of_nothing_quantized_packs_floats(opened):
    sketch = Sketch()
    x = sketch.input(2, 16)
    weight = np.random.default_rng(3).standard_normal((16, 8)).astype(np.float32)
    program = opened(
        forward=(sketch, (sketch("aten::mm", x, sketch.constant(weight)),))
    )
    found = program.forward(X[:2])
    assert np.allclose(found, X[:2] @ weight, atol=1e-5)
