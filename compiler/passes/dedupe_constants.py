"""Give equal constants one name: those of one source, and equal literals."""

from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.ir import Constant, Method, Program, Value
from kvc.compiler.ir.rewrite import each_method, rename_node, rename_results
from kvc.compiler.weights.constants import bytes_of, read
from kvc.compiler.weights.sources import TensorSource

_LITERAL_BYTES = 1 << 16  # literals up to this size are compared by content


@dataclass(frozen=True, slots=True)
class DedupeConstants:
    """Keep the first of equal constants.

    Weights are compared by where they come from, without reading them; equal bytes
    of different origin are found when blobs are written. Literals in the code are
    small and have no identity across methods, so these are compared by content.
    """

    name: ClassVar[str] = "dedupe-constants"

    def run(self, program: Program) -> Program:
        """Return the program with each constant named once."""
        first: dict[object, str] = {}
        names = {c.name: first.setdefault(_key(c), c.name) for c in program.constants}
        kept = tuple(c for c in program.constants if names[c.name] == c.name)
        program = replace(program, constants=kept)
        return each_method(program, lambda method: _rebind(method, names))


def _key(constant: Constant) -> object:
    source, kind = constant.source, constant.type
    literal = isinstance(source, TensorSource) and constant.provenance == "literal"
    if literal and kind.nbytes({}) <= _LITERAL_BYTES:
        return (kind, bytes(bytes_of(read(source))))
    initial = constant.provenance == "initial value"  # a state's own, never shared
    return (kind, source, initial)


def _rebind(method: Method, names: dict[str, str]) -> Method:
    first: dict[str, Value] = {}
    renamed: dict[int, Value] = {}
    kept = []
    for value, name in method.constants:
        if names[name] in first:
            renamed[value.id] = first[names[name]]
        else:
            first[names[name]] = value
            kept.append((value, names[name]))
    nodes = tuple(rename_node(node, renamed) for node in method.nodes)
    changed = replace(method, constants=tuple(kept), nodes=nodes)
    return rename_results(changed, renamed)
