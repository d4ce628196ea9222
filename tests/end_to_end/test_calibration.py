"""Calibration: samples in, ranges of values to a backend, numbers on grids out."""

from pathlib import Path

import numpy as np
import pytest
import tiny_decoder
import torch
from calibrated_backend import (
    SEEN,
    FixedPoint,
    recipe,
    register_fixed_point,
    values,
)
from hf_models import build
from streaming_audio import CHANNELS, CausalStack, RecurrentDenoiser
from torch import nn

from kvc.compiler import CacheConfig, Method, compile_program, export_hf
from kvc.runtime import load
from kvc.runtime.calibration import Samples, token_calls
from kvc.schema.backends.grids import read_grids
from kvc.schema.container import BundleFile
from kvc.schema.dtypes import DType
from kvc.schema.errors import (
    BadSamples,
    CalibrationNeeded,
    CalibrationUnused,
    NotCalibrated,
    RangeUnbounded,
    SamplesNotFinite,
)

STEPS, CALLS = 8, 12


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch):
    """Register the backend for one test."""
    register_fixed_point(monkeypatch)


def sounds(seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.standard_normal((CALLS, 1, CHANNELS, STEPS)).astype(np.float32)


def saved(folder: Path, **arrays: np.ndarray) -> Samples:
    np.savez(folder / "samples.npz", **arrays)
    return Samples(folder / "samples.npz")


def stack(folder: Path, made: str, samples: Samples | None) -> Path:
    torch.manual_seed(0)
    method = Method("forward", (torch.zeros(1, CHANNELS, STEPS),))
    path = folder / f"{Path(made).stem}.kvc"
    compile_program(
        CausalStack().eval(), [method], recipe=made, calibrate=samples
    ).save(path)
    return path


def heard(path: Path, given: np.ndarray) -> np.ndarray:
    with load(path) as program, program.session() as session:
        return np.stack([session.forward(one) for one in given])


@pytest.mark.parametrize(
    ("bits", "symmetric", "most"), [(8, False, 0.05), (8, True, 0.05), (16, True, 2e-2)]
)
def test_a_stream_on_grids_is_near_the_model(tmp_path, bits, symmetric, most):
    """With int16 values, what is off is what int8 weights are off."""
    samples = saved(tmp_path, x=sounds())
    path = stack(tmp_path, recipe(tmp_path, bits, symmetric), samples)
    wanted = heard(stack(tmp_path, "fp32", None), sounds())
    far = np.abs(heard(path, sounds()) - wanted).max() / np.abs(wanted).max()
    assert 0 < far < most


def test_every_value_lies_on_its_grid(tmp_path: Path):
    path = stack(tmp_path, recipe(tmp_path), saved(tmp_path, x=sounds()))
    with BundleFile.open(path) as file:
        (partition,) = file.program.delegates
        graph = file.program.methods[0].blocks[partition.block].graph
    grids = read_grids(partition.payload, graph, "", "")
    floats = {i for i, v in enumerate(graph.values) if v.type.dtype is DType.FLOAT32}
    assert grids.keys() == floats
    with load(path) as program, program.session() as session:
        result = session.forward(sounds()[0])
        (grid,) = (grids[value] for value in graph.outputs[:1])
        assert np.array_equal(grid.rounded(result), result)
        own = {grids[graph.root_of(value)] for value in graph.inputs}
        for state in program.states:
            content = np.asarray(session.state[state])
            assert any(np.array_equal(g.rounded(content), content) for g in own)


def test_ranges_are_the_least_and_the_greatest_number_of_all_calls(tmp_path: Path):
    given = sounds()
    stack(tmp_path, recipe(tmp_path), saved(tmp_path, x=given))
    (partition,) = SEEN
    found = [(r.low, r.high) for r in partition.ranges.values()]
    assert (float(given.min()), float(given.max())) in found
    floats = [v.id for v in values(partition.graph) if v.type.dtype is DType.FLOAT32]
    assert set(floats) == partition.ranges.keys()


def test_what_is_one_state_has_one_range_in_all_methods(tmp_path: Path):
    spec = tiny_decoder.factory()
    samples = text(tmp_path)
    compile_program(
        spec.model,
        spec.methods,
        recipe=recipe(tmp_path),
        metadata=spec.metadata,
        calibrate=samples,
    )
    prefill, decode = SEEN
    caches = [
        [
            one.ranges[value.id]
            for value in one.graph.inputs
            if value.id in one.ranges and len(value.type.dims) == 4
        ]
        for one in (prefill, decode)
    ]
    assert len(caches[0]) == 2
    assert caches[0] == caches[1]


class TwoWriters(nn.Module):
    """A buffer that two methods write."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(3))

    def one(self, x):
        self.held.copy_(x)
        return self.held * 1.0

    def two(self, y):
        self.held.copy_(y.neg())
        return self.held * 1.0


def test_the_range_of_a_state_covers_what_every_method_writes(tmp_path: Path):
    methods = [Method(name, (torch.zeros(3),)) for name in ("one", "two")]
    given = {"x": np.float32([1, 0, 0]), "y": np.float32([0, 2, 0])}
    compile_program(
        TwoWriters(),
        methods,
        recipe=recipe(tmp_path),
        calibrate=saved(tmp_path, **given),
    )
    for partition in SEEN:
        assert (-2.0, 1.0) in [(r.low, r.high) for r in partition.ranges.values()]


def text(
    folder: Path, content: str = "def hello():\n    return 'you'\n" * 20
) -> Samples:
    path = folder / "sample.txt"
    path.write_text(content)
    return Samples(path)


def language(folder: Path, samples: Samples, name: str = "language") -> Path:
    spec, path = tiny_decoder.factory(), folder / f"{name}.kvc"
    compile_program(
        spec.model,
        spec.methods,
        recipe=recipe(folder, 16, True),
        metadata=spec.metadata,
        calibrate=samples,
    ).save(path)
    return path


def test_a_text_calibrates_a_language_model(tmp_path: Path):
    path = language(tmp_path, text(tmp_path))
    with load(path) as program, program.session() as session:
        used = program.provenance.calibration
        assert (used.kind, used.samples, used.tokens) == ("text", 8, 8 * 24)
        logits = session.prefill(np.arange(60, 70)[None])
    spec, plain = tiny_decoder.factory(), tmp_path / "plain.kvc"
    compile_program(spec.model, spec.methods).save(plain)
    with load(plain) as program, program.session() as session:
        wanted = session.prefill(np.arange(60, 70)[None])
    far = np.abs(logits - wanted).max() / np.abs(wanted).max()
    assert 0 < far < 0.05


def test_the_model_makes_texts_itself_the_same_ones_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert token_calls._GENERATED == 8
    monkeypatch.setattr(token_calls, "_GENERATED", 2)
    first = language(tmp_path, Samples.generated(), "first")
    second = language(tmp_path, Samples.generated(), "second")
    assert first.read_bytes() == second.read_bytes()
    with BundleFile.open(first) as file:
        used = file.program.provenance.calibration
    assert (used.kind, used.samples, used.tokens) == ("generated", 2, 2 * 24)


def test_tokens_may_be_arrays(tmp_path: Path):
    tokens = np.arange(40).reshape(2, 20)
    path = language(tmp_path, saved(tmp_path, tokens=tokens))
    with BundleFile.open(path) as file:
        used = file.program.provenance.calibration
    assert (used.kind, used.samples, used.tokens) == ("arrays", 2, 40)


def test_equal_samples_give_equal_bytes(tmp_path: Path):
    made, samples = recipe(tmp_path), saved(tmp_path, x=sounds())
    one = stack(tmp_path, made, samples).read_bytes()
    assert stack(tmp_path, made, samples).read_bytes() == one
    other = saved(tmp_path, x=sounds(5))
    assert stack(tmp_path, made, other).read_bytes() != one


def test_a_model_of_transformers_is_calibrated(tmp_path: Path):
    tokens = np.random.default_rng(0).integers(0, 50, (2, 40))
    export_hf(
        build("llama"),
        recipe=recipe(tmp_path),
        cache=CacheConfig(max_length=64),
        calibrate=saved(tmp_path, tokens=tokens),
    ).save(tmp_path / "hf.kvc")
    assert {len(one.ranges) > 10 for one in SEEN} == {True}


def test_one_sample_needs_no_axis_of_samples(tmp_path: Path):
    np.save(tmp_path / "x.npy", sounds()[0])
    stack(tmp_path, recipe(tmp_path), Samples(tmp_path / "x.npy"))
    assert len(SEEN) == 1


def test_samples_may_be_a_safetensors_file(tmp_path: Path):
    from safetensors.numpy import save_file

    save_file({"x": sounds()}, tmp_path / "s.safetensors")
    same = stack(tmp_path, recipe(tmp_path), Samples(tmp_path / "s.safetensors"))
    with load(same) as program:
        assert program.provenance.calibration.samples == CALLS
    first = [one.ranges for one in SEEN]
    SEEN.clear()
    stack(tmp_path, recipe(tmp_path), saved(tmp_path, x=sounds()))
    assert [one.ranges for one in SEEN] == first


def test_a_backend_that_needs_samples_says_so(tmp_path: Path):
    with pytest.raises(CalibrationNeeded, match="--calibrate FILE"):
        stack(tmp_path, recipe(tmp_path), None)


@pytest.mark.parametrize("name", ["fp32", "cpu_fp32"])
def test_a_recipe_without_use_for_samples_says_so(tmp_path: Path, name: str):
    with pytest.raises(CalibrationUnused, match="leave it out"):
        stack(tmp_path, name, saved(tmp_path, x=sounds()))


class TwoMethods(nn.Module):
    """Two methods, of which samples may leave one out."""

    def one(self, x):
        return x.tanh()

    def two(self, y):
        return y.exp()


def two_methods(folder: Path, samples: Samples) -> None:
    methods = [Method(name, (torch.zeros(3),)) for name in ("one", "two")]
    compile_program(TwoMethods(), methods, recipe=recipe(folder), calibrate=samples)


def test_methods_that_samples_leave_out_are_named(tmp_path: Path):
    with pytest.raises(NotCalibrated, match="never run two, of which fixed_point"):
        two_methods(tmp_path, saved(tmp_path, x=np.zeros(3, np.float32)))


def test_methods_may_be_named_before_inputs(tmp_path: Path):
    given = {"one.x": np.ones(3, np.float32), "two.y": np.zeros(3, np.float32)}
    two_methods(tmp_path, saved(tmp_path, **given))
    assert len(SEEN) == 2


class Masked(nn.Module):
    """Adds a mask of infinities."""

    def forward(self, x):
        return torch.where(x > 0, x, -torch.inf).softmax(-1)


class Divided(nn.Module):
    """Gives NaN at zero."""

    def forward(self, x):
        return x / x


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        (Masked(), RangeUnbounded, "from -inf"),
        (Divided(), SamplesNotFinite, "gives NaN for a sample, first in aten::div"),
    ],
)
def test_numbers_that_no_integer_stands_for_are_refused(tmp_path, model, error, words):
    x = np.float32([0, 1, 2])
    with pytest.raises(error, match=words):
        compile_program(
            model,
            [Method("forward", (torch.ones(3),))],
            recipe=recipe(tmp_path),
            calibrate=saved(tmp_path, x=x),
        )


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"y": sounds()}, "no input is called 'y'.*forward.x"),
        ({"x": sounds().astype(np.float64)}, "float64.*the input is float32"),
        ({"x": sounds()[0, 0]}, r"float32 \[3, 8\]; the input is"),
        ({"x": sounds()[..., :3]}, "sample 0: method forward, input x: expected"),
        ({"x": sounds()[:0]}, "'x' is empty"),
        ({"x": np.full((1, CHANNELS, STEPS), np.nan, np.float32)}, "holds a NaN"),
        ({"x": sounds().astype(np.complex64)}, "is complex64; known are"),
        ({"x": sounds(), "z": sounds()}, "no input is called 'z'"),
    ],
)
def test_arrays_that_are_not_for_the_model_are_refused(tmp_path, arrays, words):
    with pytest.raises(BadSamples, match=words):
        stack(tmp_path, recipe(tmp_path), saved(tmp_path, **arrays))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"", "the file is empty"),
        ("a.txt", b" \n\t", "the text is empty"),
        ("a.txt", b"ab\xff", "byte 0xff at 2 is no UTF-8 text"),
        ("a.npy", b"no array", "not a file of arrays, or damaged"),
        ("a.npz", b"PK\x03\x04", "not a file of arrays, or damaged"),
        ("a.safetensors", b"\xff" * 16, "not a file of arrays, or damaged"),
        ("a.safetensors", b"\x02" + bytes(7) + b"{}", "the file has no arrays"),
    ],
)
def test_files_that_are_no_samples_are_refused(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadSamples, match=words):
        Samples(tmp_path / name)


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(BadSamples, match="cannot be read: No such file"):
        Samples(tmp_path / "none.txt")


def test_a_tensor_outside_of_its_file_is_refused(tmp_path: Path):
    head = b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    raw = len(head).to_bytes(8, "little") + head + b"1234"
    (tmp_path / "a.safetensors").write_bytes(raw)
    with pytest.raises(BadSamples, match="'x' lies outside of the file"):
        Samples(tmp_path / "a.safetensors")


def test_a_text_needs_a_model_that_reads_text(tmp_path: Path):
    with pytest.raises(BadSamples, match="no methods of the roles prefill and decode"):
        stack(tmp_path, recipe(tmp_path), text(tmp_path))


def test_tokens_that_the_model_does_not_have_are_refused(tmp_path: Path):
    tokens = np.full((1, 8), 300)
    with pytest.raises(BadSamples, match="300"):
        language(tmp_path, saved(tmp_path, tokens=tokens))


def test_recurrent_states_are_observed_over_the_whole_stream(tmp_path: Path):
    torch.manual_seed(0)
    model = RecurrentDenoiser().eval()
    x = np.ones((30, 1, 4, CHANNELS), np.float32)
    for count in (1, 30):
        compile_program(
            model,
            [Method("forward", (torch.zeros(1, 4, CHANNELS),))],
            recipe=recipe(tmp_path),
            calibrate=saved(tmp_path, x=x[:count]),
        )
    one, many = (
        max(p.ranges[v.id].high for v in p.graph.inputs if v.type.dims == (1, 1, 6))
        for p in SEEN
    )
    assert many > one


def test_a_backend_of_the_same_kind_without_samples_has_no_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(FixedPoint, "calibrated", False)
    stack(tmp_path, recipe(tmp_path), None)
    assert SEEN[0].ranges == {}


class Viewed(nn.Module):
    """Reads its input in another shape, and as it is."""

    def forward(self, x):
        return x.reshape(-1).tanh(), x.exp()


def test_what_others_read_too_is_not_rounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    everything = FixedPoint.supports
    monkeypatch.setattr(
        FixedPoint,
        "supports",
        lambda self, method: frozenset(
            i for i in everything(self, method) if method.nodes[i].op != "aten::exp"
        ),
    )
    x = np.float32([[0.011, 0.5], [-1.0, 0.733]])
    method, path = Method("forward", (torch.ones(2, 2),)), tmp_path / "viewed.kvc"
    compile_program(
        Viewed(), [method], recipe=recipe(tmp_path), calibrate=saved(tmp_path, x=x)
    ).save(path)
    with load(path) as program:
        rounded, exact = program.forward(x)
    assert not np.array_equal(rounded, np.tanh(x).reshape(-1))
    assert np.allclose(exact, np.exp(x), rtol=1e-6)


class Scaled(nn.Module):
    """Takes a number as a tensor without axes."""

    def forward(self, x, by):
        return x * by


def test_an_input_without_axes_has_one_number_for_each_call(tmp_path: Path):
    methods = [Method("forward", (torch.ones(3), torch.ones(())))]
    given = {"x": np.ones((2, 3), np.float32), "by": np.float32([-2, 5])}
    compile_program(
        Scaled(), methods, recipe=recipe(tmp_path), calibrate=saved(tmp_path, **given)
    )
    (partition,) = SEEN
    assert (-2.0, 5.0) in [(r.low, r.high) for r in partition.ranges.values()]
