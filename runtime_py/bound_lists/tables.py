"""`Tables`: what bound lists refer to by number, each thing once."""

from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate, chain
from typing import Final, TypeVar

import numpy as np

from kvc.runtime.bound_lists.forms import Fitter, Form
from kvc.runtime.bound_lists.recording import Recorded, RecordedStep
from kvc.runtime.bound_lists.regions import Operand
from kvc.runtime.bound_lists.samples import Box
from kvc.runtime.memory.arenas import align_up
from kvc.schema.bounds import BoundList, Bounds, Columns, Numbers, RegionKind
from kvc.schema.dtypes import DType

Key = TypeVar("Key", bound=Hashable)
Layout = tuple[DType, tuple[int, ...], tuple[int, ...]]  # dims and strides are forms
Placed = tuple[RegionKind, int, int, int]  # region, place, form of the offset, layout
UNEQUAL: Final = "its steps are not the same at all sizes"
_ABSENT: Placed = (RegionKind.ABSENT, 0, 0, 0)


class _Unfit(Exception):
    """The numbers of a list follow no form."""


class Tables:
    """Collector of lists, and of the forms, layouts and operands in them."""

    def __init__(self) -> None:
        self._forms: dict[Form, int] = {}
        self._layouts: dict[Layout, int] = {}
        self._operands: dict[Placed, int] = {}
        self._kernels: dict[str, int] = {}
        self._lists: list[BoundList] = []

    def add(
        self,
        method: int,
        box: Box,
        samples: Sequence[Sequence[int]],
        made: Sequence[Recorded],
    ) -> str:
        """Add the list of a method for a box of sizes; return why it is none.

        Args:
            method: id of the method.
            box: the bounds of each symbol.
            samples: the sizes at which the method was bound.
            made: what was bound at each.
        """
        if len({_outline(one) for one in made}) > 1:
            return UNEQUAL
        try:
            self._lists.append(self._list(method, box, Fitter(samples), made))
        except _Unfit as error:
            return str(error)
        return ""

    def bounds(self, version: int) -> Bounds | None:
        """Return all lists with their tables; None if there are no lists."""
        if not self._lists:
            return None
        forms, layouts, operands = self._forms, self._layouts, self._operands
        terms = [term for form in forms for term in form.terms]
        products = list(dict.fromkeys(product for product, _ in terms))
        ids = {product: i for i, product in enumerate(products)}
        columns = {
            "form_constants": np.array([form.constant for form in forms], np.int64),
            "term_ends": _ends(form.terms for form in forms),
            "term_factors": np.array([factor for _, factor in terms], np.int64),
            "term_products": _u32(ids[product] for product, _ in terms),
            "product_ends": _ends(products),
            "product_symbols": _u32(chain.from_iterable(products)),
            "layout_dtypes": np.array([dtype for dtype, *_ in layouts], np.uint8),
            "layout_ends": _ends(dims for _, dims, _ in layouts),
            "layout_dims": _u32(chain.from_iterable(dims for _, dims, _ in layouts)),
            "layout_strides": _u32(chain.from_iterable(s for *_, s in layouts)),
            "operand_regions": np.array([one[0] for one in operands], np.uint8),
            "operand_places": _u32(one[1] for one in operands),
            "operand_offsets": _u32(one[2] for one in operands),
            "operand_layouts": _u32(one[3] for one in operands),
        }
        kernels = tuple(self._kernels)
        return Bounds(version, bytes(32), kernels, Columns(columns), tuple(self._lists))

    def _list(
        self, method: int, box: Box, fitter: Fitter, made: Sequence[Recorded]
    ) -> BoundList:
        (planned,) = {one.planned_nbytes for one in made}
        sizes = zip(*(one.made_nbytes for one in made), strict=True)
        most = [_fitted(fitter, each).greatest(box) for each in sizes]
        starts = (0, *accumulate([planned, *map(align_up, most)]))
        writer = _ListWriter(self, fitter, starts)
        for steps in zip(*(one.steps for one in made), strict=True):
            writer.add_step(steps)
        fields = [field for field, _ in made[0].cursors]
        counts = zip(*([n for _, n in one.cursors] for one in made), strict=True)
        columns = {
            "lowers": np.array([low for low, _ in box], np.int64),
            "uppers": np.array([high for _, high in box], np.int64),
            "cursor_fields": _u32(fields),
            "cursor_counts": _u32(writer.form(one) for one in counts),
            **writer.columns(),
            "inputs": _u32(writer.all_operands([one.inputs for one in made])),
            "outputs": _u32(writer.all_operands([one.outputs for one in made])),
        }
        return BoundList(method, starts[-1], Columns(columns))

    def kernel(self, name: str) -> int:
        """Return the id of a kernel's name."""
        return self._kernels.setdefault(name, len(self._kernels))

    def form(self, form: Form) -> int:
        """Return the id of a form."""
        return self._forms.setdefault(form, len(self._forms))

    def layout(self, layout: Layout) -> int:
        """Return the id of a layout."""
        return self._layouts.setdefault(layout, len(self._layouts))

    def operand(self, placed: Placed) -> int:
        """Return the id of an operand."""
        return self._operands.setdefault(placed, len(self._operands))


class _ListWriter:
    """The columns of the steps of one list."""

    def __init__(self, tables: Tables, fitter: Fitter, starts: Sequence[int]) -> None:
        """Begin a list; `starts` has where the parts of scratch memory begin."""
        self._tables, self._fitter, self._starts = tables, fitter, starts
        self._kernels: list[int] = []
        self._operands: list[list[int]] = []
        self._integers: list[list[int]] = []
        self._numbers: list[list[float]] = []
        self._varied: dict[int, int] = {}

    def add_step(self, steps: Sequence[RecordedStep]) -> None:
        """Add a step, as it is at each sample."""
        self._kernels.append(self._tables.kernel(steps[0].kernel))
        self._operands.append(self.all_operands([one.operands for one in steps]))
        integers = zip(*(one.integers for one in steps), strict=True)
        self._integers.append([self.form(values) for values in integers])
        first = sum(map(len, self._numbers))
        numbers = list(zip(*(one.numbers for one in steps), strict=True))
        self._numbers.append([values[0] for values in numbers])
        for i, values in enumerate(numbers):
            if len({np.float64(value).tobytes() for value in values}) > 1:
                if not all(value.is_integer() for value in values):
                    raise _Unfit("a number does not follow its sizes")
                self._varied[first + i] = self.form(tuple(map(int, values)))

    def columns(self) -> dict[str, Numbers]:
        """Return the columns of all steps."""
        return {
            "step_kernels": _u32(self._kernels),
            "operand_ends": _ends(self._operands),
            "operands": _u32(chain.from_iterable(self._operands)),
            "integer_ends": _ends(self._integers),
            "integers": _u32(chain.from_iterable(self._integers)),
            "number_ends": _ends(self._numbers),
            "numbers": np.array(list(chain.from_iterable(self._numbers)), np.float64),
            "varied_numbers": _u32(self._varied),
            "varied_forms": _u32(self._varied.values()),
        }

    def all_operands(self, made: Sequence[Sequence[Operand | None]]) -> list[int]:
        """Return the ids of operands, given those of each sample."""
        return [self._operand(each) for each in zip(*made, strict=True)]

    def _operand(self, each: Sequence[Operand | None]) -> int:
        first = each[0]
        if first is None:
            return self._tables.operand(_ABSENT)
        found = [one for one in each if one is not None]
        place = first.place
        start = 0
        if first.region is RegionKind.FILLED:
            place = self.form(tuple(one.place for one in found))
        elif first.region is RegionKind.SCRATCH:
            place, start = 0, self._starts[place]
        dims = zip(*(one.dims for one in found), strict=True)
        strides = zip(*(one.strides for one in found), strict=True)
        layout = (
            first.dtype,
            tuple(self.form(values) for values in dims),
            tuple(self.form(values) for values in strides),
        )
        offset = self.form(tuple(start + one.offset for one in found))
        return self._tables.operand(
            (first.region, place, offset, self._tables.layout(layout))
        )

    def form(self, values: tuple[int, ...]) -> int:
        """Return the id of the form that has these values at the samples."""
        return self._tables.form(_fitted(self._fitter, values))


def _fitted(fitter: Fitter, values: tuple[int, ...]) -> Form:
    found = fitter.fit(values)
    if found is None:
        raise _Unfit("its sizes are no products of the program's")
    return found


def _outline(one: Recorded) -> Hashable:
    """Return all of a recording that must be equal at all sizes."""
    return (
        tuple(
            (s.kernel, len(s.integers), len(s.numbers), tuple(map(_kind, s.operands)))
            for s in one.steps
        ),
        tuple(field for field, _ in one.cursors),
        tuple(map(_kind, one.inputs)),
        tuple(map(_kind, one.outputs)),
    )


def _kind(operand: Operand | None) -> Hashable:
    if operand is None:
        return None
    filled = operand.region is RegionKind.FILLED
    place = 0 if filled else operand.place
    return operand.region, place, operand.dtype, len(operand.dims)


def _u32(numbers: Iterable[int]) -> Numbers:
    return np.array(list(numbers), np.uint32)


def _ends(runs: Iterable[Sequence[object]]) -> Numbers:
    return _u32(accumulate(map(len, runs)))
