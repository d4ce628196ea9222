"""Loops in loops and branches at a cursor: each check on them, broken by itself."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.while_loop import while_loop

from kvc.compiler import Method, compile_program
from kvc.schema.errors import FormatError
from kvc.schema.graph import Graph, Ref
from kvc.schema.model import Advance, Program
from kvc.schema.verify import verify_program

ROW, COUNT = torch.ones(1, 1, 1, 4), torch.tensor(2)
Turn = tuple[Tensor, Tensor, Tensor]


class Writer(nn.Module):
    """A cache, of which loops and branches write as much as they like."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 1, 12, 4))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def in_loop(self, x: Tensor, count: Tensor) -> Tensor:
        def turn(i: Tensor, place: Tensor, cache: Tensor) -> Turn:
            end, cache = self.write(x, i, place.clone(), cache.clone())
            return i + 1, end + 1, torch.ops.kvc.cache_update(cache, x, end)

        first = torch.zeros((), dtype=torch.int64)
        start = first, self.position.clone(), self.cache.clone()
        _, end, cache = while_loop(lambda i, place, cache: i < count, turn, start)
        return self.leave(end, cache)

    def in_branch(self, x: Tensor, count: Tensor) -> Tensor:
        def yes(place: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
            end, cache = self.write(x, count, place.clone(), cache.clone())
            return end.clone(), cache.clone()

        def no(place: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
            return place + 2, cache.clone()

        start = self.position.clone(), self.cache.clone()
        return self.leave(*torch.cond(count < 5, yes, no, start))

    def two_places(self, x: Tensor, count: Tensor) -> Tensor:
        """Has its place twice, and leaves the counter at the first."""

        def turn(i: Tensor, one: Tensor, other: Tensor, cache: Tensor) -> Turn:
            cache = torch.ops.kvc.cache_update(cache, x, other)
            return i + 1, one + 1, other + 1, cache

        first = torch.zeros((), dtype=torch.int64)
        at = self.position
        start = first, at.clone(), at.clone(), self.cache.clone()
        _, end, _, cache = while_loop(lambda i, n, f, c: i < count, turn, start)
        return self.leave(end, cache)

    def write(
        self, x: Tensor, count: Tensor, place: Tensor, cache: Tensor
    ) -> tuple[Tensor, Tensor]:
        def turn(i: Tensor, place: Tensor, cache: Tensor) -> Turn:
            update = torch.ops.kvc.cache_update
            return i + 1, place + 1, update(cache, x, place)

        start = torch.zeros((), dtype=torch.int64), place, cache
        _, end, cache = while_loop(lambda i, place, cache: i < count, turn, start)
        return end, cache

    def leave(self, end: Tensor, cache: Tensor) -> Tensor:
        self.cache.copy_(cache)
        self.position.copy_(end)
        return end * 1


def compiled(name: str) -> Program:
    program = compile_program(Writer(), [Method(name, (ROW, COUNT))], "fp32").program
    assert program.methods[0].advances == (Advance(0, None),)
    assert all(state.cursor == 0 for state in program.states)
    verify_program(program, "x", thorough=True)
    return program


def wants(broken: Program, text: str) -> None:
    with pytest.raises(FormatError, match=text):
        verify_program(broken, "x", thorough=True)


def with_block(
    program: Program, number: int, change: Callable[[Graph], Graph]
) -> Program:
    """Return the program with other code of a block of its method."""
    (method,) = program.methods
    blocks = list(method.blocks)
    blocks[number] = replace(blocks[number], graph=change(blocks[number].graph))
    return replace(program, methods=(replace(method, blocks=tuple(blocks)),))


def after(start: Callable[[Graph], int], count: int) -> Callable[[Graph], Graph]:
    """Let the last `kvc::after` of some code be so far after another value of it."""

    def changed(graph: Graph) -> Graph:
        steps = list(graph.instructions)
        last = max(i for i, step in enumerate(steps) if step.op == "kvc::after")
        steps[last] = replace(steps[last], arguments=(Ref(start(graph)), count))
        return replace(graph, instructions=tuple(steps))

    return changed


def loop_in(program: Program) -> int:
    """Return the number of the block whose code runs a loop."""
    (method,) = program.methods
    ops = [{step.op for step in block.graph.instructions} for block in method.blocks]
    (number,) = (i for i, found in enumerate(ops) if "kvc::while" in found)
    return number


def loop_end(graph: Graph) -> int:
    """Return where the loop of some code ends."""
    (loop,) = (step for step in graph.instructions if step.op == "kvc::while")
    return next(r for r in loop.results if graph.values[r].type.dims == (1,))


def carried(graph: Graph) -> int:
    """Return where the loop of some code starts to write."""
    (loop,) = (step for step in graph.instructions if step.op == "kvc::while")
    _, _, count, operands, _ = loop.arguments
    assert isinstance(operands, tuple)
    assert isinstance(count, int)
    kinds = {op.value: graph.values[op.value].type for op in operands[:count]}
    return next(value for value, kind in kinds.items() if kind.dims == (1,))


def test_a_turn_ends_where_a_loop_in_it_does() -> None:
    program = compiled("in_loop")
    broken = with_block(program, loop_in(program), after(loop_end, 0))
    loops = "1 loops of any length"
    what = f"a write of 1 positions and {loops}"
    wants(broken, f"{what}, a turn adds 0 and {loops}")


def test_a_branch_ends_where_a_loop_in_it_does() -> None:
    program = compiled("in_branch")
    broken = with_block(program, loop_in(program), after(carried, 9))
    text = "turns up to 0 after the start and 1 loops .*, the counter is left before"
    wants(broken, text)


def test_what_comes_after_branches_counts_from_the_nearest() -> None:
    """The other branch goes two on, which the first may not."""
    program = compiled("in_branch")
    (method,) = program.methods
    position = next(i for i, s in enumerate(program.states) if s.name == "position")
    copies = [s for s in method.graph.instructions if s.op == "aten::copy"]
    assert copies, f"the counter {position} is left as the branches make it"
    graph = method.graph
    start = next(i for i, v in enumerate(graph.values) if "Cursor" in str(v.storage))
    steps = [
        replace(step, arguments=(step.arguments[0], Ref(start)))
        if step in copies
        else step
        for step in graph.instructions
    ]
    moved = replace(method, graph=replace(graph, instructions=tuple(steps)))
    text = "does not hold the end of its loops|the counter is left before that"
    wants(replace(program, methods=(moved,)), text)


def test_places_that_go_on_by_different_steps_end_apart() -> None:
    """The counter is left where one ends; a write goes on by twice as much."""
    program = compiled("two_places")

    def twice(graph: Graph) -> Graph:
        steps = list(graph.instructions)
        last = max(i for i, step in enumerate(steps) if step.op == "kvc::after")
        steps[last] = replace(steps[last], arguments=(steps[last].arguments[0], 2))
        return replace(graph, instructions=tuple(steps))

    text = "turns up to 0 after the start and 1 loops .*, the counter is left before"
    wants(with_block(program, 1, twice), text)
