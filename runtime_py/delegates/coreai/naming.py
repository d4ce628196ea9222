"""Names of functions, inputs and outputs in an asset, from the program's names.

In: a program, and the number of a partition. Out: unique names, by which an app finds
states, cursors, and a method's arguments.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from kvc.runtime.delegates.lowering.partition import Names
from kvc.runtime.delegates.lowering.plan import OUTSIDE
from kvc.schema.graph import CursorSlot, Graph, Instruction, Ref, StateSlot
from kvc.schema.model import Method, Program
from kvc.schema.ops import DELEGATE

_LONGEST: Final = 80


def name_partition(program: Program, number: int) -> Names:
    """Return the names of a partition's function, inputs and outputs, without sizes."""
    partition = program.delegates[number]
    method = program.methods[partition.method]
    graph = method.blocks[partition.block].graph
    calls = (i for i in method.graph.instructions if i.op == DELEGATE)
    call = next((i for i in calls if i.arguments[0] == partition.block), None)
    taken = {OUTSIDE}
    inputs = [f"input_{i}" for i in range(len(graph.inputs))]
    outputs = [f"output_{i}" for i in range(len(graph.outputs))]
    if call is not None:
        operands = call.arguments[1]
        assert isinstance(operands, tuple)
        inputs = [
            _operand_name(program, method, each, usual)
            for each, usual in zip(operands, inputs, strict=True)
        ]
        outputs = _output_names(method.graph, call, outputs)
    return Names(
        _function(program, number),
        [_unique(_argument(name), taken) for name in inputs],
        [_unique(name, taken) for name in outputs],
    )


def name_functions(
    program: Program, sizes: Mapping[int, Sequence[Mapping[str, int]]]
) -> Mapping[int, Sequence[str]]:
    """Return the names of each partition's functions; no two functions share a name.

    Args:
        program: the program.
        sizes: all sets of sizes of each partition, by the partition's number; each set
            gets a function.

    Returns:
        By the partition's number, a name for each set of sizes.
    """
    taken: set[str] = set()
    found = {}
    for number, some in sorted(sizes.items()):
        base = _function(program, number)
        sized = ([f"{key}{size}" for key, size in each.items()] for each in some)
        parts = sized if len(some) > 1 else [[]]
        names = (plain("_".join([base, *each])) for each in parts)
        found[number] = [_unique(name, taken) for name in names]
    return found


def plain(name: str) -> str:
    """Replace all but ASCII letters, digits and underscores by underscores."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def _argument(name: str) -> str:
    """Replace all characters but ASCII letters, digits, dots and underscores.

    Each becomes an underscore. The function's inner tensors have a further character in
    their names, so that no such name equals an argument's.
    """
    return re.sub(r"[^A-Za-z0-9_.]", "_", name) or "_"


def _function(program: Program, number: int) -> str:
    """Return the name of a partition's method as a base for names of functions.

    If the method has several partitions, the partition's number is appended.
    """
    names = [
        plain(program.methods[each.method].name)[:_LONGEST]
        for each in program.delegates
    ]
    own = names[number]
    return own if names.count(own) == 1 else f"{own}_part{number}"


def _operand_name(program: Program, method: Method, operand: object, usual: str) -> str:
    graph = method.graph
    if not isinstance(operand, Ref):
        return usual
    storage = graph.values[operand.value].storage
    if isinstance(storage, StateSlot):
        return program.states[storage.state].name
    if isinstance(storage, CursorSlot):
        own = program.cursors[storage.cursor].name
        kind = storage.field.name.lower()
        return f"{own}_{kind}" if own else kind
    if operand.value in graph.inputs:
        return method.input_names[graph.inputs.index(operand.value)]
    return usual


def _output_names(graph: Graph, call: Instruction, usual: Sequence[str]) -> list[str]:
    """Return names for the outputs of a partition.

    An output that is a result of the method is `result`, or `result_0`, `result_1`, ...
    if the method has several results. Other outputs get their name in `usual`.
    """
    several = len(graph.outputs) > 1
    places = {value: graph.outputs.index(value) for value in graph.outputs}
    own = {v: f"result_{at}" if several else "result" for v, at in places.items()}
    return [own.get(v, name) for v, name in zip(call.results, usual, strict=True)]


def _unique(name: str, taken: set[str]) -> str:
    """Return `name`, numbered if it is in `taken`, and add it to `taken`."""
    made, number = name, 1
    while made in taken or f"{made}_after" in taken:
        number += 1
        made = f"{name}_{number}"
    taken |= {made, f"{made}_after"}
    return made
