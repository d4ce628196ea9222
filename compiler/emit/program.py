"""Turn the final IR program into `schema.Program`.

The offsets of weights in files are not known yet and are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvc.compiler.emit.graph import emit_graph
from kvc.compiler.ir import Constant, Method, Program, State
from kvc.compiler.ir.control import blocks_by_number, blocks_of, entries
from kvc.compiler.ir.partitions import Lowered
from kvc.compiler.place import Verdict
from kvc.compiler.place.lifetimes import with_workspaces
from kvc.compiler.weights.sources import Slot
from kvc.schema import model
from kvc.schema.accesses import with_accesses
from kvc.schema.control import graphs_within
from kvc.schema.graph import Graph
from kvc.schema.provenance import Provenance
from kvc.schema.types import Dim
from kvc.schema.uses import PLAIN, SLOT, constants_of
from kvc.schema.verify.effects import effects

PLACELESS = -1  # the blob number of names whose blob has not been written yet


@dataclass(frozen=True, slots=True)
class DelegateCall:
    """A partition to call.

    Attributes:
        backend: name of the backend.
        partition: the partition's code, a block.
        lowered: what the backend returns for it.
        over_operands: the attribute `Backend.over_operands` of the backend.
    """

    backend: str
    partition: Method
    lowered: Lowered
    over_operands: bool = False


def emit_program(
    program: Program,
    verdicts: Mapping[str, Sequence[Verdict]],
    calls: Sequence[DelegateCall],
    provenance: Provenance,
    metadata: Mapping[str, str],
) -> model.Program:
    """Return the file's program; `blobs` is empty and every name is PLACELESS.

    Args:
        program: a program whose writes are checked.
        verdicts: method name -> the verdicts on the method's writes.
        calls: the lowered partitions; the index of each is the number that the program
            has for it.
        provenance: the versions, the recipe and the digest of the source.
        metadata: the user's settings, as JSON text.
    """
    name_ids = {c.name: i for i, c in enumerate(program.constants)}
    apart = tuple(call.partition for call in calls if not call.over_operands)
    emitter = _Emitter(program, name_ids, verdicts, apart)
    places = {
        block.block: (i, j)
        for i, method in enumerate(entries(program))
        for j, block in enumerate(emitter.blocks_of(method))
    }
    tails = [0] * len(entries(program))
    for call in calls:
        number, _ = places[call.partition.block]
        tails[number] = max(tails[number], call.lowered.tail_nbytes)
    methods = tuple(
        emitter.emit(method, tail)
        for method, tail in zip(entries(program), tails, strict=True)
    )
    return model.Program(
        provenance=provenance,
        symbols=program.symbols,
        files=(model.DataFile("", b""),),
        blobs=(),
        names=tuple(
            model.NamedData(c.name, PLACELESS, c.type, _format(c), c.provenance)
            for c in program.constants
        ),
        states=tuple(_emit_state(state, name_ids) for state in program.states),
        cursors=program.cursors,
        methods=methods,
        delegates=tuple(
            _emit_delegate(call, methods, *places[call.partition.block])
            for call in calls
        ),
        metadata=dict(sorted(metadata.items())),
    )


def _format(constant: Constant) -> str:
    return SLOT if isinstance(constant.source, Slot) else PLAIN


class _Emitter:
    """Emits the methods of one program, with their blocks."""

    def __init__(
        self,
        program: Program,
        name_ids: Mapping[str, int],
        verdicts: Mapping[str, Sequence[Verdict]],
        apart: Sequence[Method],
    ) -> None:
        """Take the program.

        `apart` are the partitions whose results must not lie over operands.
        """
        self._symbols, self._name_ids = program.symbols, name_ids
        self._numbers = {m.name: i for i, m in enumerate(entries(program))}
        self._state_ids = {s.name: i for i, s in enumerate(program.states)}
        self._verdicts = verdicts
        self._blocks = blocks_by_number(program)
        within = (block for one in apart for block in blocks_of(one, self._blocks))
        self._apart = {block.block for block in (*apart, *within)}

    def blocks_of(self, method: Method) -> tuple[Method, ...]:
        """Return the blocks that a method runs, each after the block that runs it."""
        return blocks_of(method, self._blocks)

    def emit(self, method: Method, tail: int) -> model.Method:
        """Return a method as the file stores it.

        `tail` is the number of bytes that must follow the method's scratch memory.
        """
        blocks = self.blocks_of(method)
        numbers = {one.block: i for i, one in enumerate(blocks)}
        needs: dict[int, int] = {}  # number of a block -> bytes of its scratch memory
        made: dict[int, model.Block] = {}
        for block in reversed(blocks):  # inner blocks first
            assert block.block is not None
            ready = with_workspaces(block, numbers, needs)
            graph = self._graph(ready, tail)
            needs[block.block] = graph.scratch_nbytes
            made[numbers[block.block]] = model.Block(
                graph, self._updates(ready, graph, made)
            )
        ready = with_workspaces(method, numbers, needs)
        graph = self._graph(ready, tail)
        found = effects(graph)
        return model.Method(
            name=method.name,
            role=method.role,
            graph=graph,
            input_names=method.input_names,
            input_tree=method.input_tree,
            output_tree=method.output_tree,
            reads=found.reads,
            writes=found.writes,
            advances=tuple(_emit_advance(method, *one) for one in method.advances),
            updates=self._updates(ready, graph, made),
            blocks=tuple(made[i] for i in range(len(blocks))),
            adapts=self._numbers.get(method.adapts),
        )

    def _graph(self, method: Method, tail: int) -> Graph:
        return emit_graph(
            method,
            self._name_ids,
            self._state_ids,
            self._symbols,
            tail,
            over_operands=method.block not in self._apart,
        )

    def _updates(
        self, method: Method, graph: Graph, blocks: Mapping[int, model.Block]
    ) -> tuple[model.Update, ...]:
        updates = _updates(method, self._verdicts[method.name])
        return with_accesses(graph, updates, blocks)


def _updates(method: Method, verdicts: Sequence[Verdict]) -> tuple[model.Update, ...]:
    """Return the verdict on each instruction that writes, in order."""
    places = {v.id: i for i, node in enumerate(method.nodes) for v in node.outputs}
    found: dict[int, model.Update] = {}
    for verdict in verdicts:
        copies = tuple(sorted(places[value] for value in verdict.copies))
        at = places[verdict.value]
        before = found.get(at, model.Update(at, "", ()))
        merged = tuple(sorted({*before.copies, *copies}))
        found[at] = model.Update(at, before.reason or verdict.reason, merged)
    return tuple(found[at] for at in sorted(found))


def _emit_advance(
    method: Method, cursor: int, tokens: Dim | None, lengths: str
) -> model.Advance:
    index = method.input_names.index(lengths) if lengths else None
    return model.Advance(cursor, tokens, index)


def _emit_state(state: State, name_ids: Mapping[str, int]) -> model.State:
    return model.State(
        name=state.name,
        type=state.type,
        kind=state.kind,
        axis=state.axis,
        layout=tuple(range(len(state.type.dims))),
        initial=None if state.initial is None else name_ids[state.initial],
        reset=model.ResetRule.INITIAL,
        cursor=state.cursor,
        window=state.window,
    )


def _emit_delegate(
    call: DelegateCall, methods: Sequence[model.Method], method: int, block: int
) -> model.Delegate:
    graphs, lowered = graphs_within(methods[method], block), call.lowered
    return model.Delegate(
        backend=call.backend,
        method=method,
        block=block,
        payload=lowered.payload,
        names=tuple(sorted(set().union(*map(constants_of, graphs)))),
        memory=lowered.memory,
        workspace_nbytes=max(lowered.workspace_nbytes, graphs[0].scratch_nbytes),
        tail_nbytes=lowered.tail_nbytes,
    )
