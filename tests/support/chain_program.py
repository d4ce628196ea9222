"""The code of one random chain, and the module that it becomes.

`Chains` runs the code of a `Program` either by torch's control flow or by plain
Python's, which may also write what a body captures or is given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.nn import functional

from kvc.compiler import Dim, Method


def dense(x: Tensor) -> Tensor:
    """Return a contiguous copy; torch wants the same layout of all results."""
    return x.clone(memory_format=torch.contiguous_format)


def _plain_cond(p, yes, no, operands):
    return (yes if p else no)(*operands)


def _plain_while(test, body, carried):
    while test(*carried):
        carried = body(*carried)
    return carried


def _plain_scan(body, start, xs, dim=0):
    rows = []
    for x in xs.unbind(dim):
        start, row = body(start, x)
        rows.append(row)
    return start, torch.stack(rows)


_NAMES = {"torch": torch, "functional": functional, "dense": dense}
PLAIN = {"cond": _plain_cond, "while_loop": _plain_while, "scan": _plain_scan}
TORCHS = {
    "cond": torch.cond,
    "while_loop": torch._higher_order_ops.while_loop,
    "scan": scan,
}


class Chains(nn.Module):
    """A module with the code of a program."""

    def __init__(self, program: "Program", plain: bool) -> None:
        super().__init__()
        for name, buffer in program.buffers.items():
            self.register_buffer(name, buffer.clone())
        names = {**_NAMES, **(PLAIN if plain else TORCHS)}
        exec(compile(program.text(), f"<chain {program.seed}>", "exec"), names)
        self.forward = names["forward"].__get__(self)


@dataclass
class Program:
    """A random program.

    Attributes:
        seed: what it was drawn from.
        kind: one of `random_chains.KINDS`.
        buffers: name -> content before the first call.
        calls: the inputs of each call.
        dynamic: the dynamic axis of x, None if there is none.
        lower: the least size of that axis.
        lines: of the method.
        results: expressions of what the method returns beside what it read.
        undefined: whether eager leaves open what a write does.
    """

    seed: int
    kind: str
    buffers: Mapping[str, Tensor]
    calls: Sequence[Sequence[Tensor]]
    dynamic: int | None
    lower: int
    lines: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    undefined: bool = False

    def text(self) -> str:
        """Return the code of the method."""
        lines = (line for step in self.lines for line in step.split("\n"))
        returned = f"return [*r, {', '.join(self.results)}]"
        body = "\n    ".join((*self._first(), *lines, returned))
        return f"def forward(self, x, p, n):\n    {body}\n"

    def method(self) -> Method:
        """Return the method to compile."""
        dim = Dim("n", self.lower, 8)
        dynamic = {} if self.dynamic is None else {"x": {self.dynamic: dim}}
        return Method("forward", tuple(self.calls[0]), dynamic=dynamic)

    def expected(self) -> list[list[Tensor]]:
        """Return the results of each call, by plain Python's control flow."""
        model = Chains(self, plain=True)
        given = ([each.clone() for each in call] for call in self.calls)
        with torch.no_grad():
            return [[one.clone() for one in model.forward(*some)] for some in given]

    def names(self, call: int) -> dict[str, object]:
        """Return what the lines of the method begin with."""
        x, p, n = (each.clone() for each in self.calls[call])
        held = {name: buffer.clone() for name, buffer in self.buffers.items()}
        begin = {**_NAMES, **PLAIN, "p": p, "n": n, "r": [], "x0": x.clone()}
        return {**begin, **held}

    def _first(self) -> list[str]:
        return [f"{b} = self.{b}" for b in self.buffers] + ["x0 = x.clone()", "r = []"]
