"""What bundles share: blobs within one, data files among several."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from quant_reference import linear_qd8, quantize_rows
from torch import nn
from torch.nn import functional

from kvc.compiler import Method, SaveReport, compile_program
from kvc.compiler.weights.int8 import quantize_channels
from kvc.runtime import load
from kvc.schema.container import BundleFile
from kvc.schema.errors import CompileError, FileProblem, FormatError

X = (torch.tensor([[0.5, -1.0, 2.0]]),)
ONLY_LINEAR = '[linear]\nscheme = "qd8"\n[backend]\nname = "xnnpack"\n'


def saved(
    path: Path,
    model: nn.Module,
    methods: Sequence[str],
    recipe: str | Path = "fp32",
    **where,
) -> SaveReport:
    """Compile methods of x and save them."""
    bundle = compile_program(model, [Method(m, X) for m in methods], recipe)
    return bundle.save(path, **where)


def blob_of(path: Path) -> dict[str, int]:
    """Return name -> blob."""
    with BundleFile.open(path) as file:
        return {named.name: named.blob for named in file.program.names}


def run(path: Path, method: str):
    with load(path) as program, program.session() as session:
        return torch.as_tensor(session.call(method, *X))


class Pair(nn.Module):
    """Two layers: one that both methods use, and one of the first alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.both = nn.Linear(3, 200)
        self.first_only = nn.Linear(200, 3)

    def first(self, x):
        return self.first_only(self.both(x))

    def second(self, x):
        return self.both(x).relu()


class Looked(nn.Module):
    """An embedding and a head of their own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(50, 3)
        self.head = nn.Linear(3, 40)

    def forward(self, x):
        return self.head(x + self.embed(torch.tensor([7])))


class Doubled(nn.Module):
    """Two weights that quantize to equal int8 values with different scales."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.Linear(3, 4, bias=False)
        self.two = nn.Linear(3, 4, bias=False)
        self.two.weight.data = self.one.weight.data * 2

    def forward(self, x):
        return self.one(x), self.two(x)


class Sliced(nn.Module):
    """A weight that is a few rows of something large, and one across its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.large = torch.arange(3000.0).reshape(1000, 3)
        self.rows = nn.Parameter(self.large[500:504])
        self.across = nn.Parameter(torch.arange(8.0).reshape(2, 4).t())

    def forward(self, x):
        return functional.linear(functional.linear(x, self.rows), self.across.t())


class Counting(nn.Module):
    """A state that starts with the bytes of a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("total", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x):
        self.total.add_(x[0])
        return self.step + 0.0, self.total + 0.0


def test_a_bundle_with_its_data_apart_runs_and_holds_no_weights(tmp_path: Path):
    report = saved(tmp_path / "a.kvc", Pair(), ["first"], data="external")
    (data,) = tmp_path.glob("*.kvd")
    assert report.data_path == str(data)
    assert report.data_nbytes == data.stat().st_size > report.blob_nbytes
    assert report.file_nbytes == (tmp_path / "a.kvc").stat().st_size
    assert report.reused == {}
    assert torch.allclose(run(tmp_path / "a.kvc", "first"), Pair().first(*X))
    with BundleFile.open(tmp_path / "a.kvc") as file:
        assert all(blob.file == 1 for blob in file.program.blobs)


def test_a_model_with_and_without_a_method_share_one_data_file(tmp_path: Path):
    saved(tmp_path / "both.kvc", Pair(), ["first", "second"], data="external")
    (data,) = tmp_path.glob("*.kvd")
    report = saved(
        tmp_path / "one.kvc", Pair(), ["second"], data="external", reuse=[data]
    )
    assert list(tmp_path.glob("*.kvd")) == [data]
    assert (report.data_path, report.data_nbytes) == (None, 0)
    assert report.reused == {data.name: report.blob_nbytes}
    for name in ("both.kvc", "one.kvc"):
        assert torch.allclose(run(tmp_path / name, "second"), Pair().second(*X))


@pytest.mark.parametrize("place", ["internal", "external"])
def test_two_recipes_share_an_embedding(place: str, tmp_path: Path):
    """Only what the other recipe stores otherwise is written."""
    (tmp_path / "linear.toml").write_text(ONLY_LINEAR)
    saved(tmp_path / "a.kvc", Looked(), ["forward"], data="external")
    (data,) = tmp_path.glob("*.kvd")
    recipe = tmp_path / "linear.toml"
    report = saved(
        tmp_path / "b.kvc", Looked(), ["forward"], recipe, data=place, reuse=[data]
    )
    embedding, bias, index = 50 * 3 * 4, 40 * 4, 8
    assert report.reused == {data.name: embedding + bias + index}
    assert report.blob_nbytes == embedding + bias + index + 40 * 3 + 40 * 4
    assert (report.data_path is None) == (place == "internal")
    exact = Looked().forward(*X)
    assert torch.allclose(run(tmp_path / "a.kvc", "forward"), exact, atol=1e-5)
    assert torch.allclose(run(tmp_path / "b.kvc", "forward"), exact, atol=0.1)


def test_a_data_file_of_which_nothing_is_used_is_not_referred_to(tmp_path: Path):
    saved(tmp_path / "a.kvc", Looked(), ["forward"], data="external")
    (data,) = tmp_path.glob("*.kvd")
    report = saved(tmp_path / "b.kvc", Counting(), ["forward"], reuse=[data])
    assert report.reused == {}
    data.unlink()
    with load(tmp_path / "b.kvc"):
        pass


def test_equal_bytes_with_different_scales_do_not_mix(tmp_path: Path):
    saved(tmp_path / "a.kvc", Doubled(), ["forward"], "xnnpack_q8")
    blobs = blob_of(tmp_path / "a.kvc")
    assert blobs["one.weight.int8"] == blobs["two.weight.int8"]
    assert blobs["one.weight.int8_scale"] != blobs["two.weight.int8_scale"]
    with load(tmp_path / "a.kvc") as program:
        results = program.call("forward", *X)
    activations = quantize_rows(X[0].numpy())
    for layer, result in zip((Doubled().one, Doubled().two), results, strict=True):
        values, scale = quantize_channels(layer.weight.detach())
        exact = linear_qd8(*activations, values.numpy(), scale.numpy(), None)
        assert torch.allclose(result, torch.from_numpy(exact), atol=1e-6)


def test_a_weight_of_two_methods_and_delegates_is_quantized_and_stored_once(
    tmp_path: Path,
):
    path = tmp_path / "a.kvc"
    report = saved(path, Pair(), ["first", "second"], "xnnpack_q8")
    with BundleFile.open(path) as file:
        delegates = file.program.delegates
        names = [named.name for named in file.program.names]
    weight = names.index("both.weight.int8")
    assert [weight in delegate.names for delegate in delegates] == [True, True]
    weights = 200 * 3 * 2
    scales_and_biases = (200 + 3) * 2 * 4
    assert report.blob_nbytes == report.named_nbytes == weights + scales_and_biases


def test_parts_of_tensors_are_stored_as_their_own_bytes(tmp_path: Path):
    report = saved(tmp_path / "a.kvc", Sliced(), ["forward"])
    assert report.blob_nbytes == 4 * 3 * 4 + 8 * 4
    result = run(tmp_path / "a.kvc", "forward")
    assert torch.allclose(result, Sliced().forward(*X))


def test_a_state_never_writes_into_the_constant_that_it_starts_as(tmp_path: Path):
    report = saved(tmp_path / "a.kvc", Counting(), ["forward"])
    assert (report.blobs, report.names) == (1, 2)
    with load(tmp_path / "a.kvc") as program:
        for _ in range(2):  # each session starts from the file's bytes
            with program.session() as session:
                for calls in (1.0, 2.0):
                    step, total = session.forward(*X)
                    assert step.tolist() == [1.0, 2.0, 3.0]
                    assert torch.equal(total, step + calls * X[0][0])


def test_a_place_for_data_that_is_none_is_refused(tmp_path: Path):
    with pytest.raises(CompileError, match="'outside', it can be internal or external"):
        saved(tmp_path / "a.kvc", Counting(), ["forward"], data="outside")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_reused_is_told_as_it_is(tmp_path: Path):
    (tmp_path / "bad.kvd").write_bytes(b"\x8bKVD\r\n\x1a\n" + bytes(200))
    with pytest.raises(FormatError, match=r"bad.kvd"):
        saved(tmp_path / "a.kvc", Counting(), ["forward"], reuse=[tmp_path / "bad.kvd"])
    with pytest.raises(FileProblem, match=r"none.kvd"):
        saved(tmp_path / "a.kvc", Counting(), ["forward"], reuse=["none.kvd"])
    assert [path.name for path in tmp_path.iterdir()] == ["bad.kvd"]
