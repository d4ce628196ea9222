"""`bind_program`: write the methods of a program down as bound lists.

In: a verified program. Out: `Bounds`, or for each method why it
has no list. A method is bound at several sizes within bounds (`samples.py`); where the
steps are the same, and all numbers follow the sizes (`forms.py`), one list serves all
sizes within these bounds.
"""

from collections.abc import Mapping

from kvc.runtime.bound_lists.recording import CannotRecord, Recorded, record
from kvc.runtime.bound_lists.samples import Box, boxes_of, fixed_boxes, samples_of
from kvc.runtime.bound_lists.tables import UNEQUAL, Tables
from kvc.runtime.native.library import native_library
from kvc.schema.bounds import Bounds
from kvc.schema.errors import KvcError
from kvc.schema.graph import Caller
from kvc.schema.left import needs_torch, why_torch
from kvc.schema.model import Program
from kvc.schema.types import symbols_in


def why_unbound(program: Program, method: int) -> str:
    """Return why a method can have no bound list, "" if it can."""
    own = program.methods[method]
    if needs_torch(own.graph, own.graphs[1:]):
        return why_torch(own.graph, own.graphs[1:])
    if own.adapts is not None:
        return "it is for rows with adapters"
    storages = (value.storage for value in own.graph.values)
    if any(isinstance(storage, Caller) for storage in storages):
        return "it has inputs in the caller's own arrays"
    return ""


def bind_program(program: Program) -> tuple[Bounds | None, Mapping[str, str]]:
    """Return the bound lists of a program.

    Args:
        program: a verified program; its weights need not exist.

    Returns:
        The lists, None if there are none; and for each method without a list, why.
    """
    library = native_library()
    if library is None:
        return None, {
            one.name: "the native library is missing" for one in program.methods
        }
    tables, refused = Tables(), dict[str, str]()
    for number, method in enumerate(program.methods):
        reason = why_unbound(program, number)
        if not reason:
            reason = _Lister(program, number, tables).add()
        if reason:
            refused[method.name] = reason
    return tables.bounds(library.version), refused


class _Lister:
    """The lists of one method, and how they are found."""

    def __init__(self, program: Program, method: int, tables: Tables) -> None:
        self._program, self._method, self._tables = program, method, tables
        fixed = symbols_in(state.type for state in program.states)
        graphs = program.methods[method].graphs
        used = symbols_in(value.type for graph in graphs for value in graph.values)
        names = [symbol.name for symbol in program.symbols]
        self._fixed = [name in fixed for name in names]
        self._used = [name in used for name in names]

    def add(self) -> str:
        """Add all lists of the method; return why there is none, "" if there is one."""
        reason = "its sizes have no values"
        added = False
        for box in boxes_of(self._program.symbols, self._used):
            try:
                reason = self._add(box)
                if reason == UNEQUAL:
                    for one in fixed_boxes(box, self._used, self._fixed):
                        added |= not self._add(one)
            except CannotRecord as error:
                return str(error)
            added |= not reason
        return "" if added else reason

    def _add(self, box: Box) -> str:
        """Add the list for a box of sizes; return why there is none."""
        samples, made = list[tuple[int, ...]](), list[Recorded]()
        names = [symbol.name for symbol in self._program.symbols]
        reason = ""
        for sizes in samples_of(box, self._used, self._fixed):
            given = dict(zip(names, sizes, strict=True))
            try:
                found = record(self._program, self._method, given)
            except KvcError as error:  # sizes that do not go together
                reason = f"it cannot be bound: {error}"
                continue
            samples.append(sizes)
            made.append(found)
        if not made:
            return reason
        return self._tables.add(self._method, box, samples, made)
