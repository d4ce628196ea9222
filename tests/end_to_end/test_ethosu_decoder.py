"""A decoder block on Ethos-U85: norms, rotary positions, caches and attention."""

import io
import json
import zipfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import tiny_decoder
import torch
from click.testing import CliRunner
from torch import nn
from tosa_reference import needs_tosa, reference

from kvc.compiler import Method, compile_program
from kvc.compiler.models.decoder import Decoder
from kvc.compiler.models.demo import decoder_methods
from kvc.runtime import Program, load
from kvc.runtime.calibration import Samples
from kvc.runtime.delegates.ethosu.backend import EthosUHandle
from kvc.runtime.delegates.ethosu.evaluate import evaluate
from kvc.runtime.delegates.ethosu.host_calls import bind_call
from kvc.runtime.delegates.ethosu.tosa import Element
from kvc.schema.backends.ethosu import CHECK_INDEX
from kvc.schema.backends.grids import Stored, read_grids
from kvc.schema.container import BundleFile
from kvc.schema.errors import (
    BadOption,
    CacheOverflow,
    ExportFailed,
    IndexOutOfRange,
    RowLengthOutOfRange,
)
from kvc.schema.ops import OPS, Aliasing
from kvc.tools.cli import main

needs_vela = pytest.mark.skipif(
    find_spec("ethosu") is None, reason="no Vela here: pip install 'kvc[ethosu]'"
)
PROMPT = np.random.default_rng(0).integers(0, 256, (8, 20))
RECIPE = """
[backend]
name = "ethosu"
rest = "cpu"
[backend.options]
activations = "{activations}"
npu = "{npu}"
[buckets]
seq = [1, 8]
"""
FAR = {"int8": 0.02, "int16": 0.01}  # of the greatest logit; weights are int8
BLOCK = {
    "aten::add.Tensor",
    "aten::linear",
    "aten::mul.Tensor",
    "aten::rms_norm",
    "aten::silu",
    "kvc::attention",
    "kvc::cache_update",
    "kvc::rotary_embedding",
}


def compiled(folder: Path, activations: str, npu: str = "u85") -> Path:
    (folder / "decoder.toml").write_text(
        RECIPE.format(activations=activations, npu=npu)
    )
    np.savez(folder / "tokens.npz", tokens=PROMPT)
    spec = tiny_decoder.factory()
    path = folder / "decoder.kvc"
    compile_program(
        spec.model,
        spec.methods,
        recipe=str(folder / "decoder.toml"),
        calibrate=Samples(folder / "tokens.npz"),
    ).save(path)
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec, path = tiny_decoder.factory(), tmp_path_factory.mktemp("plain") / "plain.kvc"
    compile_program(spec.model, spec.methods).save(path)
    return path


@pytest.fixture(scope="module", params=["int8", "int16"])
def decoder(request, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return how a bundle's activations are stored, and the bundle."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, compiled(folder, request.param)


def ops_of(path: Path, backend: str) -> dict[str, list[set[str]]]:
    """Return the operators of each partition, without views, by method."""
    found: dict[str, list[set[str]]] = {}
    with BundleFile.open(path) as file:
        for one in file.program.delegates:
            method = file.program.methods[one.method]
            steps = method.blocks[one.block].graph.instructions
            ops = {s.op for s in steps if OPS[s.op].aliasing is not Aliasing.VIEW}
            if one.backend == backend:
                found.setdefault(method.name, []).append(ops)
    return found


def graphs(path: Path) -> list:
    with load(path) as program:
        return [
            unit.graph
            for handle in handles(program)
            for unit in handle.units("partition", "method", {})
        ]


def test_a_block_is_one_partition_of_each_method(decoder):
    _, path = decoder
    found = ops_of(path, "ethosu")
    for method in ("prefill", "decode"):
        (ops,) = found[method]
        assert ops >= BLOCK
        (rest,) = ops_of(path, "cpu")[method]
        assert rest == {
            "aten::add.Scalar",
            "aten::add.Tensor",
            "aten::arange.start_step",
            "aten::embedding",
            "aten::index.Tensor",
        }


def test_what_is_left_to_the_processor_says_why(decoder):
    shown = CliRunner().invoke(main, ["dump", str(decoder[1]), "--delegates"]).output
    assert "it computes only tensors that are float32 in the model, not int64" in shown


def test_prefill_and_decode_are_near_the_model(decoder, plain: Path):
    activations, path = decoder
    results = []
    for bundle in (path, plain):
        with load(bundle) as program, program.session() as session:
            made = [session.prefill(PROMPT[:1, :13])]  # 8, and five by one
            made += [session.decode(PROMPT[:1, i : i + 1]) for i in (13, 14)]
            results.append((np.stack(made), np.asarray(session.state[KEYS])[0, 0, :15]))
    (found, keys), (wanted, exact) = results
    assert 0 < np.abs(found - wanted).max() < FAR[activations] * np.abs(wanted).max()
    assert 0 < np.abs(keys - exact).max() < FAR[activations] * np.abs(exact).max()


KEYS = "layers.0.attn.k_cache"


def test_a_cache_is_written_at_its_position_and_nowhere_else(decoder):
    with load(decoder[1]) as program, program.session() as session:
        session.prefill(PROMPT[:1, :8])
        before = np.array(session.state[KEYS])
        session.decode(PROMPT[:1, 8:9])
        after = np.array(session.state[KEYS])
    changed = (before != after).any((0, 1, 3))
    assert changed.tolist() == [slot == 8 for slot in range(24)]
    assert not after[:, :, 9:].any()


def test_a_full_cache_is_refused_and_left_as_it_was(decoder):
    with load(decoder[1]) as program, program.session() as session:
        session.prefill(PROMPT[:1, :8])
        session.prefill(PROMPT[:1, :8])
        session.prefill(PROMPT[:1, :8])
        before = np.array(session.state[KEYS])
        with pytest.raises(CacheOverflow):
            session.decode(PROMPT[:1, :1])
        assert np.array_equal(before, np.array(session.state[KEYS]))


def handles(program: Program) -> list[EthosUHandle]:
    program.pack()
    found = program._engine._resources._handles.values()
    return [handle for handle in found if isinstance(handle, EthosUHandle)]


@pytest.mark.parametrize(
    ("start", "length", "error"),
    [
        (24, 24, CacheOverflow),
        (-1, 1, IndexOutOfRange),
        (0, 25, RowLengthOutOfRange),
        (0, -1, RowLengthOutOfRange),
    ],
)
def test_positions_are_checked_though_the_code_does_not(decoder, start, length, error):
    with load(decoder[1]) as program:
        handle = handles(program)[-1]
        unchecked = [s for s in handle._graph.instructions if s.op != CHECK_INDEX]
        assert len(unchecked) < len(handle._graph.instructions)
        graph = replace(handle._graph, instructions=tuple(unchecked))
        types = [graph.values[value].type for value in graph.inputs]
        inputs = [np.zeros(kind.shape({}), kind.dtype.numpy) for kind in types]
        one, other = (array for array in inputs if array.dtype == np.int64)
        one[...], other[...] = start, length
        outputs = [
            np.zeros(graph.values[value].type.shape({}), np.float32)
            for value in graph.outputs
        ]
        lowered, grids = handle.lowered({}), handle._grids
        run = bind_call(graph, lowered, grids, {}, inputs, outputs)
        with pytest.raises(error):
            run()
        assert not any(array.any() for array in outputs)


def given(graph, seed: int, start: int, seen: int) -> list[np.ndarray]:
    """Return inputs of a graph: any integers, a first slot and a valid length."""
    random, made = np.random.default_rng(seed), []
    positions = iter((start, seen))
    for tensor in (graph.tensors[name] for name in graph.inputs):
        if tensor.element is Element.INT32:
            made.append(np.full(1, next(positions)))
            continue
        most = 128 if tensor.element is Element.INT8 else 1 << 15
        made.append(random.integers(-most, most, tensor.shape) // (1 + 60 * seed))
    return made


@needs_tosa
def test_the_host_computes_what_the_reference_model_does(decoder, tmp_path: Path):
    for graph in graphs(decoder[1]):
        seq = next(graph.tensors[n].shape[1] for n in graph.inputs)
        for seed, start in enumerate((0, 7, 24 - seq)):
            inputs = given(graph, seed, start, start + seq)
            found, wanted = evaluate(graph, inputs), reference(graph, inputs, tmp_path)
            assert [one.tolist() for one in found] == [one.tolist() for one in wanted]


def test_what_lies_after_the_valid_length_counts_for_nothing(decoder):
    graph = graphs(decoder[1])[0]
    inputs, others = given(graph, 1, 5, 6), given(graph, 1, 5, 6)
    for name, array in zip(graph.inputs, others, strict=True):
        if graph.tensors[name].shape == (1, 1, 24, 16):
            array[:, :, 6:] = 77
    found, same = evaluate(graph, inputs), evaluate(graph, others)
    (result,) = (i for i, one in enumerate(found) if one.shape == (1, 256))
    assert np.array_equal(found[result], same[result])
    for array in others:
        array[...] = array if array.shape == (1,) else array[::-1] // 2
    assert not np.array_equal(found[result], evaluate(graph, others)[result])


def test_int8_has_int16_where_norms_and_angles_are_read(decoder):
    activations, path = decoder
    with BundleFile.open(path) as file:
        one = file.program.delegates[0]
        graph = file.program.methods[one.method].blocks[one.block].graph
        grids = read_grids(one.payload, graph, "", "")
    kinds = {}
    for step in graph.instructions:
        for place, argument in enumerate(step.arguments):
            if hasattr(argument, "value") and argument.value in grids:
                kinds[step.op, place] = grids[argument.value].stored
    fine, coarse = Stored.INT16, Stored.INT8
    assert kinds["aten::rms_norm", 0] is kinds["kvc::rotary_embedding", 1] is fine
    wanted = fine if activations == "int16" else coarse
    assert kinds["kvc::cache_update", 0] is kinds["aten::silu", 0] is wanted


@needs_vela
def test_all_of_a_block_is_compiled_for_u85(decoder):
    activations, path = decoder
    with load(path) as program:
        (made,) = program.pack("ethosu:u85-256")
        with zipfile.ZipFile(io.BytesIO(made.content())) as archive:
            report = json.loads(archive.read("report.json"))
        with pytest.raises(ExportFailed, match=r'MATMUL.* npu = "u55"'):
            program.pack("ethosu:u55-128")
    assert [one["file"] for one in report["partitions"]] == [
        "partition0_seq=1.tflite", "partition0_seq=8.tflite", "partition1.tflite",
    ]  # fmt: skip
    for one in report["partitions"]:
        dtypes = {each["is"]: each["dtype"] for each in one["inputs"]}
        assert dtypes[f"state {KEYS}"] == activations
        assert sorted(dtypes.values()).count("int32") == 2
        assert one["cycles"] > 10_000
        assert 0 < one["sram_nbytes"] < 16_384


def test_for_u55_norms_caches_and_attention_are_left_and_say_why(tmp_path: Path):
    path = compiled(tmp_path, "int8", "u55")
    taken = set().union(*ops_of(path, "ethosu")["decode"])
    assert taken & BLOCK == {
        "aten::add.Tensor", "aten::linear", "aten::mul.Tensor", "aten::silu",
        "kvc::rotary_embedding",
    }  # fmt: skip
    shown = CliRunner().invoke(main, ["dump", str(path), "--delegates"]).output
    assert "has no MATMUL of int16" in shown


class Normed(nn.Module):
    """A norm with a weight of both signs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(24, 1e-6)
        self.norm.weight.data = torch.linspace(-2, 3, 24)

    def forward(self, x):
        return self.norm(x)


def test_rows_of_all_sizes_are_normed_alike(tmp_path: Path):
    random = np.random.default_rng(0)
    rows = random.standard_normal((3, 5, 24)) * np.logspace(0, -3, 5)[:, None]
    rows = rows.astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=rows)
    model, path = Normed().eval(), tmp_path / "norm.kvc"
    compile_program(
        model, [Method("forward", (torch.from_numpy(rows[0]),))], "ethosu_a16w8",
        calibrate=Samples(tmp_path / "samples.npz"),
    ).save(path)  # fmt: skip
    step = 2 * np.abs(rows).max() / 32767
    with load(path) as program:
        for one in rows:
            held = np.rint(one / step) * step  # what the NPU is given
            wanted = model(torch.from_numpy(held.astype(np.float32))).detach().numpy()
            found = program.forward(one)
            assert np.abs(found - wanted).max() < 3e-4 * np.abs(wanted).max()


class Waves(nn.Module):
    """Turns positions to angles, as transformers' decoders do, and uses their waves."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.logspace(0, -3, 8))

    def forward(self, x, places):
        angles = places[:, None].float() * self.frequencies
        return x.tanh() * angles.sin()


def test_angles_are_left_to_the_processor_as_they_need_more_bits(tmp_path: Path):
    random = np.random.default_rng(0)
    x = random.standard_normal((3, 4, 8)).astype(np.float32)
    places = random.integers(0, 4000, (3, 4))
    np.savez(tmp_path / "samples.npz", x=x, places=places)
    given = torch.from_numpy(x[0]), torch.from_numpy(places[0])
    path = tmp_path / "waves.kvc"
    compile_program(
        Waves(), [Method("forward", given)], "ethosu_a16w8",
        calibrate=Samples(tmp_path / "samples.npz"),
    ).save(path)  # fmt: skip
    assert set().union(*ops_of(path, "ethosu")["forward"]) >= {"aten::tanh"}
    with load(path) as program:
        found = program.forward(x[0], places[0])
    assert np.abs(found - Waves()(*given).numpy()).max() < 1e-3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('npu = "u65"', "'u85' or 'u55'"),
        ('activations = "int4"', "'int8' or 'int16'"),
        ("level = 3", "no options"),
    ],
)
def test_an_unknown_option_is_refused(tmp_path: Path, text: str, words: str):
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f'[backend]\nname = "ethosu"\n[backend.options]\n{text}\n')
    method = Method("forward", (torch.zeros(2, 24),))
    with pytest.raises(BadOption, match=words):
        compile_program(Normed(), [method], str(recipe))


def test_samples_are_as_long_as_the_only_size_of_a_prefill(tmp_path: Path):
    config = replace(tiny_decoder.CONFIG, capacity=300)
    (tmp_path / "sample.txt").write_text("def double(x): return 2 * x\n" * 11)
    path = tmp_path / "long.kvc"
    compile_program(
        Decoder(config).eval(),
        decoder_methods(config, max_chunk=280, all_logits=True),
        "ethosu_a8w8",
        {"tokenizer": "bytes"},
        calibrate=Samples(tmp_path / "sample.txt"),
    ).save(path)
    assert all(ops >= BLOCK for (ops,) in ops_of(path, "ethosu").values())
