"""From the final IR program to `schema.Program`, all but where its blobs lie."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvc.compiler.backends.base import Lowered
from kvc.compiler.emit_graph import emit_graph
from kvc.compiler.ir import Method, Program
from kvc.compiler.states import describe_states, find_position
from kvc.schema import model

PLACELESS = -1  # blob of a name whose blob has not been written yet


@dataclass(frozen=True, slots=True)
class DelegateCall:
    """A lowered part: its backend and the method that calls it."""

    backend: str
    method: str
    lowered: Lowered


def emit_program(
    program: Program,
    calls: Sequence[DelegateCall],
    provenance: model.Provenance,
    metadata: Mapping[str, str],
) -> model.Program:
    """Return the file's program; `blobs` is empty and every name is PLACELESS.

    Args:
        program: in its final form.
        calls: the delegates, by number.
        provenance: who made the bundle of what.
        metadata: the user's settings, as JSON text.
    """
    name_ids = {c.name: i for i, c in enumerate(program.constants)}
    method_ids = {m.name: i for i, m in enumerate(program.methods)}
    state_ids = {s.name: i for i, s in enumerate(program.states)}
    return model.Program(
        provenance=provenance,
        symbols=program.symbols,
        files=(model.DataFile("", b""),),
        blobs=(),
        names=tuple(
            model.NamedData(c.name, PLACELESS, c.type, "plain", c.provenance)
            for c in program.constants
        ),
        states=describe_states(program, name_ids),
        position=find_position(program),
        methods=tuple(
            _emit_method(method, name_ids, state_ids, program)
            for method in program.methods
        ),
        delegates=tuple(_emit_delegate(call, method_ids, name_ids) for call in calls),
        metadata=dict(sorted(metadata.items())),
    )


def _emit_method(
    method: Method,
    name_ids: Mapping[str, int],
    state_ids: Mapping[str, int],
    program: Program,
) -> model.Method:
    return model.Method(
        name=method.name,
        role=method.role,
        graph=emit_graph(method, name_ids, state_ids, program.symbols),
        input_names=method.input_names,
        input_tree=method.input_tree,
        output_tree=method.output_tree,
        reads=tuple(sorted(state_ids[name] for name in _states_read(method))),
        writes=tuple(sorted(state_ids[name] for _, name in method.state_out)),
    )


def _states_read(method: Method) -> set[str]:
    """Return the states whose old content a method uses.

    A `copy` that closes the method takes the state's memory as its operand, but
    nothing of what is in it.
    """
    used = {value.id for value in method.outputs}
    for node in method.nodes:
        inputs = node.inputs[1:] if node.op == "aten::copy" else node.inputs
        used.update(value.id for value in inputs)
    return {name for value, name in method.state_in if value.id in used}


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
