"""Turns of a scan that write at a cursor: each check on them, broken by itself."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from kvc.compiler import Dim, Method, compile_program
from kvc.schema.errors import FormatError
from kvc.schema.graph import CursorField, CursorSlot, Graph, Instruction
from kvc.schema.model import Advance, Program, StateKind
from kvc.schema.types import affine
from kvc.schema.verify import verify_program

XS = torch.ones(3, 1, 1, 2, 4)  # [turns, batch, heads, tokens of a turn, width]
TURNS = affine(0, {"turns": 1})
Change = Callable[[Instruction], Instruction]


class Turns(nn.Module):
    """A cache to which each turn adds two rows, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 1, 12, 4))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def forward(self, xs: Tensor) -> Tensor:
        def turn(
            carry: tuple[Tensor, Tensor], x: Tensor
        ) -> tuple[tuple[Tensor, Tensor], Tensor]:
            place, cache = carry
            update = torch.ops.kvc.cache_update
            cache = update(cache, x[:, :, :1], place)
            cache = update(cache, x[:, :, 1:], place + 1)
            return (place + 2, cache), x.sum()

        start = self.position.clone()
        (end, cache), sums = scan(turn, (start, self.cache.clone()), xs, dim=0)
        self.cache.copy_(cache)
        self.position.copy_(end)
        return sums


@pytest.fixture(scope="module")
def whole() -> Program:
    method = Method("forward", (XS,), dynamic={"xs": {0: Dim("turns", 2, 6)}})
    program = compile_program(Turns(), [method], "fp32").program
    states = {state.name: state for state in program.states}
    assert states["cache"].kind is StateKind.LINEAR
    assert states["cache"].cursor == 0
    return program


def wants(broken: Program, text: str) -> None:
    with pytest.raises(FormatError, match=text):
        verify_program(broken, "x", thorough=True)


def with_graph(whole: Program, change: Callable[[Graph], Graph]) -> Program:
    """Return the program with another body of its loop."""
    (method,), (block,) = whole.methods, whole.methods[0].blocks
    blocks = (replace(block, graph=change(block.graph)),)
    return replace(whole, methods=(replace(method, blocks=blocks),))


def with_after(which: int, change: Change) -> Callable[[Graph], Graph]:
    """Change one of the body's `kvc::after`: of the second write, or of the end."""

    def changed(graph: Graph) -> Graph:
        steps = list(graph.instructions)
        found = [i for i, step in enumerate(steps) if step.op == "kvc::after"]
        steps[found[which]] = change(steps[found[which]])
        return replace(graph, instructions=tuple(steps))

    return changed


def further(count: int) -> Change:
    return lambda step: replace(step, arguments=(step.arguments[0], count))


def test_a_loop_that_is_as_it_should_be_is_taken(whole: Program) -> None:
    verify_program(whole, "x", thorough=True)


def test_a_turn_writes_no_further_than_it_goes_on(whole: Program) -> None:
    program = with_graph(whole, with_after(0, further(2)))
    wants(program, "a write of 1 positions, 2 after the start, a turn adds 2")
    program = with_graph(whole, with_after(1, further(1)))
    wants(program, "a write of 1 positions, 1 after the start, a turn adds 1")


def test_a_start_that_stays_where_it_is_has_no_room(whole: Program) -> None:
    program = with_graph(whole, with_after(1, further(0)))
    wants(program, "a write of 1 positions, a turn adds 0")


def test_a_turn_does_not_go_back(whole: Program) -> None:
    wants(with_graph(whole, with_after(1, further(-1))), "kvc::after.*-1 after")


def test_all_turns_together_are_what_the_call_adds(whole: Program) -> None:
    (method,) = whole.methods
    less = replace(method, advances=(Advance(0, TURNS),))
    text = r"turns up to 2\*turns after the start, the call adds turns"
    wants(replace(whole, methods=(less,)), text)
    further_on = with_graph(whole, with_after(1, further(3)))
    text = r"turns up to 3\*turns after the start, the call adds 2\*turns"
    wants(further_on, text)


def test_a_start_that_is_handed_on_in_another_way_is_none(whole: Program) -> None:
    def added(step: Instruction) -> Instruction:
        return replace(step, op="aten::add.Scalar", arguments=(*step.arguments, 1))

    program = with_graph(whole, with_after(1, added))
    wants(program, "a cursor's start|does not begin at its cursor")


def test_a_loop_that_begins_at_another_field_writes_at_no_cursor(
    whole: Program,
) -> None:
    (method,) = whole.methods
    for slot in (CursorSlot(0, CursorField.END), CursorSlot(0, CursorField.PLACES)):
        values = tuple(
            replace(value, storage=slot)
            if isinstance(value.storage, CursorSlot)
            else value
            for value in method.graph.values
        )
        broken = replace(method, graph=replace(method.graph, values=values))
        text = "a cursor's start|does not begin at its cursor"
        wants(replace(whole, methods=(broken,)), text)
