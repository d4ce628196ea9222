"""What writes a state over its old content stays out of partitions that read it."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.schema.ops import DELEGATE

RECIPES = ("xnnpack_fp32", "xnnpack_q8", "xnnpack_q4")
X = torch.ones(2, 32)


class Recurrent(nn.Module):
    """Ways to update a state by itself and products."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.i, self.r = nn.Linear(32, 96), nn.Linear(32, 96)
        self.l, self.out = nn.Linear(32, 32), nn.Linear(32, 5)
        self.register_buffer("h", torch.zeros(2, 32), persistent=False)
        self.register_buffer("c", torch.zeros(2, 32), persistent=False)

    def gru(self, x):
        i, r = self.i(x).chunk(3, -1), self.r(self.h).chunk(3, -1)
        z, g = torch.sigmoid(i[0] + r[0]), torch.sigmoid(i[1] + r[1])
        n = torch.tanh(i[2] + g * r[2])
        self.h.copy_((1 - z) * n + z * self.h)
        return self.out(self.h)

    def lstm(self, x):
        i, g, o = (self.i(x) + self.r(self.h)).chunk(3, -1)
        self.c.mul_(torch.sigmoid(o)).add_(torch.sigmoid(i) * torch.tanh(g))
        self.h.copy_(torch.sigmoid(o) * torch.tanh(self.c))
        return self.out(self.h)

    def rnn(self, x):
        self.h.copy_(torch.tanh(self.l(self.h) + self.i(x)[:, :32]))
        return self.out(self.h)

    def decay(self, x):
        self.h.mul_(0.9).add_(self.l(x))
        return self.out(self.h)

    def quiet(self, x):
        self.h.mul_(0.9).add_(self.l(x))
        return x.sum()

    def gated(self, x):
        self.h.mul_(torch.exp(-self.l(x))).add_(x)
        return self.out(self.h)

    def greatest(self, x):
        self.h.copy_(torch.maximum(self.h, self.l(x)))
        return self.h / 2

    def twice(self, x):
        before = self.out(self.h)
        self.h.mul_(0.5).add_(x)
        middle = self.out(self.h)
        self.h.add_(self.l(x))
        return before, middle, self.out(self.h + x)

    def updated(self, x):
        self.h.mul_(0.5).add_(self.l(x))
        self.h[0] = x[1]
        return functional.relu(self.h)


CALLS = {
    "gru": 2, "lstm": 2, "rnn": 2, "decay": 2, "quiet": 1, "gated": 2, "greatest": 2,
    "twice": 2, "updated": 2,
}  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", CALLS)
def test_a_state_updated_by_itself_and_a_product_is_not_copied(name, recipe, tmp_path):
    """So it is without a backend."""
    methods, budget = [Method(name, (X,))], {name: 0}
    bundle = compile_program(Recurrent(), methods, recipe, max_copy_bytes=budget)
    (method,) = bundle.program.methods
    assert all(step.op == DELEGATE for step in method.graph.instructions)
    partitions = bundle.program.delegates
    assert [partition.backend for partition in partitions].count("xnnpack") <= CALLS[
        name
    ]
    left = (
        method.blocks[partition.block]
        for partition in partitions
        if partition.backend == "cpu"
    )
    ops = [step.op for block in left for step in block.graph.instructions]
    assert not any("linear" in op for op in ops)
    bundle.save(tmp_path / "a.kvc")
    model = Recurrent()
    tolerance = {"xnnpack_fp32": 1e-5, "xnnpack_q8": 0.05, "xnnpack_q4": 0.4}[recipe]
    with load(tmp_path / "a.kvc", reference=True) as loaded, loaded.session() as one:
        for step in range(3):
            x = torch.randn(2, 32, generator=torch.Generator().manual_seed(step))
            got, wanted = one.call(name, x), getattr(model, name)(x)
            torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


def test_a_partition_without_the_old_content_may_make_the_new_one():
    """The second partition makes the cell's hidden state and reads no old one."""
    program = compile_program(Recurrent(), [Method("lstm", (X,))], "xnnpack_q8").program
    blocks = [
        program.methods[0].blocks[partition.block].graph
        for partition in program.delegates
        if partition.backend == "cpu"
    ]
    outside = [s.op for block in blocks for s in block.instructions]
    assert outside.count("aten::mul.Tensor") == 1
    assert "aten::tanh" not in outside


class Normed(nn.Module):
    """A new content that nothing pointwise makes."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(32, 32)
        self.register_buffer("h", torch.zeros(2, 32), persistent=False)

    def step(self, x):
        self.h.copy_(functional.layer_norm(self.l(self.h) + x, (32,)))
        return x.sum()


def test_a_copy_that_a_partition_costs_names_the_line_of_the_new_content():
    program = compile_program(Normed(), [Method("step", (X,))], "xnnpack_q8").program
    (update,) = program.methods[0].updates
    assert update.copies
    (call,) = (s for s in program.methods[0].graph.instructions if s.op == DELEGATE)
    assert call.source
