import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_decoder
import torch
from checkpoint_files import numbers, sharded
from resident_memory import LINUX, is_resident, resident_nbytes
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from kvc.compiler import Checkpoint, Dim, Method, compile_program, empty_parameters
from kvc.compiler.checkpoints import stand_ins
from kvc.compiler.checkpoints.filled import attach
from kvc.compiler.ingest import import_program
from kvc.compiler.models.decoder import Decoder
from kvc.compiler.models.demo import decoder_caches, decoder_methods
from kvc.compiler.trace import capture
from kvc.runtime import load
from kvc.schema.errors import CaptureError, CheckpointChanged, ParametersEmpty

X = (torch.ones(2, 3),)


def lively(model: nn.Module) -> nn.Module:
    """Give every parameter and persistent buffer numbers of its own."""
    generator = torch.Generator().manual_seed(7)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.normal_(generator=generator)
    return model.eval()


def stored(model: nn.Module, folder: Path) -> Checkpoint:
    """Save a model in two shards and open them; tied tensors under one name."""
    tensors = {id(t): (n, t.detach()) for n, t in model.named_parameters()}
    tensors |= {id(t): (n, t) for n, t in model.named_buffers() if "saved" in n}
    named = [(name, tensor.clone().contiguous()) for name, tensor in tensors.values()]
    half = (len(named) + 1) // 2
    shards = {"a.safetensors": dict(named[:half]), "b.safetensors": dict(named[half:])}
    return Checkpoint(sharded(folder, shards))


def empty(kind: Callable[[], nn.Module]) -> nn.Module:
    with empty_parameters():
        return kind().eval()


class Tied(nn.Module):
    """An embedding that is also the head, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 3)
        self.head = nn.Linear(3, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(x) + self.embed(torch.tensor([1, 2])).sum()


class Sliced(nn.Module):
    """A parameter used through views of it, and one that lies across its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(6, 3))
        self.across = nn.Parameter(torch.zeros(3, 4).t())

    def forward(self, x):
        y = functional.linear(x, self.w[2:5])
        return functional.linear(y, self.across) + self.w[0, 1]


class Norms(nn.Module):
    """Persistent buffers: one that is read, one that a method writes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("saved_mean", torch.zeros(3))
        self.register_buffer("saved_total", torch.zeros(3))

    def forward(self, x):
        self.saved_total.add_(x.sum(0))
        return self.linear(x - self.saved_mean) + self.saved_total


class WrittenParameters(nn.Module):
    """Parameters that a method writes: states, whose initial values are stored."""

    def __init__(self) -> None:
        super().__init__()
        self.some = nn.Parameter(torch.zeros(3))
        self.none = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        self.some.add_(x.sum(0))
        self.none.add_(1)
        return self.some * self.none


class Mounted(nn.Module):
    """One module under two names, with a state."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Norms()
        self.two = self.one

    def forward(self, x):
        return self.one(x) + self.two(x)


class Methods(nn.Module):
    """Two methods over one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def wide(self, x):
        return self.linear(x)

    def back(self, y):
        return functional.linear(y, self.linear.weight.t())


MODELS = {
    "tied": (Tied, [Method("forward", X)]),
    "sliced": (Sliced, [Method("forward", X)]),
    "norms": (Norms, [Method("forward", X)]),
    "written": (WrittenParameters, [Method("forward", X)]),
    "mounted": (Mounted, [Method("forward", X)]),
    "methods": (
        Methods,
        [
            Method("wide", X, dynamic={"x": {0: Dim("rows", 1, 9)}}),
            Method("back", (torch.ones(2, 4),)),
        ],
    ),
}


USUAL = {
    "tied": "xnnpack_q8",
    "sliced": "bf16",
    "norms": "fp32",
    "written": "fp32",
    "mounted": "fp32",
    "methods": "xnnpack_q8",
}
EXHAUSTIVE = pytest.mark.exhaustive
CASES = [
    pytest.param(name, recipe, id=f"{name}-{recipe}", marks=marks)
    for name, usual in USUAL.items()
    for recipe in ("fp32", "bf16", "xnnpack_q8")
    for marks in [() if recipe == usual else EXHAUSTIVE]
]


@pytest.mark.parametrize(("name", "recipe"), CASES)
def test_a_streamed_model_gives_the_bytes_of_a_loaded_one(
    name: str, recipe: str, tmp_path: Path
):
    kind, methods = MODELS[name]
    real, model = lively(kind()), empty(kind)
    if name == "written":
        real.none.data.zero_()
    before = dict(model.named_parameters(remove_duplicate=False))
    stored(real, tmp_path).load_into(model)
    compile_program(real, methods, recipe).save(tmp_path / "real.kvc")
    compile_program(model, methods, recipe).save(tmp_path / "model.kvc")
    assert (tmp_path / "model.kvc").read_bytes() == (tmp_path / "real.kvc").read_bytes()
    after = dict(model.named_parameters(remove_duplicate=False))
    assert all(after[key] is before[key] for key in before)


@pytest.mark.parametrize(
    "recipe",
    ["fp32", *(pytest.param(r, marks=EXHAUSTIVE) for r in ("bf16", "xnnpack_q8"))],
)
def test_a_streamed_decoder_gives_the_bytes_of_a_loaded_one(
    recipe: str, tmp_path: Path
):
    config = tiny_decoder.CONFIG
    real, model = lively(Decoder(config)), empty(lambda: Decoder(config))
    stored(real, tmp_path).load_into(model)
    methods, caches = decoder_methods(config, 16)[:1], (decoder_caches(config),)
    for source, name in ((real, "a.kvc"), (model, "b.kvc")):
        bundle = compile_program(source, methods, recipe, states=caches)
        bundle.save(tmp_path / name)
    assert (tmp_path / "a.kvc").read_bytes() == (tmp_path / "b.kvc").read_bytes()
    with load(tmp_path / "b.kvc") as program, program.session() as session:
        logits = session.prefill(torch.tensor([[1, 2, 3]]))
    if recipe == "fp32":
        expected = real.prefill(torch.tensor([[1, 2, 3]]))
        assert torch.allclose(logits, expected, atol=1e-4)


def test_a_narrow_checkpoint_gives_the_bytes_of_a_widened_one(tmp_path: Path):
    real = lively(Methods())
    narrow = {n: t.detach().bfloat16() for n, t in real.named_parameters()}
    save_file(narrow, tmp_path / "model.safetensors")
    real.load_state_dict({n: t.float() for n, t in narrow.items()})
    model = empty(Methods)
    Checkpoint(tmp_path).load_into(model)
    methods = MODELS["methods"][1]
    compile_program(real, methods).save(tmp_path / "a.kvc")
    for _ in range(2):  # a model may be compiled again
        compile_program(model, methods).save(tmp_path / "b.kvc")
        assert (tmp_path / "a.kvc").read_bytes() == (tmp_path / "b.kvc").read_bytes()


def saved_bytes(model: nn.Module, path: Path) -> bytes:
    compile_program(model, [Method("forward", X)]).save(path)
    return path.read_bytes()


@pytest.mark.parametrize("cast", [torch.float16, torch.bfloat16])
def test_casts_after_loading_lose_what_they_lose_in_memory(
    cast: torch.dtype, tmp_path: Path
):
    def line() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4))

    real, model = lively(line()), empty(line)
    exact = saved_bytes(real, tmp_path / "exact.kvc")
    stored(real, tmp_path).load_into(model)
    for one in (real, model):
        one.to(cast).float()
    a = saved_bytes(real, tmp_path / "a.kvc")
    assert saved_bytes(model, tmp_path / "b.kvc") == a
    assert a != exact


def test_an_alias_of_a_filled_parameter_has_its_values(tmp_path: Path):
    class Aliased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 4)
            self.register_buffer("b", self.linear.weight.data, persistent=False)

        def forward(self, x):
            return self.linear(x) + functional.linear(x, self.b)

    real, model = lively(Aliased()), empty(Aliased)
    stored(real, tmp_path).load_into(model)
    expected = saved_bytes(real, tmp_path / "a.kvc")
    assert saved_bytes(model, tmp_path / "b.kvc") == expected
    assert saved_bytes(copy.deepcopy(model), tmp_path / "b.kvc") == expected


def test_a_changed_parameter_has_no_values_any_more(tmp_path: Path):
    model = empty(Methods)
    stored(Methods(), tmp_path).load_into(model)
    with pytest.raises(ParametersEmpty, match=r"mul_ would change linear.weight"):
        model.linear.weight.data.mul_(2)
    with pytest.raises(ParametersEmpty, match=r"no values of linear.weight;"):
        compile_program(model, MODELS["methods"][1])


def test_the_models_own_bytes_are_counted(tmp_path: Path):
    model = empty(Tied)
    stored(Tied(), tmp_path).load_into(model)
    bundle = compile_program(model, [Method("forward", X)])
    assert (
        bundle.model_nbytes
        == compile_program(Tied(), [Method("forward", X)]).model_nbytes
    )


def test_every_empty_parameter_that_nothing_filled_is_named():
    with pytest.raises(
        ParametersEmpty, match=r"no values of linear.weight, linear.bias"
    ):
        compile_program(empty(Methods), MODELS["methods"][1])


def test_long_lists_of_empty_parameters_are_cut():
    model = empty(lambda: nn.Sequential(*(nn.Linear(1, 1) for _ in range(50))))
    with pytest.raises(ParametersEmpty, match=r"9.bias, and 80 more;") as caught:
        compile_program(model, [Method("forward", (torch.ones(1, 1),))])
    assert len(caught.value.names) == 100


def test_a_buffer_that_was_computed_from_an_empty_parameter_is_named(tmp_path: Path):
    class Derived(Methods):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("part", self.linear.weight / 2, persistent=False)

    model = empty(Derived)
    stored(Methods(), tmp_path).load_into(model)
    with pytest.raises(ParametersEmpty, match="no values of part;"):
        compile_program(model, MODELS["methods"][1])


def test_a_failed_trace_puts_the_parameters_back(tmp_path: Path):
    class Fails(Methods):
        def forward(self, x):
            return self.linear(x) if x.sum() > 0 else x

    model = empty(Fails)
    stored(Methods(), tmp_path).load_into(model)
    weight, bias = model.linear.weight, model.linear.bias
    with pytest.raises(CaptureError):
        compile_program(model, [Method("forward", X)])
    assert model.linear.weight is weight
    assert model.linear.bias is bias


def test_a_checkpoint_that_changes_before_saving_is_an_error(tmp_path: Path):
    model = empty(Methods)
    stored(Methods(), tmp_path).load_into(model)
    bundle = compile_program(model, MODELS["methods"][1])
    with (tmp_path / "a.safetensors").open("ab") as file:
        file.write(b"more")
    with pytest.raises(CheckpointChanged, match=r"a.safetensors: cannot read linear"):
        bundle.save(tmp_path / "model.kvc")
    assert not (tmp_path / "model.kvc").exists()


class Wide(nn.Module):
    """256 MB of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4096, 8192, bias=False)
        self.two = nn.Linear(8192, 4096, bias=False)

    def forward(self, x):
        return self.two(self.one(x))


class WideTwice(nn.Module):
    """The same with a state, mounted twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Counting()
        self.two = self.one

    def forward(self, x):
        return self.two(self.one(x))


class Counting(Wide):
    """Counts its calls in a state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1), persistent=False)

    def forward(self, x):
        self.calls.add_(1)
        return super().forward(x) + self.calls


class WideInBranches(nn.Module):
    """A tied weight that the branches of one call capture under either name."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4096, 4096, bias=False)
        self.two = nn.Linear(4096, 4096, bias=False)
        self.two.weight = self.one.weight

    def forward(self, x):
        return torch.cond(
            x.sum() > 0, lambda x: self.two(x), lambda x: self.one(x) + 1, (x,)
        )


@LINUX
@pytest.mark.parametrize("kind", [Wide, WideTwice, WideInBranches])
def test_tracing_reads_and_writes_no_parameter(kind, monkeypatch):
    """Capture and import leave the memory of stand-ins untouched, and copy none."""
    addresses = []

    def reserved(tensor):
        memory = reserve(tensor)
        addresses.append(memory.data_ptr())
        return memory

    reserve = stand_ins._reserved
    monkeypatch.setattr(stand_ins, "_reserved", reserved)
    model, before = empty(kind), resident_nbytes()
    for parameter in model.parameters():
        attach(parameter, numbers(1))
    with stand_ins.stand_ins(model):
        method = Method("forward", (torch.ones(1, 4096),))
        import_program(model, (capture(model, method),))
        assert not any(map(is_resident, addresses))
        assert resident_nbytes() - before < 64 << 20
    assert addresses
