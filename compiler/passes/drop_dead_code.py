"""Drop nodes whose results nobody reads, then bindings, constants and states."""

from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.ir import Method, Program
from kvc.compiler.ir.control import blocks_by_number, blocks_of, entries
from kvc.compiler.ir.rewrite import each_method
from kvc.schema.ops import OPS, Aliasing


@dataclass(frozen=True, slots=True)
class DropDeadCode:
    """Keep what outputs and states need; the inputs of a method always stay."""

    name: ClassVar[str] = "drop-dead-code"

    def run(self, program: Program) -> Program:
        """Return the program without dead nodes, constants and states."""
        program = _without_idle_blocks(each_method(program, _drop_in_method))
        states = {n for m in program.methods for _, n in m.state_in + m.state_out}
        kept_states = tuple(s for s in program.states if s.name in states)
        constants = {name for m in program.methods for _, name in m.constants}
        constants |= {s.initial for s in kept_states if s.initial is not None}
        kept_constants = tuple(c for c in program.constants if c.name in constants)
        return replace(program, states=kept_states, constants=kept_constants)


def _without_idle_blocks(program: Program) -> Program:
    """Drop the blocks that no node runs any more."""
    blocks = blocks_by_number(program)
    run = {b.block for m in entries(program) for b in blocks_of(m, blocks)}
    kept = (m for m in program.methods if m.block is None or m.block in run)
    return replace(program, methods=tuple(kept))


def _drop_in_method(method: Method) -> Method:
    unchanged = {(value.id, name) for value, name in method.state_in}
    state_out = tuple(b for b in method.state_out if (b[0].id, b[1]) not in unchanged)
    inputs = {
        (v.id, name) for v, name in zip(method.inputs, method.input_names, strict=True)
    }
    input_out = tuple(b for b in method.input_out if (b[0].id, b[1]) not in inputs)
    method = replace(method, state_out=state_out, input_out=input_out)
    needed = {value.id for value in method.results}
    kept = []
    for node in reversed(method.nodes):
        check = OPS[node.op].aliasing is Aliasing.CHECK
        if check or any(value.id in needed for value in node.outputs):
            kept.append(node)
            needed |= {value.id for value in node.inputs}
    return replace(
        method,
        nodes=tuple(reversed(kept)),
        constants=tuple(b for b in method.constants if b[0].id in needed),
        state_in=tuple(b for b in method.state_in if b[0].id in needed),
        cursor_in=tuple(b for b in method.cursor_in if b[0].id in needed),
    )
