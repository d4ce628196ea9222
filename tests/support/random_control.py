"""Random programs of the IR with branches and loops, and their expected results.

A program has one method over a few states, as in `random_methods`, with some steps that
run blocks. Blocks are made in the same way: they read and write the values that they
are lent, and may run blocks themselves.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from interpreter import interpret
from ir_samples import I64, method, node, program, value
from random_methods import _STEPS, _WEIGHTS, ROW, SQUARE, STATES, _Builder
from torch import Tensor

from kvc.compiler.ir import Method, Program, Value
from kvc.compiler.ir.control import blocks_by_number
from kvc.compiler.passes.redundancies import DropDeadCode
from kvc.schema.dtypes import DType
from kvc.schema.ops import COND, SCAN, WHILE

TURNS = 3


class _Author:
    """Makes random methods and blocks; `blocks` has the finished blocks by number."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.blocks: list[Method | None] = []

    def steps(self, b: _Builder, preds: Sequence[Value], depth: int) -> None:
        for _ in range(b.chance.randrange(1, 5)):
            kind = self.chance.random()
            if depth and kind < 0.35:
                self.branch(b, preds, depth - 1)
            elif depth and kind < 0.45:
                self.loop(b, preds, depth - 1)
            elif depth and kind < 0.5:
                self.scan(b, preds, depth - 1)
            else:
                b.chance.choices(_STEPS, _WEIGHTS)[0](b)

    def branch(self, b: _Builder, preds: Sequence[Value], depth: int) -> None:
        lent = [*dict.fromkeys(b.pick(SQUARE) for _ in range(3)), b.pick(ROW)]
        count = self.chance.randrange(1, 3)
        numbers = [self.block(lent, preds, count, depth) for _ in "ab"]
        pred = self.chance.choice(preds)
        results = tuple(b.keep(b.new(SQUARE)) for _ in range(count))
        given = (*lent, *preds), (None,) * count
        b.nodes.append(node(COND, pred, *numbers, *given, to=results))

    def loop(self, b: _Builder, preds: Sequence[Value], depth: int) -> None:
        start, turn = b.new(dtype=I64), b.new(dtype=I64)
        b.nodes.append(node("aten::full", (), 0, I64, to=start))
        carried = [b.pick(SQUARE) for _ in range(self.chance.randrange(1, 3))]
        rest = [b.pick(ROW), *preds]
        body = self.block([*carried, rest[0]], preds, len(carried), depth, counts=True)
        test = self.test([start, *carried, *rest])
        results = (turn, *(b.keep(b.new(SQUARE)) for _ in carried))
        given = len(results), (start, *carried, *rest), (None,) * len(results)
        b.nodes.append(node(WHILE, test, body, *given, to=results))

    def scan(self, b: _Builder, preds: Sequence[Value], depth: int) -> None:
        carried, through = b.pick(SQUARE), b.pick(SQUARE)
        body = self.block([carried], preds, 1, depth, scans=True)
        state, stacked = b.new(SQUARE), b.new(SQUARE)
        operands = (carried, through, *preds)
        arguments = (body, 1, 1, operands, (None, None))
        b.nodes.append(node(SCAN, *arguments, to=(state, stacked)))
        b.keep(state)
        b.keep(stacked)

    def test(self, operands: Sequence[Value]) -> int:
        inputs = [replace(v, id=i) for i, v in enumerate(operands)]
        less = value(len(inputs), dtype=DType.BOOL)
        limit = self.chance.randrange(TURNS)
        step = node("aten::lt.Scalar", inputs[0], limit, to=less)
        return self.add(inputs, [step], [less])

    def block(self, lent, preds, outputs, depth, counts=False, scans=False) -> int:
        number = len(self.blocks)
        self.blocks.append(None)
        b = _Builder(self.chance)
        first = [b.new(dtype=I64)] if counts else []
        inputs = [b.keep(b.new(tuple(v.type.dims))) for v in lent]
        part = [b.new((3,))] if scans else []
        inside = [b.new(dtype=DType.BOOL) for _ in preds]
        if scans:
            b.add("aten::unsqueeze", part[0], 0, shape=ROW)
        elif not b.values[ROW]:
            b.add("aten::sum.dim_IntList", inputs[0], (0,), True, shape=ROW)
        self.steps(b, inside, depth)
        left = [b.pick(SQUARE) for _ in range(outputs)]
        if counts:
            more = b.new(dtype=I64)
            b.nodes.append(node("aten::add.Scalar", first[0], 1, 1, to=more))
            left = [more, *left]
        if scans:
            flat = b.new((3,))
            b.nodes.append(node("aten::squeeze.dims", b.pick(ROW), (0,), to=flat))
            left = [*left, flat]
        filled = (1,) if scans else ()
        inputs = [*first, *inputs[:1], *part, *inputs[1:], *inside]
        return self.add(inputs, b.nodes, left, number, filled)

    def add(self, inputs, nodes, outputs, number=None, filled=()) -> int:
        if number is None:
            number = len(self.blocks)
            self.blocks.append(None)
        made = method(
            *nodes, inputs=tuple(inputs), outputs=tuple(outputs), name=f"step/{number}"
        )
        self.blocks[number] = replace(made, block=number, filled=filled)
        return number


def random_control(seed: int) -> Program:
    author = _Author(seed)
    b = _Builder(author.chance)
    ends = b.begin()
    preds = tuple(b.new(dtype=DType.BOOL) for _ in range(2))
    author.branch(b, preds, 2)
    author.steps(b, preds, 2)
    made = b.ended(ends, 0.8, preds)
    blocks = [block for block in author.blocks if block is not None]
    return DropDeadCode().run(program(made, *blocks, states=STATES, shape=SQUARE))


def meaning(
    whole: Program, inputs: Sequence[Tensor], states: Mapping[str, Tensor]
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return the outputs and new states of a call, without any sharing of memory."""
    (entry,) = (one for one in whole.methods if one.block is None)
    blocks = blocks_by_number(whole)
    return interpret(entry, inputs, states, blocks=blocks)[:2]
