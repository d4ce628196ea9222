"""The IR as text, one line for each node: for readers and for expected test output."""

from collections.abc import Iterator, Set

from kvc.compiler.ir.graph import Argument, Method, Node, Program, State, Value
from kvc.schema.dtypes import DType
from kvc.schema.model import StateKind


def program_text(program: Program) -> str:
    """Return the whole program as text, ending in a newline."""
    return "\n".join(_program_lines(program)) + "\n"


def _program_lines(program: Program) -> Iterator[str]:
    for symbol in program.symbols:
        yield f"symbol {symbol.name} in {symbol.lower}..{symbol.upper}"
    for constant in program.constants:
        yield f"constant {constant.name}: {constant.type} ({constant.provenance})"
    for state in program.states:
        initial = state.initial or "zeros"
        yield f"state {state.name}: {state.type} = {initial}{_said(state)}"
    for cursor in program.cursors:
        rows = "" if cursor.rows is None else f" of {cursor.rows} rows"
        yield f"cursor {cursor.name}: {cursor.kind.name}{rows} up to {cursor.capacity}"
    grown = {state.name for state in program.states if state.grows is not None}
    for method in program.methods:
        yield from _method_lines(method, grown)


def _said(state: State) -> str:
    """Return the kind, axis, cursor and window of a state as text."""
    text = "" if state.grows is None else f" grows along {state.grows}"
    if state.kind is not StateKind.PLAIN:
        text += f" {state.kind.name} along {state.axis}"
    text += "" if state.cursor is None else f" at cursor {state.cursor}"
    return text + ("" if state.window is None else f" window {state.window}")


def _method_lines(method: Method, grown: Set[str]) -> Iterator[str]:
    role = f" role {method.role}" if method.role else ""
    role += f" adapts {method.adapts}" if method.adapts else ""
    kind = "method" if method.block is None else f"block {method.block}"
    yield f"{kind} {method.name}{role}"
    for value, name in zip(method.inputs, method.input_names, strict=True):
        filled = " (position)" if name == method.position else ""
        yield f"  %{value.id} = input {name}: {value.type}{filled}"
    for value, name in method.constants:
        yield f"  %{value.id} = constant {name}"
    for value, name in method.state_in:
        kind = f": {value.type}" if name in grown else ""
        yield f"  %{value.id} = state {name}{kind}"
    for value, slot in method.cursor_in:
        field = slot.field.name.lower()
        yield f"  %{value.id} = cursor {slot.cursor} {field}: {value.type}"
    for node in method.nodes:
        yield f"  {_node_text(node)}"
    for value, name in method.state_out:
        yield f"  state {name} = %{value.id}"
    for value, name in method.input_out:
        yield f"  input {name} = %{value.id}"
    yield f"  return {', '.join(f'%{value.id}' for value in method.outputs)}"


def _node_text(node: Node) -> str:
    arguments = ", ".join(argument_text(a) for a in node.arguments)
    if not node.outputs:
        return f"{node.op}({arguments})"
    outputs = ", ".join(f"%{value.id}" for value in node.outputs)
    types = ", ".join(str(value.type) for value in node.outputs)
    return f"{outputs} = {node.op}({arguments}): {types}"


def argument_text(argument: Argument) -> str:
    """Return one argument as text."""
    if isinstance(argument, Value):
        return f"%{argument.id}"
    if isinstance(argument, tuple):
        return f"[{', '.join(argument_text(item) for item in argument)}]"
    if isinstance(argument, DType):
        return argument.label
    if isinstance(argument, str):
        return f"'{argument}'"
    return str(argument)
