"""Check the tables of bound lists: ids, runs and sizes, a column at a time.

In: a program whose states, cursors, names and methods are unchecked but for their ids.
Out: nothing, or the first mistake. After it, every number of a list refers to something
that exists. Whether operands lie in their memory, and whether kernels can take them,
depends on the sizes of a call: the native library checks it for each (`checks.cc`).
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvc.schema.bounds import BoundList, Bounds, Columns, RegionKind
from kvc.schema.digests import DIGEST_NBYTES
from kvc.schema.graph import CursorField
from kvc.schema.model import Program
from kvc.schema.uses import PLAIN, SLOT
from kvc.schema.verify.limits import MAX_DIM, MAX_RANK, MAX_TENSOR_NBYTES, Reporter

_WHERE: Final = "bound lists"
_MAX_FACTORS: Final = 8  # of a product of a form
_MAX_TERMS: Final = 64  # of a form
_MAX_LISTS: Final = 1024
_MAX_FORM: Final = 1 << 60  # of constants and factors of forms
_FIELDS: Final = len(CursorField)


def check_bounds(program: Program, report: Reporter) -> None:
    """Check the bound lists of a program, if it has any.

    Raises:
        BadProgram: a list refers to something that does not exist.
        LimitExceeded: there are more lists than kvc allows.
    """
    if program.bounds is not None:
        _Checker(program, program.bounds, report).check()


class _Checker:
    """The checks of the tables of one program."""

    def __init__(self, program: Program, bounds: Bounds, report: Reporter) -> None:
        self._program, self._bounds, self._report = program, bounds, report
        self._forms = len(bounds.columns["form_constants"])
        self._operands = len(bounds.columns["operand_regions"])
        self._where = _WHERE

    def check(self) -> None:
        """Check all tables, then each list."""
        bounds = self._bounds
        short = len(bounds.identity) != DIGEST_NBYTES
        self._require(not short, "the identity is no digest")
        self._report.unique(list(bounds.kernels), self._where)
        self._report.limit("the number of bound lists", len(bounds.lists), _MAX_LISTS)
        self._check_forms(bounds.columns)
        self._check_layouts(bounds.columns)
        self._check_operands(bounds.columns)
        for number, one in enumerate(bounds.lists):
            self._where = f"bound list {number}"
            self._check_list(one)

    def _require(self, condition: object, what: str) -> None:
        self._report.require(bool(condition), self._where, what)

    def _ids(self, columns: Columns, name: str, count: int) -> None:
        ids = columns[name]
        self._require(
            not ids.size or int(ids.max()) < count, f"{name} has an id past {count}"
        )

    def _runs(
        self, columns: Columns, ends: str, count: int, items: int, most: int
    ) -> NDArray[np.int64]:
        """Check that `count` runs cut `items`; return the length of each."""
        stops = columns.ints(ends)
        lengths = np.diff(stops, prepend=0)
        self._require(len(stops) == count, f"{ends} has {len(stops)} runs, not {count}")
        fits = np.all((lengths >= 0) & (lengths <= most))
        whole = (int(stops[-1]) if count else 0) == items
        self._require(fits and whole, f"{ends} does not cut {items} items")
        return lengths

    def _check_forms(self, columns: Columns) -> None:
        products, terms = len(columns["product_ends"]), len(columns["term_factors"])
        symbols = len(columns["product_symbols"])
        lengths = self._runs(columns, "product_ends", products, symbols, _MAX_FACTORS)
        self._require(np.all(lengths > 0), "a product has no factors")
        self._runs(columns, "term_ends", self._forms, terms, _MAX_TERMS)
        same = len(columns["term_products"]) == terms
        self._require(same, "terms have no product")
        self._ids(columns, "term_products", products)
        self._ids(columns, "product_symbols", len(self._program.symbols))
        varied = np.diff(columns.ints("term_ends"), prepend=0) > 0
        constants = columns.ints("form_constants")[varied]
        numbers = np.concatenate([constants, columns.ints("term_factors")])
        small = np.all((numbers <= _MAX_FORM) & (numbers >= -_MAX_FORM))
        factors = np.all(columns["term_factors"] != 0)
        self._require(small and factors, "a form has a number out of range")

    def _check_layouts(self, columns: Columns) -> None:
        layouts, dims = len(columns["layout_dtypes"]), len(columns["layout_dims"])
        self._runs(columns, "layout_ends", layouts, dims, MAX_RANK)
        same = len(columns["layout_strides"]) == dims
        self._require(same, "dims have no stride")
        self._ids(columns, "layout_dims", self._forms)
        self._ids(columns, "layout_strides", self._forms)

    def _check_operands(self, columns: Columns) -> None:
        names = ("operand_places", "operand_offsets", "operand_layouts")
        same = all(len(columns[name]) == self._operands for name in names)
        self._require(same, "the columns of operands differ in length")
        regions, places = columns["operand_regions"], columns["operand_places"]
        program = self._program
        for kind, count in (
            (RegionKind.ABSENT, 1),
            (RegionKind.CONSTANT, len(program.names)),
            (RegionKind.STATE, len(program.states)),
            (RegionKind.SCRATCH, 1),
            (RegionKind.FILLED, self._forms),
        ):
            own = places[regions == kind]
            there = not own.size or int(own.max()) < count
            self._require(there, f"an operand of {kind.name} has a place past {count}")
        lent = np.any(regions == RegionKind.CALLER)
        what = "an operand lies in a caller's array, which no list has yet"
        self._require(not lent, what)
        constants = {int(i) for i in places[regions == RegionKind.CONSTANT]}
        plain = all(program.names[i].format in (PLAIN, SLOT) for i in constants)
        self._require(plain, "an operand is packed data or a file")
        there = regions != RegionKind.ABSENT
        for name, count in (
            ("operand_offsets", self._forms),
            ("operand_layouts", len(columns["layout_dtypes"])),
        ):
            own = columns[name][there]
            fits = not own.size or int(own.max()) < count
            self._require(fits, f"{name} has an id past {count}")

    def _check_list(self, one: BoundList) -> None:
        program, columns = self._program, one.columns
        self._require(one.method < len(program.methods), "its method does not exist")
        method = program.methods[one.method]
        small = one.scratch_nbytes <= MAX_TENSOR_NBYTES
        self._require(small, "its scratch memory is too large")
        self._check_sizes(one)
        steps = len(columns["step_kernels"])
        self._ids(columns, "step_kernels", len(self._bounds.kernels))
        most = self._operands + self._forms + (1 << 20)
        for ends, items in (
            ("operand_ends", "operands"),
            ("integer_ends", "integers"),
            ("number_ends", "numbers"),
        ):
            self._runs(columns, ends, steps, len(columns[items]), most)
        self._ids(columns, "integers", self._forms)
        self._ids(columns, "cursor_counts", self._forms)
        self._ids(columns, "varied_forms", self._forms)
        self._ids(columns, "varied_numbers", len(columns["numbers"]))
        same = len(columns["varied_forms"]) == len(columns["varied_numbers"])
        self._require(same, "a number that varies has no form")
        self._ids(columns, "cursor_fields", _FIELDS * len(program.cursors))
        same = len(columns["cursor_fields"]) == len(columns["cursor_counts"])
        self._require(same, "a cursor has no count")
        for name, there in (
            ("inputs", len(method.graph.inputs)),
            ("outputs", len(method.graph.outputs)),
        ):
            found = len(columns[name])
            self._require(found == there, f"it has {found} {name}, not {there}")
        for name in ("operands", "inputs", "outputs"):
            self._check_used(columns, name)

    def _check_sizes(self, one: BoundList) -> None:
        lowers, uppers = one.columns.ints("lowers"), one.columns.ints("uppers")
        count = len(self._program.symbols)
        same = len(lowers) == len(uppers) == count
        self._require(same, f"it has bounds for {len(lowers)} sizes, not {count}")
        fits = np.all((lowers >= 0) & (lowers <= uppers) & (uppers <= MAX_DIM))
        self._require(fits, "its bounds are no sizes")

    def _check_used(self, columns: Columns, name: str) -> None:
        """Check operands of a list, and that its own cursors have those they name."""
        self._ids(columns, name, self._operands)
        tables, ids = self._bounds.columns, columns[name]
        regions, places = tables["operand_regions"][ids], tables["operand_places"][ids]
        own = places[regions == RegionKind.CURSOR]
        there = not own.size or int(own.max()) < len(columns["cursor_fields"])
        self._require(there, "an operand is in a cursor that the list does not have")
        if name != "operands":
            given = np.all(regions != RegionKind.ABSENT)
            self._require(given, f"one of its {name} is absent")
        if name == "inputs":
            put = np.all(regions == RegionKind.SCRATCH)
            self._require(put, "an input is not put into scratch memory")
