"""Windows of signals made within a method, against eager."""

import pytest
import torch
from module_outcomes import Applied, outcome

from kvc.compiler import Dim, Method, compile_program
from kvc.schema.errors import CaptureError

CASES = {
    "bartlett": lambda x: x * torch.bartlett_window(5),
    "blackman, symmetric": lambda x: x * torch.blackman_window(5, periodic=False),
    "hann": lambda x: (x * torch.hann_window(5), x[:1] * torch.hann_window(1)),
    "hann, symmetric, double": lambda x: (
        x * torch.hann_window(5, False, dtype=torch.float64)
    ),
    "hamming": lambda x: (
        x * torch.hamming_window(5),
        x * torch.hamming_window(5, True, alpha=0.5, beta=0.4),
        x[:1] * torch.hamming_window(1),
    ),
    "kaiser": lambda x: (
        x * torch.kaiser_window(5),
        x * torch.kaiser_window(5, False, beta=7.0),
    ),
    "none": lambda x: torch.cat([x, torch.hann_window(0), torch.hamming_window(0)]),
}


@pytest.mark.parametrize("name", CASES)
def test_it_equals_eager(name, tmp_path):
    x = torch.arange(5.0) + 1

    found = outcome(Applied(CASES[name]), (x,), {}, tmp_path / "window.kvc")

    assert (found.kind, found.reason) == ("equal", "")


def test_a_window_of_a_dynamic_length_is_refused():
    model = Applied(lambda x: x * torch.hann_window(x.shape[0]))
    dynamic = {"x": {0: Dim("length", 2, 8)}}

    with pytest.raises(CaptureError, match="for all declared sizes"):
        compile_program(model, [Method("forward", (torch.ones(4),), dynamic=dynamic)])
