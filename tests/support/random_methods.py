"""Random methods of the IR: views, reads and writes over a few states and inputs.

Every value is float32 of one of a few shapes, so that most values fit most operands.
States swap contents, one value is stored in two states, old and new contents are
returned, and updated states are updated again.
"""

import random
from dataclasses import replace

import torch
from ir_samples import I64, method, node, program, value
from torch import Tensor

from kvc.compiler.ir import Method, Node, Program, Value
from kvc.compiler.ir.rewrite import rename_node, rename_results
from kvc.compiler.passes.redundancies import DropDeadCode
from kvc.schema.dtypes import DType

SQUARE, ROW = (3, 3), (1, 3)
STATES = ("a", "b", "c")


Ends = tuple[tuple[tuple[Value, str], ...], tuple[Value, Value]]


class _Builder:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.nodes: list[Node] = []
        self.count = 0
        self.values: dict[tuple[int, ...], list[Value]] = {SQUARE: [], ROW: []}

    def new(self, shape: tuple[int, ...] = (), dtype: DType = DType.FLOAT32) -> Value:
        made = value(self.count, *shape, dtype=dtype)
        self.count += 1
        return made

    def keep(self, made: Value) -> Value:
        self.values[tuple(made.type.dims)].append(made)  # type: ignore[arg-type]
        return made

    def pick(self, shape: tuple[int, ...]) -> Value:
        # Recent values more often: long chains of updates.
        known = self.values[shape]
        recent = known[-3:] if self.chance.random() < 0.5 else known
        return self.chance.choice(recent)

    def index(self) -> Value:
        made = self.new((1,), I64)
        begin = self.chance.randrange(3)
        step = ("aten::arange.start_step", begin, begin + 1, 1, I64)
        self.nodes.append(node(*step, to=made))
        return made

    def add(self, op: str, *arguments: object, shape: tuple[int, ...]) -> None:
        made = self.new(shape)
        self.nodes.append(node(op, *arguments, to=made))  # type: ignore[arg-type]
        self.keep(made)

    def begin(self) -> Ends:
        bound = tuple((self.keep(self.new(SQUARE)), name) for name in STATES)
        return bound, (self.keep(self.new(SQUARE)), self.keep(self.new(ROW)))

    def ended(self, ends: Ends, share: float, more: tuple[Value, ...] = ()) -> Method:
        bound, inputs = ends
        changed = [name for name in STATES if self.chance.random() < share]
        shapes = [SQUARE, ROW]
        outputs = tuple(self.pick(self.chance.choice(shapes)) for _ in range(3))
        after = tuple((self.pick(SQUARE), name) for name in changed)
        given = {"inputs": (*inputs, *more), "state_in": bound, "state_out": after}
        return method(*self.nodes, outputs=outputs, **given)


def _view(b: _Builder) -> None:
    if b.chance.random() < 0.5:
        b.add("aten::transpose.int", b.pick(SQUARE), 0, 1, shape=SQUARE)
    else:
        begin = b.chance.randrange(3)
        b.add("aten::slice.Tensor", b.pick(SQUARE), 0, begin, begin + 1, 1, shape=ROW)


def _read(b: _Builder) -> None:
    shape = b.chance.choice([SQUARE, ROW])
    match b.chance.randrange(5):
        case 0:
            b.add("aten::neg", b.pick(shape), shape=shape)
        case 1:
            b.add("aten::add.Tensor", b.pick(shape), b.pick(shape), 1, shape=shape)
        case 2:
            b.add("aten::sum.dim_IntList", b.pick(SQUARE), (0,), True, shape=ROW)
        case 3:
            b.add("aten::mul.Tensor", b.pick(SQUARE), b.pick(ROW), shape=SQUARE)
        case _:
            b.add("aten::flip", b.pick(SQUARE), (0,), shape=SQUARE)


def _write(b: _Builder) -> None:
    target = b.pick(SQUARE)
    match b.chance.randrange(4):
        case 0:
            b.add("aten::index_copy", target, 0, b.index(), b.pick(ROW), shape=SQUARE)
        case 1:
            source = b.pick(b.chance.choice([SQUARE, ROW]))
            b.add("aten::copy", target, source, shape=SQUARE)
        case 2:
            given = (b.index(), None), b.pick(ROW), b.chance.random() < 0.3
            b.add("aten::index_put", target, *given, shape=SQUARE)
        case _:
            b.add("aten::clone", target, shape=SQUARE)


_STEPS, _WEIGHTS = (_view, _read, _write), (2, 3, 4)


def random_program(seed: int, steps: int = 10) -> Program:
    """Return a program of one random method over three states, decided by the seed."""
    b = _Builder(random.Random(seed))
    ends = b.begin()
    for _ in range(b.chance.randrange(1, steps)):
        b.chance.choices(_STEPS, _WEIGHTS)[0](b)
    made = b.ended(ends, 0.7)
    if b.chance.random() < 0.3:
        name = f"x{made.inputs[0].id}"
        made = replace(made, input_out=((b.pick(SQUARE), name),))
    return DropDeadCode().run(program(made, states=STATES, shape=SQUARE))


def random_tensors(seed: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(shape, generator=generator) for shape in (SQUARE, ROW)]
    states = {name: torch.randn(SQUARE, generator=generator) for name in STATES}
    return inputs, states


def reordered(made: Method, seed: int) -> Method:
    """Return a method whose nodes run in another order, in which operands come first.

    One copy is left out now and then. The results stay right if each value has memory
    of its own, but not always if values share memory.
    """
    chance = random.Random(seed)
    kept = {v.id for v, _ in made.state_out + made.input_out}
    clones = [
        n for n in made.nodes if n.op == "aten::clone" and n.outputs[0].id not in kept
    ]
    if clones and chance.random() < 0.5:
        lost = chance.choice(clones)
        names = {lost.outputs[0].id: lost.inputs[0]}
        nodes = [rename_node(n, names) for n in made.nodes if n is not lost]
        made = rename_results(replace(made, nodes=tuple(nodes)), names)
    waiting, order = list(made.nodes), []
    ready = {v.id for v in (*made.inputs, *(v for v, _ in made.state_in))}
    while waiting:
        able = [n for n in waiting if all(v.id in ready for v in n.inputs)]
        chosen = able[0] if chance.random() < 0.7 else chance.choice(able)
        waiting.remove(chosen)
        order.append(chosen)
        ready.update(v.id for v in chosen.outputs)
    return replace(made, nodes=tuple(order))
