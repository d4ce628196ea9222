"""Give parts of a program to backends, and prove which writes happen in place.

In: a program after all passes. Out: the same program, in which each backend's
partitions are blocks that delegates run; and for each write a verdict: the write
happens in place, or it copies bytes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kvc.compiler.analysis.growable import find_growable
from kvc.compiler.backends.base import Backend
from kvc.compiler.emit.program import DelegateCall
from kvc.compiler.ir import Constant, Method, Node, Program, Value
from kvc.compiler.ir.control import blocks_by_number, blocks_of, control_of, entries
from kvc.compiler.ir.partitions import Lowered, Partition
from kvc.compiler.lower.buckets import check_fixed, values_of
from kvc.compiler.lower.cut_partitions import outline
from kvc.compiler.passes.base import check
from kvc.compiler.place import Verdict, in_write_order, prove_all
from kvc.compiler.place.persistent import with_old_contents
from kvc.recipes import Recipe
from kvc.schema.buckets import fixed_sizes
from kvc.schema.errors import BadBackend, listing
from kvc.schema.model import MemoryKind
from kvc.schema.ops import OPS, RESHAPING_VIEWS, Aliasing
from kvc.schema.types import Symbol

# Check the answers of a backend, which may be code of other packages.


def supported_nodes(backend: Backend, method: Method) -> frozenset[int]:
    """Return the indices of the nodes of a method that a backend takes.

    Raises:
        BadBackend: the backend does not return indices of nodes.
    """
    found: object = backend.supports(method)
    where = f"supports, method {method.name}"
    if not isinstance(found, Iterable):
        raise _bad(backend, where, "a set of indices", repr(found))
    indices = list(found)
    for index in indices:
        if type(index) is not int or not 0 <= index < len(method.nodes):
            expected = f"integers from 0 to {len(method.nodes) - 1}"
            raise _bad(backend, where, expected, repr(index))
    return frozenset(indices)


def lowered_partitions(
    backend: Backend,
    partitions: Mapping[str, Sequence[Partition]],
    constants: Mapping[str, Constant],
    symbols: tuple[Symbol, ...],
) -> dict[str, tuple[Lowered, ...]]:
    """Lower the partitions of a backend; keys are names of the methods that call them.

    Raises:
        BadBackend: the backend does not return one valid `Lowered` for each partition.
    """
    found: object = backend.lower(partitions, constants, symbols)
    if not isinstance(found, Mapping):
        expected = "a mapping from methods to a Lowered for each partition"
        raise _bad(backend, "lower", expected, repr(found))
    if set(found) != set(partitions):
        expected = f"a key for each of the methods {listing(sorted(partitions))}"
        raise _bad(backend, "lower", expected, listing(sorted(map(str, found))))
    return {
        name: _checked(backend, f"lower, method {name}", found[name], some)
        for name, some in partitions.items()
    }


def _checked(
    backend: Backend,
    where: str,
    found: object,
    partitions: Sequence[Partition],
) -> tuple[Lowered, ...]:
    if not isinstance(found, Iterable):
        raise _bad(
            backend, where, f"a Lowered for each of {len(partitions)}", repr(found)
        )
    items = tuple(found)
    if len(items) != len(partitions):
        raise _bad(
            backend, where, f"a Lowered for each of {len(partitions)}", f"{len(items)}"
        )
    for item in items:
        if not isinstance(item, Lowered):
            raise _bad(backend, where, "each item a Lowered", repr(item))
        for expected, value, good in _facts(item):
            if not good:
                raise _bad(backend, where, expected, repr(value))
    return items


def _facts(item: Lowered) -> Iterable[tuple[str, object, bool]]:
    """Yield (expected, found, whether found is valid) for each field of a `Lowered`."""
    payload: object = item.payload
    yield "payload of bytes", payload, isinstance(payload, bytes)
    yield "memory a MemoryKind", item.memory, isinstance(item.memory, MemoryKind)
    for field in ("workspace_nbytes", "tail_nbytes"):
        nbytes = getattr(item, field)
        yield f"{field} a count", nbytes, type(nbytes) is int and nbytes >= 0


def _bad(backend: Backend, where: str, expected: str, found: str) -> BadBackend:
    return BadBackend(backend=backend.name, where=where, expected=expected, found=found)


# Write copies into states as nodes, which a backend can run.


def with_moves(method: Method, grows: Mapping[str, int]) -> Method:
    """Return a method with a copy node for each new content that no node computes.

    An example is an input that becomes the content of a state. States in `grows` (by
    name) are left out: a copy cannot change their length.
    """
    method = with_old_contents(method, grows)
    makers = {value.id: node for node in method.nodes for value in node.outputs}
    states = {name: value for value, name in method.state_in if name not in grows}
    inputs = dict(zip(method.input_names, method.inputs, strict=True))
    moves: list[Node] = []

    def moved(
        pairs: tuple[tuple[Value, str], ...], olds: Mapping[str, Value]
    ) -> Iterator[tuple[Value, str]]:
        for new, name in pairs:
            old, whole = olds.get(name), _whole(makers, new)
            made = whole.id in makers and not _is_view(makers[whole.id])
            if old is None or made or _root(makers, whole).id == old.id:
                yield new, name
                continue
            result = Value(method.next_id() + len(moves), old.type)
            moves.append(Node("aten::copy", (old, new), (result,)))
            yield result, name

    state_out = tuple(moved(method.state_out, states))
    input_out = tuple(moved(method.input_out, inputs))
    return replace(
        method, nodes=(*method.nodes, *moves), state_out=state_out, input_out=input_out
    )


def _whole(makers: Mapping[int, Node], value: Value) -> Value:
    """Return the value that `value` reshapes, or `value` if it is no reshape."""
    while value.id in makers and makers[value.id].op in RESHAPING_VIEWS:
        value = makers[value.id].inputs[0]
    return value


def _root(makers: Mapping[int, Node], value: Value) -> Value:
    """Return the value that `value` is a view of, or `value` if it is no view."""
    while value.id in makers and _is_view(makers[value.id]):
        value = makers[value.id].inputs[0]
    return value


def _is_view(node: Node) -> bool:
    return OPS[node.op].aliasing is Aliasing.VIEW


# Cut partitions, and order writes.


Parts = Mapping[Backend, Mapping[str, Sequence[Partition]]]


@dataclass(frozen=True, slots=True)
class Lowering:
    """A program with its partitions as blocks, and with its writes proven.

    Attributes:
        program: the program, with nodes in write order.
        verdicts: name of a method or block -> the verdicts on its writes.
        owners: number of a partition's block -> the backend that runs the partition.
        backends: the backends, in the order in which they took nodes.
    """

    program: Program
    verdicts: Mapping[str, tuple[Verdict, ...]]
    owners: Mapping[int, Backend]
    backends: tuple[Backend, ...]

    def partitions(self, recipe: Recipe | None = None) -> Parts:
        """Return the partitions of each backend, by the method that calls them.

        `recipe` lists the sizes of symbols, for backends that need fixed shapes.

        Raises:
            BadBuckets: a backend needs fixed shapes, and the recipe does not list them.
        """
        return {each: self._partitions(each, recipe) for each in self.backends}

    def _partitions(
        self, backend: Backend, recipe: Recipe | None
    ) -> dict[str, list[Partition]]:
        program, blocks = self.program, blocks_by_number(self.program)
        partitions: dict[str, list[Partition]] = {}
        for method in program.methods:
            for node in method.nodes:
                for number in _blocks_at(node):
                    if self.owners.get(number) is backend:
                        code = (blocks[number], *blocks_of(blocks[number], blocks))
                        if backend.fixed_shapes and recipe is not None:
                            check_fixed(backend.name, code, program.symbols, recipe)
                        types = (v.type for graph in code for v in values_of(graph))
                        sizes = fixed_sizes(program.symbols, types)
                        partition = Partition(blocks[number], sizes)
                        partitions.setdefault(method.name, []).append(partition)
        return partitions

    def delegates(self, parts: Parts) -> list[DelegateCall]:
        """Have each backend lower its partitions; return one call for each partition.

        Raises:
            BadBackend: a backend does not return one valid `Lowered` for each
                partition.
        """
        return [call for one, some in parts.items() for call in self._calls(one, some)]

    def _calls(
        self, backend: Backend, partitions: Mapping[str, Sequence[Partition]]
    ) -> list[DelegateCall]:
        constants = {c.name: c for c in self.program.constants}
        symbols = self.program.symbols
        lowered = lowered_partitions(backend, partitions, constants, symbols)
        return [
            DelegateCall(backend.name, partition.graph, made, backend.over_operands)
            for name, some in partitions.items()
            for partition, made in zip(some, lowered[name], strict=True)
        ]


def lower(program: Program, backends: Sequence[Backend]) -> Lowering:
    """Cut partitions for each backend in turn, and prove the program's writes.

    Raises:
        BadBackend: a backend takes a node that it cannot take.
    """
    owners: dict[int, Backend] = {}
    for backend in backends:
        program = _cut(program, backend, owners)
    program, verdicts = update_in_place(program)
    return Lowering(program, verdicts, owners, tuple(backends))


def _cut(program: Program, backend: Backend, owners: dict[int, Backend]) -> Program:
    """Cut a backend's partitions out of all methods and out of other blocks.

    Blocks that are partitions of a backend stay unchanged.

    Args:
        program: the program; earlier backends may have partitions in it.
        backend: the backend that takes nodes.
        owners: number of a partition's block -> the backend that runs the partition;
            the new partitions are added.
    """
    blocks, growable = blocks_by_number(program), find_growable(program)
    done: list[Method] = []
    waiting = list(reversed(entries(program)))
    count = max(blocks, default=-1) + 1
    grows = {s.name: s.grows for s in program.states if s.grows is not None}
    new: dict[int, Backend] = {}
    while waiting:
        method = waiting.pop()
        if backend.in_place:
            method = with_moves(method, grows)
        order = in_write_order(method, program)
        method = order.method
        outlined = outline(
            method,
            supported_nodes(backend, method),
            count,
            growable[method.name],
            order.waits,
            backend.in_place,
            backend.foreign_views(method),
        )
        done.append(outlined.method)
        run = [number for node in outlined.method.nodes for number in _blocks_at(node)]
        left = [number for number in run if number in blocks and number not in owners]
        waiting += [blocks[number] for number in reversed(left)]
        for number in run:
            if number in owners:
                done += [blocks[number], *blocks_of(blocks[number], blocks)]
        for partition in outlined.partitions:
            done += [partition.graph, *blocks_of(partition.graph, blocks)]
        new.update((count + i, backend) for i in range(len(outlined.partitions)))
        count += len(outlined.partitions)
    owners.update(new)
    changed = replace(program, methods=tuple(done))
    check(changed, f"lowering to {backend.name}")
    return changed


def _blocks_at(node: Node) -> tuple[int, ...]:
    control = control_of(node)
    return () if control is None else control.blocks


def update_in_place(
    program: Program,
) -> tuple[Program, dict[str, tuple[Verdict, ...]]]:
    """Order the nodes of each method so that its writes happen in place.

    Return the program in that order, and name of a method -> verdicts on its writes.
    This is called after partitions are cut, which reorders nodes.
    """
    proofs = prove_all(program)
    proven = replace(
        program, methods=tuple(proofs[method.name].method for method in program.methods)
    )
    check(proven, "updating in place")
    return proven, {name: proof.verdicts for name, proof in proofs.items()}
