"""Turn a method's nodes into a graph of the file, and plan the graph's memory."""

from collections.abc import Mapping

from kvc.compiler.ir import Argument, Method, Node, Value, bound_to
from kvc.compiler.place.aliasing import Aliases, analyse
from kvc.compiler.place.lifetimes import requests_of
from kvc.compiler.place.plan import MemoryPlan, aligned
from kvc.compiler.place.plan_check import PlanFault, check_plan
from kvc.compiler.place.planners import plan_memory
from kvc.schema import graph as emitted
from kvc.schema.errors import PlanFailed
from kvc.schema.ops import OPS, RESHAPING_VIEWS, Aliasing
from kvc.schema.types import Symbol


def emit_graph(
    method: Method,
    constant_ids: Mapping[str, int],
    state_ids: Mapping[str, int],
    symbols: tuple[Symbol, ...],
    tail_nbytes: int = 0,
    over_operands: bool = True,
) -> emitted.Graph:
    """Return a method's code as a graph of the file.

    Args:
        method: a method whose writes are checked, in which every view can share memory.
        constant_ids: name of a constant -> its number in the file.
        state_ids: name of a state -> its number in the file.
        symbols: the program's symbols.
        tail_nbytes: number of bytes of the scratch memory that must follow every value.
        over_operands: whether the kernels that run the code may write a pointwise
            result over an operand.

    Raises:
        PlanFailed: the memory plan does not pass its check, or new content of a state
            does not lie in the state: a bug.
    """
    aliases = analyse(method, over_operands)
    _check_homes(method, aliases)
    requests = requests_of(method, aliases, {s.name: s for s in symbols})
    plan = plan_memory(requests)
    try:
        check_plan(requests, plan)
    except PlanFault as error:
        raise PlanFailed(method=method.name, reason=str(error)) from error
    numbers = value_numbers(method)
    storages = _storages(method, aliases, plan, constant_ids, state_ids, numbers)
    values = sorted(_all_values(method), key=lambda value: numbers[value.id])
    return emitted.Graph(
        values=tuple(emitted.Value(v.type, storages[v.id]) for v in values),
        inputs=tuple(numbers[v.id] for v in method.inputs),
        outputs=tuple(numbers[v.id] for v in method.outputs),
        instructions=tuple(_instruction(node, numbers) for node in method.nodes),
        scratch_nbytes=plan.nbytes + aligned(tail_nbytes),
        peak_nbytes=plan.peak_nbytes,
    )


def _check_homes(method: Method, aliases: Aliases) -> None:
    """Check that a state's or changed input's new content lies in its old memory."""
    makers = method.makers()
    states = {name: value.id for value, name in method.state_in}
    named = zip(method.input_names, method.inputs, strict=True)
    inputs = {name: value.id for name, value in named}
    for contents, roots in ((method.state_out, states), (method.input_out, inputs)):
        for value, name in contents:
            if _home(value.id, aliases, makers) != roots.get(name):
                raise PlanFailed(
                    method=method.name,
                    reason=f"the new content of {name} lies elsewhere",
                )


def _home(number: int, aliases: Aliases, makers: Mapping[int, Node]) -> int:
    """Return the value whose whole memory the value `number` occupies."""
    while number in aliases.base:
        op = makers[number].op
        if OPS[op].aliasing is Aliasing.VIEW and op not in RESHAPING_VIEWS:
            break
        number = aliases.base[number]
    return number


def _all_values(method: Method) -> list[Value]:
    defined = [value for node in method.nodes for value in node.outputs]
    return [*method.inputs, *method.bound, *defined]


def value_numbers(method: Method) -> dict[int, int]:
    """Return id of a value -> number; numbers count the values in definition order.

    A backend that refers to values in its payload uses these numbers. They are also the
    ids in the file if the method runs no blocks. Otherwise the file has more values,
    for the scratch memory of the blocks.
    """
    return {value.id: i for i, value in enumerate(_all_values(method))}


def _storages(
    method: Method,
    aliases: Aliases,
    plan: MemoryPlan,
    constant_ids: Mapping[str, int],
    state_ids: Mapping[str, int],
    numbers: Mapping[int, int],
) -> dict[int, emitted.Storage]:
    storages: dict[int, emitted.Storage] = {
        p.request.key: emitted.Scratch(p.offset, p.request.nbytes)
        for p in plan.placements
    }
    for value_id, name in bound_to(method.constants).items():
        storages[value_id] = emitted.Constant(constant_ids[name])
    for value_id, name in bound_to(method.state_in).items():
        storages[value_id] = emitted.StateSlot(state_ids[name])
    storages.update((value.id, slot) for value, slot in method.cursor_in)
    storages.update(dict.fromkeys(aliases.callers, emitted.Caller()))
    for value_id, base in aliases.base.items():
        storages[value_id] = emitted.Alias(numbers[base])
    return storages


def _instruction(node: Node, numbers: Mapping[int, int]) -> emitted.Instruction:
    return emitted.Instruction(
        op=node.op,
        arguments=tuple(_argument(a, numbers) for a in node.arguments),
        results=tuple(numbers[value.id] for value in node.outputs),
        source=node.source,
    )


def _argument(argument: Argument, numbers: Mapping[int, int]) -> emitted.Argument:
    if isinstance(argument, tuple):
        return tuple(_item(item, numbers) for item in argument)
    return _item(argument, numbers)


def _item(item: Argument, numbers: Mapping[int, int]) -> emitted.Item:
    assert not isinstance(item, tuple)
    return emitted.Ref(numbers[item.id]) if isinstance(item, Value) else item
