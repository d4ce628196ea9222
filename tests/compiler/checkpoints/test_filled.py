"""Parameters whose values are in a checkpoint: read-only, however they were made."""

from pathlib import Path

import pytest
import torch
from checkpoint_files import empty, numbers, saved, values
from torch import nn
from torch.nn import functional

from kvc.compiler.checkpoints.filled import attached
from kvc.schema.errors import ParametersEmpty


class Small(nn.Module):
    """A parameter and a persistent buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3))
        self.register_buffer("mean", torch.zeros(3))


CHANGES = {
    "scaled": lambda w: w.mul_(2),
    "its_data": lambda w: w.data.mul_(2),
    "a_view": lambda w: w.t().add_(1),
    "merged": lambda w: w.add_(torch.ones(2, 3)),
    "item": lambda w: w.__setitem__(0, 0.0),
    "copied_over": lambda w: w.copy_(torch.ones(2, 3)),
    "initial_again": nn.init.zeros_,
    "by_a_function": lambda w: functional.relu(w, inplace=True),
    "as_a_result": lambda w: torch.add(w, 1, out=w.data),
    "one_of_many": lambda w: torch._foreach_mul_([w], 2.0),
}


def made_on_meta(kind) -> nn.Module:
    with torch.device("meta"):
        return kind()


@pytest.mark.parametrize("made", [empty, made_on_meta])
@pytest.mark.parametrize("change", CHANGES)
def test_a_filled_parameter_is_read_only(change: str, made, tmp_path: Path):
    model = made(Small)
    saved(tmp_path, weight=numbers(2, 3), mean=numbers(3)).load_into(model)
    said = r"would change weight, which is read-only"
    with torch.no_grad(), pytest.raises(ParametersEmpty, match=said):
        CHANGES[change](model.weight)
    assert attached(model.weight) is None
    assert isinstance(model.weight, nn.Parameter)


def test_a_filled_parameter_is_read_only_in_inference_mode(tmp_path: Path):
    checkpoint = saved(tmp_path, weight=numbers(2, 3), mean=numbers(3))
    with torch.inference_mode():
        model = empty(Small)
        checkpoint.load_into(model)
        with pytest.raises(ParametersEmpty, match="mul_ would change weight"):
            model.weight.data.mul_(2)


@pytest.mark.filterwarnings("ignore:for weight:UserWarning")
def test_a_filled_model_is_not_filled_from_memory(tmp_path: Path):
    model = empty(Small)
    saved(tmp_path, weight=numbers(2, 3), mean=numbers(3)).load_into(model)
    with pytest.raises(RuntimeError, match="copy_ would change weight"):
        model.load_state_dict({"weight": numbers(2, 3), "mean": numbers(3)})


def test_reading_and_casting_change_nothing(tmp_path: Path):
    model = empty(Small)
    saved(tmp_path, weight=numbers(2, 3), mean=numbers(3)).load_into(model)
    assert (model.weight * 2 + model.weight.t().sum()).is_meta
    model.requires_grad_(False).eval().float()
    assert torch.equal(values(model.weight), numbers(2, 3))
    model.weight.data = model.weight.data * 2
    assert attached(model.weight) is None
