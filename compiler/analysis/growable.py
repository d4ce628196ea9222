"""Find the values whose memory has spare capacity along an axis.

In: a program whose growing caches use `kvc::append`. Out: for each method and block,
the values with spare capacity and the axis of each. Spare capacity leaves gaps between
rows, so some views of these values are impossible, and a backend must not treat their
memory as contiguous. A result of branches has spare capacity if a branch can return
such a value.
"""

from collections.abc import Mapping

from kvc.compiler.ir import Method, Program, Value
from kvc.compiler.ir.control import blocks_by_number, control_of, entries

APPEND = "kvc::append"
Growable = Mapping[int, int]  # id of a value -> axis


def find_growable(program: Program) -> dict[str, Growable]:
    """Return the values with spare capacity, by the name of their method."""
    finder = _Finder(program)
    for method in entries(program):
        finder.walk(method, {})
    return finder.found


class _Finder:
    """Collects the growable values of one program."""

    def __init__(self, program: Program) -> None:
        self._grows = {s.name: s.grows for s in program.states if s.grows is not None}
        self._blocks = blocks_by_number(program)
        self.found: dict[str, Growable] = {}

    def walk(self, method: Method, given: Mapping[int, int]) -> dict[int, int]:
        """Record a method's growable values; return the id of each -> its axis.

        `given`: index of a growable input -> its axis.
        """
        growable = {method.inputs[i].id: axis for i, axis in given.items()}
        growable.update(
            (v.id, self._grows[n]) for v, n in method.state_in if n in self._grows
        )
        for node in method.nodes:
            if node.op == APPEND and node.inputs[0] in method.inputs:
                growable[node.inputs[0].id] = append_axis(
                    node.arguments[2], node.outputs[0]
                )
        self.found[method.name] = growable
        for node in method.nodes:
            if node.op == APPEND:
                growable[node.outputs[0].id] = append_axis(
                    node.arguments[2], node.outputs[0]
                )
            control = control_of(node)
            if control is None:
                continue
            passed = {
                i: growable[value.id]
                for i, value in enumerate(control.operands)
                if value.id in growable and not control.is_scanned(i)
            }
            for number in control.blocks:
                block = self._blocks[number]
                inside = self.walk(block, passed)
                for result, value in zip(node.outputs, block.outputs, strict=False):
                    if value.id in inside and value.type == result.type:
                        growable[result.id] = inside[value.id]
        return growable


def append_axis(axis: object, result: Value) -> int:
    """Return the axis of an append, counted from 0."""
    assert isinstance(axis, int)
    return axis % len(result.type.dims)
