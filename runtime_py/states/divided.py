"""Divide the states of a session among owners of memory, behind one owner.

An owner allocates the memory of states: the host, or a backend with separate memory.
In: a program; functions that make an owner for some groups of the program's states.
Out: one owner of all groups, which passes each operation on to the owner of the group.
A backend may own a state that only partitions of that backend read and write; the host
owns all other states.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

from kvc.runtime.memory.arenas import Arena
from kvc.runtime.states.owner import Group, Owner, Store
from kvc.schema.control import read_control
from kvc.schema.graph import Instruction, Ref, StateSlot
from kvc.schema.model import Method, Program, ResetRule
from kvc.schema.ops import DELEGATE


def find_backends(program: Program, groups: Sequence[Group]) -> tuple[str, ...]:
    """Return for each group the one backend that accesses its states, or "".

    Returns nothing for a program whose methods all have bound lists, since these
    access states of the host.
    """
    if program.is_listed:
        return ()
    found: list[set[str]] = [set() for _ in program.states]
    for number, method in enumerate(program.methods if program.delegates else ()):
        own = (
            partition for partition in program.delegates if partition.method == number
        )
        backends = {partition.block: partition.backend for partition in own}
        for state, block in _touches(method):
            found[state].add("" if block is None else backends[block])
    touching = (set().union(*map(found.__getitem__, g.states)) for g in groups)
    return tuple(names.pop() if len(names) == 1 else "" for names in touching)


def _touches(method: Method) -> Iterator[tuple[int, int | None]]:
    """Yield the states that a method accesses, as pairs (state, block).

    The block is that of the partition that accesses the state; None outside of
    partitions. A state that an output aliases counts as accessed outside of partitions.
    """
    graph = method.graph
    roots = (graph.values[graph.root_of(i)].storage for i in range(len(graph.values)))
    over = {i: s.state for i, s in enumerate(roots) if isinstance(s, StateSlot)}
    for step in graph.instructions:
        block = None
        if step.op == DELEGATE:
            (block,) = read_control(step.op, step.arguments).blocks
        for value in _read(step):
            if value in over:
                yield over[value], block
    for value in graph.outputs:
        if value in over:
            yield over[value], None


def _read(step: Instruction) -> Iterator[int]:
    for argument in step.arguments:
        for item in argument if isinstance(argument, tuple) else (argument,):
            if isinstance(item, Ref):
                yield item.value


def divide(
    groups: Sequence[Group],
    backends: Sequence[str],
    own: Callable[[str, Sequence[Group]], Owner | None],
    own_on_host: Callable[[Sequence[Group]], Owner],
) -> Owner:
    """Return the owner of all groups of a new session.

    Args:
        groups: the groups of the program's states.
        backends: for each group the name of the backend that may own the group; "" if
            only the host may own it.
        own: returns the owner that a backend makes for groups; None if the host is to
            own these groups.
        own_on_host: returns an owner of groups in host memory.

    Raises:
        OutOfMemory: there is not enough memory for an owner.
    """
    wanted: dict[str, list[int]] = {"": []}
    for number, name in enumerate(backends):
        wanted.setdefault(name, []).append(number)
    left = wanted.pop("")
    parts: list[tuple[Owner, Sequence[int]]] = []
    try:
        for name, numbers in wanted.items():
            owner = own(name, [groups[number] for number in numbers])
            if owner is None:
                left += numbers
            else:
                parts.append((owner, numbers))
        left.sort()
        host = own_on_host([groups[number] for number in left])
    except BaseException:
        Divided(parts).close()
        raise
    return Divided([(host, left), *parts]) if parts else host


class Divided:
    """Several owners behind the interface of a single owner; see `Owner`."""

    def __init__(self, parts: Sequence[tuple[Owner, Sequence[int]]]) -> None:
        """Combine owners, each given with the numbers of the groups that it owns."""
        self._parts = parts
        stores: dict[int, Store] = {}
        arenas: dict[ResetRule, Arena] = {}
        for owner, numbers in parts:
            stores.update(zip(numbers, owner.stores, strict=True))
            arenas.update(owner.arenas)
        self.stores: Sequence[Store] = [stores[number] for number in sorted(stores)]
        self.arenas: Mapping[ResetRule, Arena] = arenas

    def clone(self, held: Sequence[int]) -> "Divided":
        twins: list[tuple[Owner, Sequence[int]]] = []
        try:
            for owner, numbers in self._parts:
                twin = owner.clone([held[number] for number in numbers])
                twins.append((twin, numbers))
        except BaseException:
            Divided(twins).close()
            raise
        return Divided(twins)

    def discard(self, rule: ResetRule) -> None:
        for owner, _ in self._parts:
            owner.discard(rule)

    def synchronise(self) -> None:
        with ExitStack() as stack:
            for owner, _ in self._parts:
                stack.callback(owner.synchronise)

    def close(self) -> None:
        with ExitStack() as stack:
            for owner, _ in self._parts:
                stack.callback(owner.close)
