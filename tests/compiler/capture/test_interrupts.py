import pytest
import torch
from torch import nn

from kvc.compiler import Method
from kvc.compiler.capture import capture


class Interrupted(nn.Module):
    """Is interrupted below native code, which makes an error of its own of that."""

    def __init__(self, chained):
        super().__init__()
        self.chained = chained

    def forward(self, x):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            if self.chained:
                raise SystemError("returned a result with an exception set") from error
        raise RuntimeError("KeyboardInterrupt: <EMPTY MESSAGE>")


@pytest.mark.parametrize("chained", [True, False])
def test_an_interrupt_that_native_code_has_wrapped_stays_one(chained):
    with pytest.raises(KeyboardInterrupt):
        capture(Interrupted(chained), Method("forward", (torch.ones(3),)))
