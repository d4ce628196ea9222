import pytest
import torch
from small_models import PythonState

from kvc.compiler import Method
from kvc.compiler.capture import capture
from kvc.schema.errors import CaptureError


@pytest.mark.parametrize(
    ("method", "attribute"),
    [
        ("count", "'position'"),
        ("grow", "'past'"),
        ("named_item", "named"),
        ("attribute", "'plain'"),
    ],
)
def test_state_in_python_attributes_is_refused(method, attribute):
    model = PythonState()
    with pytest.raises(CaptureError, match=f"changes the attribute .*{attribute}"):
        capture(model, Method(method, (torch.ones(2),)))


def test_torch_says_nothing_of_its_own_while_tracing(capfd):
    class Asks(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else x + 1

    with pytest.raises(CaptureError, match="asks for the value of a tensor"):
        capture(Asks(), Method("forward", (torch.ones(3),)))
    assert capfd.readouterr().err == ""
