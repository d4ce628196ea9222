"""Rings with a window in loops and branches: each check on them, broken by itself."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.while_loop import while_loop

from kvc.compiler import Method, compile_program
from kvc.schema.errors import FormatError
from kvc.schema.graph import Graph, Instruction, Ref
from kvc.schema.model import Program, StateKind
from kvc.schema.rings import Window
from kvc.schema.verify import verify_program

Turn = tuple[Tensor, ...]
Change = Callable[[Graph], Graph]


class Wheel(nn.Module):
    """A ring of eight slots, of which queries see three positions."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ring", torch.zeros(1, 1, 8, 4))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def turns(self, x: Tensor, count: Tensor) -> Tensor:
        """Two tokens in each turn, then one."""

        def turn(i: Tensor, seen: Tensor, place: Tensor, ring: Tensor) -> Turn:
            found, ring = self.put(place, ring, torch.cat([x, x], 2))
            return i + 1, seen + found, place + 2, ring

        first = torch.zeros((), dtype=torch.int64), torch.zeros(())
        start = *first, self.position.clone(), self.ring.clone()
        _, seen, end, ring = while_loop(lambda i, *_: i < count, turn, start)
        found, ring = self.put(end, ring, x)
        self.leave(end + 1, ring)
        return seen + found

    def skips(self, x: Tensor, count: Tensor) -> Tensor:
        """Leaves a position out before the turns."""

        def turn(i: Tensor, seen: Tensor, place: Tensor, ring: Tensor) -> Turn:
            found, ring = self.put(place, ring, x)
            return i + 1, seen + found, place + 1, ring

        found, ring = self.put(self.position + 1, self.ring, x)
        first = torch.zeros((), dtype=torch.int64), found
        start = *first, self.position + 2, ring
        _, seen, end, ring = while_loop(lambda i, *_: i < count, turn, start)
        self.leave(end, ring)
        return seen * 1

    def branches(self, x: Tensor, count: Tensor) -> Tensor:
        """One token or two."""

        def one(place: Tensor, ring: Tensor) -> Turn:
            return place + 1, *self.put(place, ring, x)

        def two(place: Tensor, ring: Tensor) -> Turn:
            return place + 2, *self.put(place, ring, torch.cat([x, x], 2))

        start = self.position.clone(), self.ring.clone()
        end, seen, ring = torch.cond(count < 2, one, two, start)
        self.leave(end, ring)
        return seen * 1

    def put(self, place: Tensor, ring: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        ring = torch.ops.kvc.cache_update(ring, x, place, 2, "circular")
        end = place + x.shape[2]
        seen = torch.ops.kvc.attention(
            x, ring, ring, end, layout="circular", window_left=2
        )
        return seen.sum(), ring

    def leave(self, end: Tensor, ring: Tensor) -> None:
        self.ring.copy_(ring)
        self.position.copy_(end)


def compiled(name: str) -> Program:
    example = torch.ones(1, 1, 1, 4), torch.tensor(2)
    program = compile_program(Wheel(), [Method(name, example)], "fp32").program
    assert {state.window for state in program.states} == {None, Window(3)}
    verify_program(program, "x", thorough=True)
    return program


@pytest.fixture(scope="module")
def turns() -> Program:
    return compiled("turns")


@pytest.fixture(scope="module")
def branches() -> Program:
    return compiled("branches")


def wants(broken: Program, text: str) -> None:
    with pytest.raises(FormatError, match=text):
        verify_program(broken, "x", thorough=True)


def with_graph(program: Program, change: Change) -> Program:
    """Return the program with other code of its method."""
    (method,) = program.methods
    return replace(program, methods=(replace(method, graph=change(method.graph)),))


def with_block(program: Program, change: Change) -> Program:
    """Return the program with other code of the last of its blocks."""
    (method,) = program.methods
    *others, last = method.blocks
    changed = *others, replace(last, graph=change(last.graph))
    return replace(program, methods=(replace(method, blocks=changed),))


def after(is_it: Callable[[Graph, int], bool], count: int) -> Change:
    """Let the `kvc::after` whose result is asked for go so far."""

    def change(graph: Graph) -> Graph:
        def changed(step: Instruction) -> Instruction:
            own = step.op == "kvc::after" and is_it(graph, step.results[0])
            given = step.arguments[0], count
            return replace(step, arguments=given) if own else step

        steps = tuple(map(changed, graph.instructions))
        assert steps != graph.instructions
        return replace(graph, instructions=steps)

    return change


def is_read_up_to(graph: Graph, value: int) -> bool:
    return any(
        step.op == "kvc::attention" and Ref(value) in step.arguments[3:]
        for step in graph.instructions
    )


def is_handed_on(graph: Graph, value: int) -> bool:
    copies = [s.results[0] for s in graph.instructions if Ref(value) in s.arguments[1:]]
    return value in graph.outputs or not set(copies).isdisjoint(graph.outputs)


def is_left(graph: Graph, value: int) -> bool:
    return not is_read_up_to(graph, value)


def with_window(program: Program, window: Window) -> Program:
    """Return the program whose ring and readers have another window."""

    def widened(graph: Graph) -> Graph:
        steps = tuple(
            replace(
                step,
                arguments=tuple(
                    window.size - 1 if type(a) is int and a == 2 else a
                    for a in step.arguments
                ),
            )
            if step.op == "kvc::attention"
            else step
            for step in graph.instructions
        )
        return replace(graph, instructions=steps)

    states = tuple(
        replace(s, window=window if s.window else None) for s in program.states
    )
    changed = with_block(with_graph(program, widened), widened)
    return replace(changed, states=states)


def test_a_turn_reads_no_further_than_it_has_written(turns: Program) -> None:
    text = "a ring is not read up to where its cursor ends"
    wants(with_block(turns, after(is_read_up_to, 1)), text)
    wants(with_block(turns, after(is_read_up_to, 3)), text)


def test_turns_leave_no_holes(turns: Program) -> None:
    text = "kvc::while leaves holes in the ring . with a window"
    wants(with_block(turns, after(is_handed_on, 3)), text)


def test_a_branch_leaves_no_holes(branches: Program) -> None:
    text = "kvc::cond leaves holes in the ring . with a window"
    wants(with_block(branches, after(is_handed_on, 3)), text)


def test_the_ring_is_filled_up_to_the_counter(turns: Program) -> None:
    text = "it does not fill the ring 'ring' up to where it ends"
    wants(with_graph(turns, after(is_left, 2)), text)


def test_a_write_is_no_longer_than_a_call_may_be(turns: Program) -> None:
    verify_program(with_window(turns, Window(7)), "x", thorough=True)
    text = "a write of 2 positions of a ring that takes 1 in order"
    wants(with_window(turns, Window(8)), text)


def test_a_write_goes_on_where_the_ring_is_filled_up_to() -> None:
    example = torch.ones(1, 1, 1, 4), torch.tensor(2)
    program = compile_program(Wheel(), [Method("skips", example)], "fp32").program
    assert [(state.cursor, state.window) for state in program.states] == [(0, None)] * 2
    text = "a write of 1 positions, 1 after the start of a ring that takes 6 in order"
    states = tuple(
        replace(s, window=Window(3) if s.kind is StateKind.RING else None)
        for s in program.states
    )
    wants(replace(program, states=states), text)
