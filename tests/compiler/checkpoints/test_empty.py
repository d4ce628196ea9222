"""Empty tensors that a traced method meets where no stand-in can take their place."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from kvc.compiler import Checkpoint, Method, compile_program, empty_parameters
from kvc.schema.errors import ParametersEmpty

X = (torch.ones(2, 3),)


class Elsewhere(nn.Module):
    """Uses its weight by references that no module's tables have."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        weight = self.linear.weight
        if how == "view":
            self.kept = weight.detach()[:4]
        elif how == "list":
            self.kept = [weight]
        self.use = {
            "view": lambda x: functional.linear(x, self.kept),
            "list": lambda x: x @ self.kept[0].t(),
            "closure": lambda x: x @ weight.t(),
        }[how]

    def forward(self, x):
        return self.use(x)


@pytest.mark.parametrize(
    ("how", "said"), [("view", "kept: "), ("list", "kept: "), ("closure", "^t of an")]
)
def test_an_empty_tensor_that_is_kept_elsewhere_is_named(
    how: str, said: str, tmp_path: Path
):
    with empty_parameters():
        model = Elsewhere(how).eval()
    tensors = {"linear.weight": torch.ones(4, 3), "linear.bias": torch.ones(4)}
    save_file(tensors, tmp_path / "model.safetensors")
    Checkpoint(tmp_path).load_into(model)
    with pytest.raises(ParametersEmpty, match=f"{said}.*while the model was traced"):
        compile_program(model, [Method("forward", X)])
