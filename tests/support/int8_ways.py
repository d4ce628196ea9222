"""Choose how int8 matrices are multiplied, whatever the processor can do."""

import pytest
import torch
from torch import Tensor

from kvc.schema.torch_ops import int8_rows


def take_way(digits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let int8 matrices be multiplied as digits (True), or never (False).

    Where torch's own integer product saturates on this processor, an exact product
    takes its place, so that the code for digits is tested there too.
    """
    if digits and not int8_rows.is_exact():
        monkeypatch.setattr(torch, "_int_mm", _exact_product)
    monkeypatch.setattr(int8_rows, "_multiplies_int8", lambda: digits)


def _exact_product(left: Tensor, right: Tensor, *, out: Tensor | None = None) -> Tensor:
    product = torch.mm(left.double(), right.double()).to(torch.int32)
    return product if out is None else out.copy_(product)
