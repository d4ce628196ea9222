import copy
import os
import threading
from pathlib import Path

import pytest
import torch
from checkpoint_files import empty, entry, numbers, raw_file, saved, values
from torch import nn
from torch.nn import functional

from kvc.compiler import Checkpoint, empty_parameters
from kvc.compiler.checkpoints.filled import attached
from kvc.schema.errors import (
    CheckpointChanged,
    CheckpointError,
    CheckpointMismatch,
    ParametersEmpty,
)


class Small(nn.Module):
    """A parameter, a persistent buffer and one that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("table", torch.arange(4.0), persistent=False)


class Tied(nn.Module):
    """One parameter under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight


def test_empty_parameters_have_no_memory_and_buffers_are_real():
    model = empty(Small)
    assert model.weight.is_meta
    assert model.weight.requires_grad
    assert not model.mean.is_meta
    assert model.table.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert not Small().weight.is_meta, "the hook is gone afterwards"


def test_the_hook_is_gone_when_building_fails():
    with pytest.raises(ZeroDivisionError), empty_parameters():
        print(1 / 0)
    assert not Small().weight.is_meta


def test_a_parameter_under_two_names_is_made_empty_once():
    tied = empty(Tied)
    assert tied.head.weight is tied.embed.weight

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = nn.Parameter(torch.ones(3))
            self.one, self.two = weight, weight

    twice = empty(Twice)
    assert twice.one is twice.two


def test_strides_and_dtype_of_a_parameter_stay():
    class Strided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(numbers(3, 4).t().half(), requires_grad=False)

    model = empty(Strided)
    assert (model.w.shape, model.w.stride()) == ((4, 3), (1, 4))
    assert model.w.dtype is torch.float16
    assert not model.w.requires_grad


NEEDS_VALUES = {
    "linear": lambda w: functional.linear(torch.ones(2, 3), w),
    "matmul": lambda w: torch.ones(1, 2) @ w,
    "of_a_view": lambda w: torch.ones(1, 3) @ w.t(),
    "of_its_data": lambda w: torch.ones(1, 2) @ w.data,
    "of_a_result": lambda w: torch.ones(2, 3) + (w * 2).relu(),
    "embedding": lambda w: functional.embedding(torch.tensor([1]), w),
    "index": lambda w: w[torch.tensor([1])],
    "copy_of_it": lambda w: torch.ones(2, 3).copy_(w),
    "list_of_it": lambda w: torch.cat([torch.ones(2, 3), w]),
}


@pytest.mark.parametrize("use", NEEDS_VALUES)
def test_an_empty_model_cannot_compute(use: str):
    with pytest.raises(ParametersEmpty, match="of an empty tensor and a real one"):
        NEEDS_VALUES[use](empty(Small).weight)


def test_an_empty_model_has_no_numbers():
    weight = empty(Small).weight
    for use in (weight.tolist, weight.sum().item, weight.numpy, weight.cpu):
        with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
            use()


def test_initial_values_may_be_assigned_to_nowhere():
    class Initial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2, 2))
            nn.init.normal_(self.w)
            self.w.data.copy_(torch.eye(2))
            self.w.data[0] = torch.ones(2)

    assert empty(Initial).w.is_meta


def test_a_parameter_of_a_class_of_its_own_on_the_meta_device_is_refused(
    tmp_path: Path,
):
    class Special(nn.Parameter):
        pass

    model = Small()
    model.weight = Special(torch.ones(2, 3, device="meta"))
    checkpoint = saved(tmp_path, weight=numbers(2, 3), mean=numbers(3))
    with pytest.raises(CheckpointMismatch, match="weight: a Special on the meta"):
        checkpoint.load_into(model)


SCALARS = {
    "in_place": lambda n, w: n.add_(w.abs().max()),
    "augmented": lambda n, w: n.__iadd__(w.sum()),
    "interpolated": lambda n, w: n.lerp_(w.sum(), 0.5),
}


@pytest.mark.parametrize("use", SCALARS)
def test_a_scalar_computed_from_an_empty_tensor_is_refused(use: str):
    with pytest.raises(ParametersEmpty, match="of an empty tensor and a real one"):
        SCALARS[use](torch.zeros(()), empty(Small).weight.detach())


def test_a_scalar_may_scale_an_empty_tensor():
    assert (empty(Small).weight * torch.tensor(2.0)).is_meta


def test_a_tensor_like_an_empty_one_is_real_where_that_is_asked_for():
    like = torch.zeros_like(empty(Small).weight, device="cpu")
    assert type(like) is torch.Tensor
    assert like.tolist() == [[0.0] * 3] * 2


def test_only_the_thread_that_asks_builds_without_memory():
    others = []
    with empty_parameters():
        builder = threading.Thread(target=lambda: others.append(Small()))
        builder.start()
        builder.join()
    assert not others[0].weight.is_meta


def test_attributes_of_a_parameter_stay():
    class Tagged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = nn.Parameter(torch.ones(3))
            weight.tag = "rows"
            self.weight = weight

    assert empty(Tagged).weight.tag == "rows"


def test_parameters_get_sources_and_buffers_values(tmp_path: Path):
    model = empty(Small)
    loaded = saved(tmp_path, weight=numbers(2, 3), mean=numbers(3) + 5).load_into(model)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    assert model.weight.is_meta
    assert torch.equal(values(model.weight), numbers(2, 3))
    assert model.mean.tolist() == [5.0, 6.0, 7.0]


def test_a_model_with_memory_is_filled(tmp_path: Path):
    model = Small()
    model.weight.data = torch.zeros(3, 2).t()
    saved(tmp_path, weight=numbers(2, 3), mean=numbers(3)).load_into(model)
    assert torch.equal(model.weight, numbers(2, 3))
    assert model.weight.stride() == (1, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_floats_are_cast_as_they_are_read(dtype: torch.dtype, tmp_path: Path):
    model = empty(Small)
    exact = numbers(2, 3) / 3
    saved(tmp_path, weight=exact.to(dtype), mean=numbers(3).to(dtype)).load_into(model)
    assert torch.equal(values(model.weight), exact.to(dtype).float())
    assert model.mean.dtype is torch.float32


def test_a_model_that_is_cast_afterwards_reads_in_its_new_dtype(tmp_path: Path):
    model = empty(Small)
    saved(tmp_path, weight=numbers(2, 3), mean=numbers(3)).load_into(model)
    model.half()
    assert values(model.weight).dtype is torch.float16
    assert model.mean.dtype is torch.float16


def test_a_copy_of_a_model_reads_the_same_checkpoint(tmp_path: Path):
    model = empty(Small)
    saved(tmp_path, weight=numbers(2, 3), mean=numbers(3)).load_into(model)
    assert torch.equal(values(copy.deepcopy(model).weight), numbers(2, 3))


@pytest.mark.parametrize(
    "rename",
    [lambda name: name.removeprefix("model."), {"model.weight": "weight"}],
)
def test_names_may_differ(rename, tmp_path: Path):
    model = empty(Small)
    tensors = {"model.weight": numbers(2, 3), "mean": numbers(3)}
    saved(tmp_path, **tensors).load_into(model, rename=rename)
    assert torch.equal(values(model.weight), numbers(2, 3))


def test_two_tensors_that_become_one_are_refused(tmp_path: Path):
    checkpoint = saved(tmp_path, a=numbers(2, 3), b=numbers(2, 3), mean=numbers(3))
    with pytest.raises(CheckpointMismatch, match="both a and b are renamed to it"):
        checkpoint.load_into(empty(Small), rename={"a": "weight", "b": "weight"})


def test_everything_that_does_not_fit_is_told_and_nothing_changes(tmp_path: Path):
    checkpoint = saved(tmp_path, weight=numbers(3, 2), extra=numbers(1))
    model = empty(Small)
    with pytest.raises(CheckpointMismatch) as caught:
        checkpoint.load_into(model)
    path = tmp_path / "model.safetensors"
    assert caught.value.problems == (
        f"weight: [2, 3] in the model, [3, 2] in {path}",
        "mean: the checkpoint lacks it",
        f"extra: the model does not have it, {path} does",
    )
    assert caught.value.missing == ("mean",)
    assert caught.value.unexpected == ("extra",)
    assert attached(model.weight) is None


def test_of_many_tensors_that_do_not_fit_the_first_are_told(tmp_path: Path):
    extra = {f"extra.{n:02}": numbers(1) for n in range(13)}
    with pytest.raises(CheckpointMismatch) as caught:
        saved(tmp_path, mean=numbers(3), **extra).load_into(empty(Small))
    assert len(caught.value.unexpected) == 13
    lines = str(caught.value).splitlines()
    assert lines[1] == "  weight: the checkpoint lacks it"
    assert lines[11].startswith("  extra.09: the model does not have it")
    assert lines[12:] == ["  and 3 more like this"]


def test_what_is_left_out_is_told_when_it_may_be(tmp_path: Path):
    checkpoint = saved(tmp_path, weight=numbers(2, 3), extra=numbers(1))
    model = empty(Small)
    loaded = checkpoint.load_into(model, strict=False)
    assert (loaded.missing, loaded.unexpected) == (("mean",), ("extra",))
    assert attached(model.weight) is not None


def test_a_wrong_shape_is_refused_even_so(tmp_path: Path):
    with pytest.raises(CheckpointMismatch, match=r"\[2, 3\] in the model, \[6\] in"):
        saved(tmp_path, weight=numbers(6)).load_into(empty(Small), strict=False)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.int64])
def test_a_dtype_that_does_not_become_the_models_is_refused(
    dtype: torch.dtype, tmp_path: Path
):
    checkpoint = saved(tmp_path, weight=torch.ones(2, 3, dtype=dtype), mean=numbers(3))
    with pytest.raises(CheckpointMismatch, match=r"weight: torch.float32 in the model"):
        checkpoint.load_into(empty(Small))


def test_a_dtype_that_kvc_does_not_have_is_refused(tmp_path: Path):
    header = {"weight": entry(0, 3, [2, 3], dtype="F4"), "mean": entry(3, 15, [3])}
    raw_file(tmp_path / "model.safetensors", header, bytes(15))
    with pytest.raises(CheckpointMismatch, match="float32 in the model, F4 in"):
        Checkpoint(tmp_path).load_into(empty(Small))


@pytest.mark.parametrize("name", ["embed.weight", "head.weight"])
def test_one_name_of_a_tied_parameter_is_enough(name: str, tmp_path: Path):
    model = empty(Tied)
    saved(tmp_path, **{name: numbers(4, 3)}).load_into(model)
    assert model.head.weight is model.embed.weight
    assert torch.equal(values(model.head.weight), numbers(4, 3))


def test_both_names_of_a_tied_parameter_must_agree(tmp_path: Path):
    equal = {"embed.weight": numbers(4, 3), "head.weight": numbers(4, 3)}
    saved(tmp_path, **equal).load_into(empty(Tied))
    equal["head.weight"][3, 2] += 1
    with pytest.raises(CheckpointMismatch, match=r"embed.weight and head.weight: one"):
        saved(tmp_path, **equal).load_into(empty(Tied))


def test_tied_names_are_compared_as_the_model_has_them(tmp_path: Path):
    pair = {"embed.weight": numbers(4, 3), "head.weight": numbers(4, 3).bfloat16()}
    saved(tmp_path, **pair).load_into(empty(Tied))


def test_parameters_over_parts_of_one_memory_are_refused(tmp_path: Path):
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = nn.Parameter(torch.ones(4))
            self.part = nn.Parameter(self.whole.data[:2])

    checkpoint = saved(tmp_path, whole=numbers(4), part=numbers(2))
    with pytest.raises(CheckpointMismatch, match="part: it shares memory with whole"):
        checkpoint.load_into(empty(Parts))


def test_parameters_made_of_parts_of_one_memory_are_refused(tmp_path: Path):
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            memory = torch.ones(6)
            self.one = nn.Parameter(memory[:4])
            self.two = nn.Parameter(memory[2:])

    checkpoint = saved(tmp_path, one=numbers(4), two=numbers(4))
    with pytest.raises(CheckpointMismatch, match="two: it shares memory with one in"):
        checkpoint.load_into(empty(Parts))


def test_a_buffer_over_the_memory_of_a_parameter_that_is_empty_is_refused(
    tmp_path: Path,
):
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            memory = torch.ones(4)
            self.w = nn.Parameter(memory)
            self.register_buffer("b", memory, persistent=False)

    checkpoint = saved(tmp_path, w=numbers(4))
    with pytest.raises(CheckpointMismatch, match="b: it shared memory with w, which"):
        checkpoint.load_into(empty(Shared))


def test_a_tensor_whose_elements_share_memory_is_refused(tmp_path: Path):
    class Expanded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.zeros(3))
            self.w = nn.Parameter(torch.zeros(1).expand(3))

    model = Expanded()
    with pytest.raises(CheckpointMismatch, match="w: its elements share memory"):
        saved(tmp_path, a=numbers(3), w=numbers(3)).load_into(model)
    assert model.a.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", [None, 5, ["weight"]])
def test_what_is_no_name_is_told(name: object, tmp_path: Path):
    checkpoint = saved(tmp_path, weight=numbers(2, 3))
    with pytest.raises(CheckpointMismatch, match=r"weight: rename returns "):
        checkpoint.load_into(empty(Small), rename=lambda _: name)


def test_a_rename_that_is_no_mapping_is_refused(tmp_path: Path):
    checkpoint = saved(tmp_path, weight=numbers(2, 3))
    with pytest.raises(CheckpointError, match=r"rename is \[\], it can be"):
        checkpoint.load_into(empty(Small), rename=[])


def test_names_that_cannot_be_printed_are_escaped(tmp_path: Path):
    header = b'{"\\ud800":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    raw_file(tmp_path / "model.safetensors", header, b"")
    with pytest.raises(CheckpointMismatch) as caught:
        Checkpoint(tmp_path).load_into(empty(Small))
    assert b"'\\ud800': the model does not have it" in str(caught.value).encode()


def test_a_checkpoint_that_changed_is_noticed_when_buffers_are_read(tmp_path: Path):
    checkpoint = saved(tmp_path, weight=numbers(2, 3), mean=numbers(3))
    os.truncate(tmp_path / "model.safetensors", 100)
    with pytest.raises(CheckpointChanged, match="cannot read mean"):
        checkpoint.load_into(empty(Small))
