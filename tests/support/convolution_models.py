"""Models of convolutions: what passes make of them, and whether that equals eager."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn

from kvc.compiler import Method, compile_program
from kvc.compiler.ir import Node, Program
from kvc.runtime import load


class Calls(nn.Module):
    """A method of some modules, named m0, m1, ..."""

    def __init__(self, call: Callable[..., object], *modules: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        for number, each in enumerate(modules):
            self.add_module(f"m{number}", each)
        self.call = call

    def forward(self, x: Tensor) -> object:
        return self.call(self, x)


def nodes(program: Program) -> list[Node]:
    (method,) = program.methods
    return [node for node in method.nodes if node.outputs]


def ops(program: Program) -> list[str]:
    return [node.op for node in nodes(program)]


def assert_equal_to_eager(model: nn.Module, folder: Path, x: Tensor) -> None:
    """Compare two calls in a row, of kvc's kernels and of the reference's."""
    model, path = model.eval(), folder / "model.kvc"
    compile_program(model, [Method("forward", (x,))], "cpu_fp32").save(path)
    with torch.no_grad():
        eager = deepcopy(model)
        expected = [eager(x), eager(-x)]
    for reference in (False, True):
        with load(path, reference=reference) as program:
            session = program.session()
            for one, sign in zip(expected, (1, -1), strict=True):
                found = session.call("forward", sign * x)
                torch.testing.assert_close(
                    found, one, rtol=1e-4, atol=2e-5, equal_nan=True
                )
