"""What memory a bundle takes at chosen sizes, beside pages that are really there."""

import json

import numpy as np
import pytest
import torch
from daily import every
from model_a import random_decoder
from torch import Tensor, nn
from whole_process import foretold, resident_whole

from kvc.compiler import Dim, Method, StateSpec, compile_program
from kvc.compiler.models.decoder import DecoderConfig
from kvc.runtime import load
from kvc.schema.container import BundleFile
from kvc.schema.errors import BadSetting, UnknownName
from kvc.schema.model import MemoryKind
from kvc.tools.reports.footprint import (
    PROCESS_NBYTES,
    STEP_NBYTES,
    THREAD_NBYTES,
    TORCH_NBYTES,
    describe_footprint,
    largest_footprint,
)

CONFIG = DecoderConfig(
    vocab=512, dim=128, layers=2, heads=4, kv_heads=2, ffn=256, capacity=8192
)
TOKEN = 2 * 2 * 2 * 32 * 4  # layers, keys and values, heads, width, float32
PAGE = 4096


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    spec = random_decoder(CONFIG)
    path = tmp_path_factory.mktemp("footprint") / "model.kvc"
    bundle = compile_program(spec.model, spec.methods, "cpu_fp32", states=spec.states)
    bundle.save(path)
    return path


@pytest.fixture
def program(path):
    with BundleFile.open(path) as file:
        yield file.program


def test_states_are_counted_token_by_token(program):
    found = describe_footprint(program, {"capacity": 1000, "tokens": 300, "seq": 1})
    assert found.token == TOKEN
    assert found.states == 300 * TOKEN + 8  # and the position
    assert describe_footprint(program, {}).states == 8192 * TOKEN + 8
    parts = found.weights + found.states + found.scratch + found.backends
    steps = sum(len(g.instructions) for m in program.methods for g in m.graphs)
    assert found.process == PROCESS_NBYTES + STEP_NBYTES * steps
    assert (found.packed, found.total) == (0, parts + found.process)


@pytest.mark.linux
@pytest.mark.parametrize("tokens", [64, 512])
def test_pages_that_are_there_are_those_foretold(path, program, tokens):
    expected = describe_footprint(program, {"tokens": tokens, "seq": tokens})
    with load(path) as loaded, loaded.session() as session:
        session.call("prefill", np.ones((1, tokens), np.int64))
        states = session.residency().own
        weights = loaded.residency().totals.touched
    # A cache's heads lie apart, each with a page of its own that is not full.
    assert expected.states <= states <= expected.states + (2 * 2 * 2 + 1) * PAGE
    # Of the tables of rotary embeddings only the pages of these tokens are there.
    tables = 2 * 8192 * 16 * 4
    assert 0.99 * (expected.weights - tables) <= weights <= expected.weights


LARGE = DecoderConfig(
    vocab=8192, dim=512, layers=6, heads=8, kv_heads=4, ffn=1536, capacity=2048
)


@pytest.fixture(scope="module", params=["cpu_q8", "cpu_fp32", "xnnpack_q8"])
def large(request, tmp_path_factory):
    spec = random_decoder(LARGE)
    path = tmp_path_factory.mktemp("large") / f"{request.param}.kvc"
    bundle = compile_program(
        spec.model, spec.methods, request.param, states=spec.states
    )
    bundle.save(path)
    return path


@pytest.mark.linux
@every(2, "large", "seq")
@pytest.mark.parametrize(("seq", "threads"), [(32, 1), (400, 2)])
def test_the_total_is_what_a_process_takes(path, large, seq, threads):
    """What Python and numpy take differs by machine: a small bundle tells it here."""

    here = resident_whole(path, 2, 1, CONFIG.vocab) - foretold(path, 2, 1).total
    taken = resident_whole(large, seq, threads, LARGE.vocab)
    assert foretold(large, seq, threads).total + here == pytest.approx(taken, rel=0.05)


def test_what_a_library_packs_is_memory_of_the_process(tmp_path):
    spec = random_decoder(CONFIG)
    path = tmp_path / "packed.kvc"
    bundle = compile_program(spec.model, spec.methods, "xnnpack_q8", states=spec.states)
    bundle.save(path)
    table = CONFIG.vocab * CONFIG.dim
    with BundleFile.open(path) as file:
        none, few, all_ = (
            describe_footprint(file.program, {"tokens": n}) for n in (0, 1, 8192)
        )
        matrices = sum(
            blob.nbytes
            for number, blob in enumerate(file.program.blobs)
            if any(
                named.blob == number and named.name.endswith(".int8")
                for named in file.program.names
            )
        )
    assert few.packed == all_.packed == pytest.approx(matrices, rel=0.05)
    # Rows of tokens are looked up in the file, whose pages come 64 kB at a time.
    assert few.weights - none.weights == 65536 + CONFIG.vocab * 4
    assert all_.weights - none.weights == table + CONFIG.vocab * 4


def test_scratch_shrinks_with_the_prompt(program):
    long, short = (describe_footprint(program, {"seq": n}) for n in (512, 16))
    assert short.backends < long.backends / 16
    assert long.backends >= 512 * 256 * 4  # a layer's widest values


class Normed(nn.Module):
    """Rows that are normed and quantized for one product."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.RMSNorm(256, eps=1e-5), nn.Linear(256, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x.neg())).neg()


@pytest.mark.parametrize(
    ("recipe", "written"),
    [("cpu_q8", False), ("xnnpack_q8", True), ("vulkan_q8", True)],
)
def test_only_what_a_backend_makes_on_the_way_is_not_foretold(
    tmp_path, recipe, written
):
    tokens = Dim("tokens", 1, 512)
    method = Method("forward", (torch.zeros(64, 256),), dynamic={"x": {0: tokens}})
    compile_program(Normed(), [method], recipe).save(tmp_path / "model.kvc")
    with BundleFile.open(tmp_path / "model.kvc") as file:
        (part,) = file.program.delegates
        found = describe_footprint(file.program, {"tokens": 512})
    laid_out = 0 if part.memory is MemoryKind.OPAQUE else 4 * 512 * 256
    taken = found.backends - laid_out
    assert (taken > part.workspace_nbytes - 2 * PAGE) == written


def test_the_largest_capacity_is_the_last_that_fits(program):
    most = describe_footprint(program, {"capacity": 5000, "seq": 64}).total
    found = largest_footprint(program, {"seq": 64}, most)
    assert found.sizes["capacity"] == 5000
    assert largest_footprint(program, {"seq": 64}, most - 1).sizes["capacity"] == 4999
    assert largest_footprint(program, {}, 10**12).sizes["capacity"] == 8192
    least = describe_footprint(program, {"capacity": 16}).total
    assert largest_footprint(program, {}, PROCESS_NBYTES) == least


def test_the_largest_capacity_holds_the_tokens_asked_for(program):
    most = describe_footprint(program, {"capacity": 5000, "tokens": 300}).total
    found = largest_footprint(program, {"tokens": 300}, most)
    assert (found.sizes["capacity"], found.tokens) == (8192, 300)
    few = describe_footprint(program, {"capacity": 300}).total
    assert largest_footprint(program, {"tokens": 300}, few - 1) == few
    with pytest.raises(BadSetting, match="tokens: expected 0 to 8192, got 8193"):
        largest_footprint(program, {"tokens": 8193}, most)


def test_threads_beyond_the_first_are_counted(program):
    one, default, four = (
        describe_footprint(program, asked)
        for asked in ({"threads": 1}, {}, {"threads": 4})
    )
    assert one == default
    assert four.total - one.total == 3 * THREAD_NBYTES


def test_sizes_out_of_bounds_are_refused(program):
    with pytest.raises(UnknownName, match=r"'width'.*capacity, seq, tokens, threads"):
        describe_footprint(program, {"width": 3})
    with pytest.raises(BadSetting, match="threads: expected 1 to 1024, got 0"):
        describe_footprint(program, {"threads": 0})
    with pytest.raises(BadSetting, match="capacity: expected 16 to 8192"):
        describe_footprint(program, {"capacity": 8193})
    with pytest.raises(BadSetting, match="tokens: expected 0 to 100, got 101"):
        describe_footprint(program, {"capacity": 100, "tokens": 101})


class Translator(torch.nn.Module):
    """An encoder with a cache of its own, and a decoder that sees it."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(8, 4)
        for name in ("heard", "said"):
            self.register_buffer(name, torch.zeros(1, 1, 64, 4))
            self.register_buffer(f"{name}_position", torch.zeros(1, dtype=torch.int64))

    def take(self, name, tokens):
        rows = self.embed(tokens)[:, None]
        cache, position = getattr(self, name), getattr(self, f"{name}_position")
        cache.copy_(torch.ops.kvc.cache_update(cache, rows, position.clone()))
        position.add_(tokens.shape[1])
        return cache.sum((1, 2))

    def encode(self, tokens):
        return self.take("heard", tokens)

    def decode(self, token):
        return self.take("said", token) + self.heard.sum((1, 2))


def test_the_cache_of_an_encoder_is_full_at_its_own_size(tmp_path):
    token = torch.zeros(1, 1, dtype=torch.int64)
    methods = [Method(name, (token,), role=name) for name in ("encode", "decode")]
    states = [
        StateSpec("heard", axis=2, capacity=Dim("encoder", 1, 64)),
        StateSpec("said", axis=2, capacity=Dim("decoder", 1, 64)),
    ]
    bundle = compile_program(Translator(), methods, "fp32", states=states)
    bundle.save(tmp_path / "translator.kvc")
    with BundleFile.open(tmp_path / "translator.kvc") as file:
        sizes = {"encoder": 40, "decoder": 20}
        found = describe_footprint(file.program, sizes | {"tokens": 5})
        assert (found.states, found.token) == ((40 + 5) * 16 + 2 * 8, 16)
        assert describe_footprint(file.program, sizes).tokens == 20
        with pytest.raises(BadSetting, match="tokens: expected 0 to 20, got 21"):
            describe_footprint(file.program, sizes | {"tokens": 21})


class Appending(torch.nn.Module):
    def forward(self, rows, past):
        present = torch.cat([past, rows], 1)
        return {"sum": present.sum(1), "present": present}


def test_a_cache_that_grows_holds_the_tokens_asked_for(kvc, tmp_path):
    past = torch.zeros(1, 3, 4)
    seq, longest = Dim("seq", 1, 8), Dim("longest", 0, 64)
    method = Method(
        "forward",
        (torch.zeros(1, 2, 4), past),
        dynamic={"rows": {1: seq}, "past": {1: longest}},
        carry={"past": "present"},
    )
    compile_program(Appending(), [method], "fp32").save(tmp_path / "growing.kvc")
    told = kvc("dump", tmp_path / "growing.kvc", "--at", "tokens=10").stdout
    assert "160 B  states with 10 tokens, 16 B each" in told
    whole = kvc("dump", tmp_path / "growing.kvc", "--at", "seq=1").stdout
    assert "1.02 kB  states with 64 tokens, 16 B each" in whole


class Doubling(torch.nn.Module):
    def forward(self, x):
        return x + x


def test_without_a_position_nothing_is_held(tmp_path):
    bundle = compile_program(Doubling(), [Method("forward", (torch.ones(3),))], "fp32")
    bundle.save(tmp_path / "plain.kvc")
    with BundleFile.open(tmp_path / "plain.kvc") as file:
        found = describe_footprint(file.program, {})
        assert (found.states, found.tokens, found.token) == (0, 0, 0)
        # The recipe is fp32; there is one instruction.
        assert found.process == PROCESS_NBYTES + TORCH_NBYTES + STEP_NBYTES
        with pytest.raises(UnknownName, match="no size 'width'; it has: threads"):
            describe_footprint(file.program, {"width": 3})
        with pytest.raises(BadSetting, match="nothing in this program counts tokens"):
            describe_footprint(file.program, {"tokens": 3})
        with pytest.raises(BadSetting, match="sessions choose a capacity"):
            largest_footprint(file.program, {}, 10**9)


@pytest.mark.parametrize("name", ["tokens", "threads"])
def test_a_symbol_may_be_called_tokens_or_threads(name, tmp_path):
    dynamic = {"x": {0: Dim(name, 1, 4096)}}
    method = Method("forward", (torch.ones(5, 2),), dynamic=dynamic)
    compile_program(Doubling(), [method], "cpu_fp32").save(tmp_path / "plain.kvc")
    with BundleFile.open(tmp_path / "plain.kvc") as file:
        short, whole = (describe_footprint(file.program, {name: n}) for n in (1, 2000))
    assert (short.sizes, whole.sizes) == ({name: 1}, {name: 2000})
    assert short.process == whole.process  # threads are one, both times
    assert (short.tokens, whole.tokens) == (0, 0)


def test_many_threads_are_not_taken_for_pytorch(path, kvc):
    told = kvc("dump", path, "--at", "threads=1000").stdout
    assert "about: Python, numpy and kvc" in told


def test_on_the_command_line(kvc, path):
    done = kvc("dump", path, "--at", "capacity=1000, tokens=10,seq=1")
    assert done.stdout.startswith("MEMORY AT capacity = 1,000, seq = 1: ")
    assert "states with 10 tokens, 1.02 kB each" in done.stdout
    asked = ("--max-ram", "50M", "--at", "seq=64", "--json")
    found = json.loads(kvc("dump", path, *asked).stdout)["footprint"]
    assert 49_900_000 < found["total"] <= 50_000_000
    tight = kvc("dump", path, "--max-ram", "1k")
    assert tight.exit_code == 1
    assert "does not fit into 1.00 kB: at its least capacity it takes " in tight.stderr
    both = kvc("dump", path, "--max-ram", "50M", "--at", "capacity=9")
    assert "without capacity, which it looks for, got capacity=9" in both.stderr
    for wrong in (("--at", "capacity"), ("--at", "a=b"), ("--max-ram", "1X")):
        assert kvc("dump", path, *wrong).exit_code == 2
    for other in (("--memory",), ("--ops", "decode")):
        done = kvc("dump", path, "--at", "seq=1", *other)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "no other table" in done.stderr
