"""From the final IR program to `schema.Program`, all but where its blobs lie."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvc.compiler.backends.base import Lowered
from kvc.compiler.emit_graph import emit_graph
from kvc.compiler.in_place import Verdict
from kvc.compiler.ir import Method, Program
from kvc.compiler.positions import Counting, find_counting
from kvc.compiler.states import describe_states
from kvc.schema import model
from kvc.schema.verify.effects import state_effects

PLACELESS = -1  # blob of a name whose blob has not been written yet


@dataclass(frozen=True, slots=True)
class DelegateCall:
    """A lowered part: its backend and the method that calls it."""

    backend: str
    method: str
    lowered: Lowered


def emit_program(
    program: Program,
    verdicts: Mapping[str, Sequence[Verdict]],
    calls: Sequence[DelegateCall],
    provenance: model.Provenance,
    metadata: Mapping[str, str],
) -> model.Program:
    """Return the file's program; `blobs` is empty and every name is PLACELESS.

    Args:
        program: proven.
        verdicts: on the writes of each method.
        calls: the delegates, by number.
        provenance: who made the bundle of what.
        metadata: the user's settings, as JSON text.
    """
    name_ids = {c.name: i for i, c in enumerate(program.constants)}
    method_ids = {m.name: i for i, m in enumerate(program.methods)}
    counting = find_counting(program)
    tails = {
        method.name: max(
            (c.lowered.tail_nbytes for c in calls if c.method == method.name), default=0
        )
        for method in program.methods
    }
    return model.Program(
        provenance=provenance,
        symbols=program.symbols,
        files=(model.DataFile("", b""),),
        blobs=(),
        names=tuple(
            model.NamedData(c.name, PLACELESS, c.type, "plain", c.provenance)
            for c in program.constants
        ),
        states=describe_states(program, counting, name_ids),
        position=counting.position,
        methods=tuple(
            _emit_method(
                method,
                name_ids,
                program,
                counting,
                verdicts[method.name],
                tails[method.name],
            )
            for method in program.methods
        ),
        delegates=tuple(_emit_delegate(call, method_ids, name_ids) for call in calls),
        metadata=dict(sorted(metadata.items())),
    )


def _emit_method(
    method: Method,
    name_ids: Mapping[str, int],
    program: Program,
    counting: Counting,
    verdicts: Sequence[Verdict],
    tail_nbytes: int,
) -> model.Method:
    state_ids = {s.name: i for i, s in enumerate(program.states)}
    graph = emit_graph(method, name_ids, state_ids, program.symbols, tail_nbytes)
    reads, writes = state_effects(graph)
    return model.Method(
        name=method.name,
        role=method.role,
        graph=graph,
        input_names=method.input_names,
        input_tree=method.input_tree,
        output_tree=method.output_tree,
        reads=reads,
        writes=writes,
        advance=counting.advances.get(method.name),
        updates=_updates(method, verdicts),
    )


def _updates(method: Method, verdicts: Sequence[Verdict]) -> tuple[model.Update, ...]:
    """Return the verdicts in terms of instructions, one for each that writes."""
    places = {v.id: i for i, node in enumerate(method.nodes) for v in node.outputs}
    found: dict[int, model.Update] = {}
    for verdict in verdicts:
        copies = tuple(sorted(places[value] for value in verdict.copies))
        at = places[verdict.value]
        before = found.get(at, model.Update(at, "", ()))
        merged = tuple(sorted({*before.copies, *copies}))
        found[at] = model.Update(at, before.reason or verdict.reason, merged)
    return tuple(found[at] for at in sorted(found))


def _emit_delegate(
    call: DelegateCall, method_ids: Mapping[str, int], name_ids: Mapping[str, int]
) -> model.Delegate:
    return model.Delegate(
        backend=call.backend,
        method=method_ids[call.method],
        payload=call.lowered.payload,
        names=tuple(sorted(name_ids[name] for name in call.lowered.names)),
        memory=call.lowered.memory,
        workspace_nbytes=call.lowered.workspace_nbytes,
        tail_nbytes=call.lowered.tail_nbytes,
    )
