"""What uses which named data: methods themselves, their delegates, states.

A side table that several reports read. A user is written as `decode` for the method's
own code, `decode/BACKEND` for a delegate of it, `state k` for a state that starts as
the data.
"""

from collections.abc import Mapping

from kvc.schema.graph import Graph, Ref, StateSlot
from kvc.schema.model import Program
from kvc.schema.uses import constants_of


def users_of_names(program: Program) -> Mapping[int, tuple[str, ...]]:
    """Return for each id of named data who uses it, in the order of the methods."""
    found: dict[int, list[str]] = {i: [] for i in range(len(program.names))}
    for body in program.bodies:
        for index, method in enumerate(body.methods):
            for name in sorted(set().union(*map(constants_of, method.graphs))):
                found[name].append(method.name)
            for delegate in body.delegates:
                if delegate.method == index:
                    for name in delegate.names:
                        found[name].append(f"{method.name}/{delegate.backend}")
    for state in program.states:
        if state.initial is not None:
            found[state.initial].append(f"state {state.name}")
    return {name: tuple(dict.fromkeys(users)) for name, users in found.items()}


def state_of(graph: Graph, value: int) -> int | None:
    """Return the id of the state whose memory a value lies in, None if in none."""
    storage = graph.values[graph.root_of(value)].storage
    return storage.state if isinstance(storage, StateSlot) else None


def operands(arguments: tuple[object, ...]) -> tuple[int, ...]:
    """Return the ids of the values among an instruction's arguments, in order."""
    found: list[int] = []
    for argument in arguments:
        items = argument if isinstance(argument, tuple) else (argument,)
        found.extend(item.value for item in items if isinstance(item, Ref))
    return tuple(found)
