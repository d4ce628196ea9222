"""Give parts of a program to backends, and prove which of its writes happen in place.

In: a program that all passes have seen. Out: the same, with each backend's partitions
as blocks that delegates run, and the verdicts on its writes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvc.compiler.analysis.growable import find_growable
from kvc.compiler.backends import Backend, Partition
from kvc.compiler.emit.program import DelegateCall
from kvc.compiler.ir import Method, Node, Program
from kvc.compiler.ir.control import blocks_by_number, blocks_of, control_of, entries
from kvc.compiler.lower.answers import lowered_partitions, supported_nodes
from kvc.compiler.lower.buckets import check_fixed, values_of
from kvc.compiler.lower.moves import with_moves
from kvc.compiler.lower.outline import outline
from kvc.compiler.passes.base import check
from kvc.compiler.place import Verdict, in_write_order, prove_all
from kvc.recipes import Recipe
from kvc.schema.buckets import fixed_sizes

Parts = Mapping[Backend, Mapping[str, Sequence[Partition]]]


@dataclass(frozen=True, slots=True)
class Lowering:
    """A program whose partitions are cut and proven.

    Attributes:
        program: in write order.
        verdicts: on the writes of each method and block.
        owners: whose each partition is, by its block.
        backends: in the order in which they took nodes.
    """

    program: Program
    verdicts: Mapping[str, tuple[Verdict, ...]]
    owners: Mapping[int, Backend]
    backends: tuple[Backend, ...]

    def partitions(self, recipe: Recipe | None = None) -> Parts:
        """Return the partitions of each backend, by what calls them.

        `recipe` is who gives fixed shapes, for backends that need them.

        Raises:
            BadBuckets: one needs fixed shapes, and the recipe does not give them.
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
        """Ask backends what each of their partitions needs beside its code.

        Raises:
            BadBackend: one answers something wrong.
        """
        return [call for one, some in parts.items() for call in self._calls(one, some)]

    def _calls(
        self, backend: Backend, partitions: Mapping[str, Sequence[Partition]]
    ) -> list[DelegateCall]:
        constants = {c.name: c for c in self.program.constants}
        symbols = self.program.symbols
        lowered = lowered_partitions(backend, partitions, constants, symbols)
        return [
            DelegateCall(backend.name, partition.graph, made)
            for name, some in partitions.items()
            for partition, made in zip(some, lowered[name], strict=True)
        ]


def lower(program: Program, backends: Sequence[Backend]) -> Lowering:
    """Return a program with the partitions of backends, who take nodes in their order.

    Raises:
        BadBackend: one takes what it cannot.
    """
    owners: dict[int, Backend] = {}
    for backend in backends:
        program = _cut(program, backend, owners)
    program, verdicts = update_in_place(program)
    return Lowering(program, verdicts, owners, tuple(backends))


def _cut(program: Program, backend: Backend, owners: dict[int, Backend]) -> Program:
    """Cut a backend's partitions out of all methods, and of the blocks that are left.

    Args:
        program: that others may have taken partitions of.
        backend: that takes some.
        owners: whose each partition is, by its block; those of this backend are added.
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
        taken = supported_nodes(backend, method)
        outlined = outline(
            method,
            taken,
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
    """Order each method so that its writes happen in place.

    After lowering, since that reorders nodes.
    """
    proofs = prove_all(program)
    methods = tuple(proofs[method.name].method for method in program.methods)
    proven = replace(program, methods=methods)
    check(proven, "updating in place")
    return proven, {name: proof.verdicts for name, proof in proofs.items()}
