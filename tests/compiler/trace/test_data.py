"""`.data` in a method reads, and writes through, what it is of."""

import pytest
import torch
from torch import nn

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import load
from kvc.schema.errors import CaptureError

X = torch.tensor([1.0, 2.0, 3.0])


class Data(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.weight = nn.Parameter(torch.full((3,), 2.0))

    def reads(self, x):
        return x.data * 2 + self.weight.data + self.seen.data + (x + 1).data

    def writes(self, x):
        self.seen.data.add_(x)
        self.seen.data[1] = 7
        return self.seen * 2

    def writes_input(self, x):
        x.data.mul_(2)
        return x + 1

    def in_branch(self, x):
        y = x.data
        return torch.cond(y.sum() > 0, lambda t: t * 2, lambda t: t - 1, (y,))

    def assigns(self, x):
        self.seen.data = x + 1
        return x * 2


@pytest.mark.parametrize("name", ["reads", "writes", "writes_input", "in_branch"])
def test_data_is_what_it_is_in_eager_mode(tmp_path, name):
    dynamic = (
        {"x": {0: Dim("n", 1, 8)}} if name in ("writes_input", "in_branch") else {}
    )
    model = Data()
    method = Method(name, (X.clone(),), dynamic=dynamic)
    compile_program(model, [method]).save(tmp_path / "m.kvc")
    assert torch.equal(model.seen, torch.zeros(3))
    with load(tmp_path / "m.kvc") as program, program.session() as session:
        for _ in range(2):
            mine, wanted = X.clone(), X.clone()
            assert torch.equal(session.call(name, mine), getattr(model, name)(wanted))
            assert torch.equal(mine, wanted)


def test_giving_data_another_tensor_is_refused_with_the_attribute():
    with pytest.raises(CaptureError, match=r"'seen' other memory \(.data = ...\); wri"):
        compile_program(Data(), [Method("assigns", (X,))])
