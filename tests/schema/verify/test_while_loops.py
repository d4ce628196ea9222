"""Loops of any number of turns at a cursor: each check on them, broken by itself."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from loops_within import write_in_scans
from torch import Tensor, nn
from torch._higher_order_ops.while_loop import while_loop

from kvc.compiler import Method, compile_program
from kvc.schema.errors import FormatError
from kvc.schema.graph import (
    Alias,
    CursorField,
    CursorSlot,
    Graph,
    Instruction,
    Ref,
    Value,
)
from kvc.schema.model import Advance, CursorKind, Program, StateKind
from kvc.schema.verify import verify_program

Loop = tuple[Tensor, Tensor, Tensor]
Change = Callable[[Instruction], Instruction]


class Writer(nn.Module):
    """A cache that gets a token, then one in each turn, then another one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 1, 12, 4))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        update = torch.ops.kvc.cache_update

        def turn(i: Tensor, place: Tensor, cache: Tensor) -> Loop:
            return i + 1, place + 1, update(cache, x, place)

        first, at = torch.zeros((), dtype=torch.int64), self.position.clone()
        start = first, at + 1, update(self.cache, x, at)
        _, end, cache = while_loop(lambda i, place, cache: i < count, turn, start)
        self.cache.copy_(update(cache, x, end))
        self.position.copy_(end + 1)
        return x.sum()


@pytest.fixture(scope="module")
def whole() -> Program:
    method = Method("forward", (torch.ones(1, 1, 1, 4), torch.tensor(2)))
    program = compile_program(Writer(), [method], "fp32").program
    states = {state.name: state for state in program.states}
    assert (states["cache"].kind, states["cache"].cursor) == (StateKind.LINEAR, 0)
    assert program.methods[0].advances == (Advance(0, None),)
    return program


def wants(broken: Program, text: str) -> None:
    with pytest.raises(FormatError, match=text):
        verify_program(broken, "x", thorough=True)


def with_graph(whole: Program, change: Callable[[Graph], Graph]) -> Program:
    """Return the program with other code of its method."""
    (method,) = whole.methods
    return replace(whole, methods=(replace(method, graph=change(method.graph)),))


def with_body(whole: Program, change: Callable[[Graph], Graph]) -> Program:
    """Return the program with another body of its loop."""
    (method,) = whole.methods
    test, body = method.blocks
    blocks = (test, replace(body, graph=change(body.graph)))
    return replace(whole, methods=(replace(method, blocks=blocks),))


def with_step(op: str, which: int, change: Change) -> Callable[[Graph], Graph]:
    """Change one of the instructions of an operator."""

    def changed(graph: Graph) -> Graph:
        steps = list(graph.instructions)
        found = [i for i, step in enumerate(steps) if step.op == op]
        steps[found[which]] = change(steps[found[which]])
        return replace(graph, instructions=tuple(steps))

    return changed


def after(which: int, count: int) -> Callable[[Graph], Graph]:
    """Let one of the `kvc::after` go so much further: before the loop, after it."""

    def change(step: Instruction) -> Instruction:
        return replace(step, arguments=(step.arguments[0], count))

    return with_step("kvc::after", which, change)


def of(graph: Graph, slot: CursorSlot) -> Ref:
    """Return the value that is a field of a cursor."""
    return Ref([value.storage for value in graph.values].index(slot))


def test_a_loop_that_is_as_it_should_be_is_taken(whole: Program) -> None:
    verify_program(whole, "x", thorough=True)


def test_an_advance_without_a_number_is_of_a_counter(whole: Program) -> None:
    (cursor,), (method,) = whole.cursors, whole.methods
    filled = replace(cursor, kind=CursorKind.SESSION, state=None)
    states = tuple(
        replace(state, kind=StateKind.PLAIN, cursor=None)
        if state.kind is StateKind.COUNTER
        else state
        for state in whole.states
    )
    text = "the advance of the cursor 0 is unknown"
    wants(replace(whole, cursors=(filled,), states=states), text)
    lengths = replace(method, advances=(Advance(0, None, 1),))
    wants(replace(whole, methods=(lengths,)), text)


def test_an_advance_with_a_number_has_no_loop_of_any_length(whole: Program) -> None:
    (method,) = whole.methods
    told = replace(method, advances=(Advance(0, 9),))
    text = "turns up to 1 after the start and 1 loops of any length, the call adds 9"
    wants(replace(whole, methods=(told,)), text)


def test_such_a_method_knows_no_end_before_it_ends(whole: Program) -> None:
    def with_field(graph: Graph) -> Graph:
        values = tuple(
            replace(value, storage=CursorSlot(0, CursorField.END))
            if isinstance(value.storage, CursorSlot)
            else value
            for value in graph.values
        )
        return replace(graph, values=values)

    wants(with_graph(whole, with_field), "the END of a method that advances by any")


def test_a_turn_writes_no_further_than_it_goes_on(whole: Program) -> None:
    wants(with_body(whole, after(0, 0)), "a write of 1 positions, a turn adds 0")


def test_a_start_that_turns_hand_on_in_another_way_is_none(whole: Program) -> None:
    def added(step: Instruction) -> Instruction:
        return replace(step, op="aten::add.Scalar", arguments=(*step.arguments, 1))

    broken = with_body(whole, with_step("kvc::after", 0, added))
    wants(broken, "a cursor's start|does not begin at its cursor")


def test_the_counter_is_left_after_the_last_write(whole: Program) -> None:
    text = (
        "1 after the start and 1 loops of any length, the counter is left before that"
    )
    wants(with_graph(whole, after(-1, 0)), text)


def test_the_counter_is_left_where_the_loop_ends(whole: Program) -> None:
    graph = whole.methods[0].graph
    start = of(graph, CursorSlot(0, CursorField.START))

    def from_start(step: Instruction) -> Instruction:
        return replace(step, arguments=(start, 9))

    broken = with_graph(whole, with_step("kvc::after", -1, from_start))
    text = "turns up to 1 after the start and 1 loops .*, the counter is left before"
    wants(broken, text)


def test_the_counter_is_left_at_what_is_after_the_start(whole: Program) -> None:
    def other(step: Instruction) -> Instruction:
        return replace(step, op="aten::add.Scalar", arguments=(*step.arguments, 1))

    broken = with_graph(whole, with_step("kvc::after", -1, other))
    wants(broken, "its counter . does not hold the end of its loops")


class Within(Writer):
    """Each turn of a loop runs a scan of three turns that write a token each."""

    def forward(self, xs: Tensor, count: Tensor) -> Tensor:
        return write_in_scans(self, count, xs, torch.ops.kvc.cache_update)


def test_a_loop_within_a_turn_goes_no_further_than_the_turn() -> None:
    method = Method("forward", (torch.ones(3, 1, 1, 1, 4), torch.tensor(2)))
    program = compile_program(Within(), [method], "fp32").program
    assert [state.cursor for state in program.states] == [0, 0]
    (method,) = program.methods
    test, body, *inner = method.blocks
    less = replace(body, graph=after(-1, 2)(body.graph))
    broken = replace(method, blocks=(test, less, *inner))
    text = "turns up to 3 after the start, a turn adds 2"
    wants(replace(program, methods=(broken,)), text)


def test_the_counter_is_left_as_a_whole(whole: Program) -> None:
    def through_a_view(graph: Graph) -> Graph:
        *before, last = graph.instructions
        assert last.op == "kvc::after"
        state = graph.root_of(last.results[0])
        values, view = list(graph.values), Ref(len(graph.values))
        values.append(Value(values[state].type, Alias(state)))
        kept = values[last.results[0]]
        values[last.results[0]] = replace(kept, storage=Alias(view.value))
        copied = (view, last.arguments[0])
        first = Instruction("aten::alias", (Ref(state),), (view.value,))
        last = Instruction("aten::copy", copied, last.results)
        return replace(graph, values=tuple(values), instructions=(first, *before, last))

    (method,) = whole.methods
    updates = tuple(
        replace(
            update,
            instruction=update.instruction + 1,
            copies=tuple(copy + 1 for copy in update.copies),
        )
        for update in method.updates
    )
    moved = replace(method, graph=through_a_view(method.graph), updates=updates)
    text = "its counter . does not hold the end of its loops"
    wants(replace(whole, methods=(moved,)), text)


class Pair(nn.Module):
    """Two caches, each with a loop and a counter of its own."""

    def __init__(self) -> None:
        super().__init__()
        for name in "ab":
            self.register_buffer(name, torch.zeros(1, 1, 12, 4))
            self.register_buffer(f"{name}_at", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        def turn(i: Tensor, place: Tensor, cache: Tensor) -> Loop:
            cache = torch.ops.kvc.cache_update(cache, x, place)
            return i + 1, place + 1, cache

        for name in "ab":
            kept, at = getattr(self, name), getattr(self, f"{name}_at")
            first = torch.zeros((), dtype=torch.int64)
            start = first, at.clone(), kept.clone()
            _, end, cache = while_loop(lambda i, place, c: i < count, turn, start)
            kept.copy_(cache)
            at.copy_(end)
        return x.sum()


def test_a_counter_is_left_where_its_own_loops_end() -> None:
    method = Method("forward", (torch.ones(1, 1, 1, 4), torch.tensor(2)))
    program = compile_program(Pair(), [method], "fp32").program
    assert [advance.tokens for advance in program.methods[0].advances] == [None, None]
    graph = program.methods[0].graph
    first = next(step for step in graph.instructions if step.op == "aten::copy")

    def of_the_other(step: Instruction) -> Instruction:
        return replace(step, arguments=(step.arguments[0], first.arguments[1]))

    broken = with_graph(program, with_step("aten::copy", -1, of_the_other))
    wants(broken, "its counter . does not hold the end of its loops")
