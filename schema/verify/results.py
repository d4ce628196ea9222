"""Check that each value is defined once, in memory that its instruction may write.

In: a graph whose values have been checked, one instruction at a time. Out: nothing, or
the text of the error. Before each instruction, `Definitions` knows which values are
defined, and the owner of each value's memory.
"""

from typing import Final

from kvc.schema.control import read_control
from kvc.schema.graph import (
    Alias,
    Caller,
    Constant,
    CursorSlot,
    Graph,
    Instruction,
    Ref,
    Scratch,
    StateSlot,
)
from kvc.schema.model import StateKind
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.verify.values import Surroundings

# Operators whose results may be longer or shorter than the overwritten operand.
_GROWING: Final = frozenset({"kvc::append", "kvc::replace"})
_VIEWS: Final = frozenset(n for n, op in OPS.items() if op.aliasing is Aliasing.VIEW)
_SHARING: Final = _VIEWS | _GROWING  # results never have scratch of their own


class BadResult(ValueError):
    """A value is defined twice, or lies in memory that it may not use; see the text."""


class Definitions:
    """The values of a graph that are defined so far.

    Attributes:
        roots: for each value, the value that owns its memory, which can be the value
            itself.
    """

    def __init__(self, graph: Graph, around: Surroundings) -> None:
        self.types = [value.type for value in graph.values]
        self.storages = [value.storage for value in graph.values]
        self.states = around.states
        self._inputs = frozenset(graph.inputs)
        self.roots = {
            i: i
            for i, storage in enumerate(self.storages)
            if isinstance(storage, (Constant, StateSlot, CursorSlot))
        }
        self._axes: dict[int, int] = {}  # axes along which callers' arrays grow

    def add_input(self, value: int) -> None:
        """Record that an input of the graph is defined.

        Raises:
            BadResult: the input has no memory that a call can fill.
        """
        storage = self.storages[value]
        if value in self.roots or not isinstance(storage, (Scratch, Caller)):
            raise BadResult(
                "an input must have scratch of its own, or the caller's array"
            )
        self.roots[value] = value

    def add_results(self, step: Instruction) -> None:
        """Record that the results of an instruction are defined.

        Raises:
            BadResult: a result is defined already, or lies in the wrong memory.
        """
        for value in step.results:
            if value in self.roots:
                raise BadResult(f"defines value {value} again")
            storage = self.storages[value]
            if isinstance(storage, Scratch) and step.op not in _SHARING:
                self.roots[value] = value
            elif isinstance(storage, Alias):
                self.roots[value] = self._root(step, value, storage.base)
            else:
                raise BadResult(self._misplaced(step, value))

    def _misplaced(self, step: Instruction, value: int) -> str:
        kind = OPS[step.op].aliasing.value
        return f"a result of {kind} kind may not lie at {self.storages[value]}"

    def _root(self, step: Instruction, value: int, base: int) -> int:
        """Return the owner of the memory that a result shares with `base`."""
        first = step.arguments[0] if step.arguments else None
        aliasing = OPS[step.op].aliasing
        if aliasing is Aliasing.FRESH:
            return self._written_root(step, value, base)
        if aliasing is Aliasing.CONTROL:
            return self._controlled_root(step, value, base)
        if not isinstance(first, Ref) or first.value != base:
            raise BadResult(self._misplaced(step, value))
        root = self.roots[base]
        if aliasing is Aliasing.UPDATE:
            self._check_writable(root)
        if step.op in _GROWING:
            axis, storage = step.arguments[2], self.storages[root]
            if not isinstance(axis, int):
                raise BadResult("grows along an axis that is no number")
            axis %= len(self.types[base].dims)
            if isinstance(storage, StateSlot):
                state = self.states[storage.state]
                fits = state.kind is StateKind.APPEND and state.axis == axis
            elif isinstance(storage, Caller) and step.op == "kvc::append":
                fits = self._axes.setdefault(root, axis) == axis
            else:
                fits = False
            if not fits:
                raise BadResult(f"grows memory that does not grow along axis {axis}")
        return root

    def _controlled_root(self, step: Instruction, value: int, base: int) -> int:
        """Return the owner of the memory that a control instruction's result shares.

        `base` is the operand whose memory the result shares.
        """
        control, at = read_control(step.op, step.arguments), step.results.index(value)
        over = control.over[at] if at < len(control.over) else None
        inside = over is not None and 0 <= over < len(control.operands)
        if over is None or not inside or control.operands[over] != Ref(base):
            raise BadResult(self._misplaced(step, value))
        self._check_writable(self.roots[base])
        return self.roots[base]

    def _check_writable(self, root: int) -> None:
        storage = self.storages[root]
        if isinstance(storage, (Constant, CursorSlot)):
            what = "a constant" if isinstance(storage, Constant) else "a cursor"
            raise BadResult(f"writes over {what}")

    def _written_root(self, step: Instruction, value: int, base: int) -> int:
        """Return the owner of the memory that an ordinary result overwrites.

        The operator is neither a view nor an update. In scratch memory, only an operand
        of a pointwise operator is overwritten, and no input of the graph.
        """
        root = self.roots.get(base)
        if root is None:
            raise BadResult(self._misplaced(step, value))
        if isinstance(self.storages[root], Scratch):
            reads = Ref(base) in step.arguments and root not in self._inputs
            fits = OPS[step.op].pointwise and reads
        else:
            fits = isinstance(self.storages[root], (StateSlot, Caller))
        if not fits:
            raise BadResult(self._misplaced(step, value))
        if self.types[base] != self.types[value]:
            raise BadResult(
                f"writes {self.types[value]} over a value of {self.types[base]}"
            )
        return root
