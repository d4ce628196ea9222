"""The pool of a buffer: each shared type, name and number once, referred to by id.

`PoolWriter` numbers expressions, types, operator names, strings and floats in the order
of their first use, so that equal programs give equal bytes. `Pool` reads them back and
checks every index. `update_fields` and `read_updates` encode and decode, for a method
or block, the description of each write to a state.
"""

import struct
from collections.abc import Sequence

import numpy as np

from kvc.schema.codec.expressions import read_expressions
from kvc.schema.codec.records import (
    FieldValue,
    Numbers,
    Record,
    TableReader,
    check_ids,
    check_lengths,
    cut,
)
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram
from kvc.schema.frozen import frozen
from kvc.schema.graph import Access, AccessMode
from kvc.schema.model import Update
from kvc.schema.types import Affine, Dim, Factor, Quotient, Symbol, TensorType

SIZE, AFFINE = 0, 1


class PoolWriter:
    """Collector of a program's types, names and numbers; it gives an id to each."""

    def __init__(self, symbols: Sequence[Symbol]) -> None:
        self._symbols = tuple(symbols)
        self._symbol_ids = {symbol.name: i for i, symbol in enumerate(symbols)}
        self._affines: dict[Affine, int] = {}
        self._quotients: dict[Quotient, int] = {}
        self._types: dict[TensorType, int] = {}
        self._ops: dict[str, int] = {}
        self._strings: dict[str, int] = {}
        self._doubles: dict[bytes, int] = {}
        self._integers: dict[int, int] = {}

    def affine(self, expression: Affine) -> int:
        """Return the id of an expression; the dividends in it have lower ids."""
        if expression in self._affines:
            return self._affines[expression]
        for name in expression.symbols:
            if name not in self._symbol_ids:
                what = f"the symbol {name} of {expression} is not declared"
                raise BadProgram(path="program", where="symbols", what=what)
        for quotient in expression.quotients:
            self.affine(quotient.of)
            self._quotients.setdefault(quotient, len(self._quotients))
        self._affines[expression] = len(self._affines)
        return self._affines[expression]

    def dim(self, dim: Dim) -> tuple[int, int]:
        """Return the kind and number that encode a dim: a size or expression id."""
        return (AFFINE, self.affine(dim)) if isinstance(dim, Affine) else (SIZE, dim)

    def type(self, kind: TensorType) -> int:
        """Return the id of a type."""
        for dim in kind.dims:
            if isinstance(dim, Affine):
                self.affine(dim)
        return self._types.setdefault(kind, len(self._types))

    def op(self, name: str) -> int:
        """Return the id of an operator's name."""
        return self._ops.setdefault(name, len(self._ops))

    def string(self, text: str) -> int:
        """Return the id of a string."""
        return self._strings.setdefault(text, len(self._strings))

    def double(self, number: float) -> int:
        """Return the id of a float; floats with equal bits have the same id."""
        return self._doubles.setdefault(struct.pack("<d", number), len(self._doubles))

    def integer(self, number: int) -> int:
        """Return the id of an int."""
        return self._integers.setdefault(number, len(self._integers))

    def record(self) -> Record:
        """Return the pool as a record; all its parts must have been added before."""
        symbols = self._symbols
        return Record(
            "Pool",
            {
                "symbol_names": [symbol.name for symbol in symbols],
                "symbol_lowers": np.array([s.lower for s in symbols], np.int64),
                "symbol_uppers": np.array([s.upper for s in symbols], np.int64),
                **self._affine_fields(),
                **self._type_fields(),
                "ops": list(self._ops),
                "strings": list(self._strings),
                "doubles": np.frombuffer(b"".join(self._doubles), "<f8"),
                "integers": np.array(list(self._integers), np.int64),
            },
        )

    def _affine_fields(self) -> dict[str, Numbers]:
        single: list[Factor] = [*self._symbol_ids, *self._quotients]
        ids: dict[tuple[Factor, ...], int] = {(f,): i for i, f in enumerate(single)}
        sums = [affine.parts for affine in self._affines]
        terms = [term for parts in sums for term in parts]
        for factors, _ in terms:
            ids.setdefault(factors, len(ids))
        products = list(ids)[len(single) :]
        multiplied = [ids[(factor,)] for factors in products for factor in factors]
        return {
            "affine_constants": np.array([a.constant for a in self._affines], np.int64),
            "affine_ends": np.cumsum([len(parts) for parts in sums], dtype=np.uint32),
            "term_symbols": np.array([ids[f] for f, _ in terms], np.uint32),
            "term_coefficients": np.array([c for _, c in terms], np.int64),
            "product_ends": np.cumsum([len(n) for n in products], dtype=np.uint32),
            "product_symbols": np.array(multiplied, np.uint32),
            "quotient_dividends": np.array(
                [self._affines[q.of] for q in self._quotients], np.uint32
            ),
            "quotient_divisors": np.array([q.by for q in self._quotients], np.int64),
        }

    def _type_fields(self) -> dict[str, Numbers]:
        dims = [dim for kind in self._types for dim in kind.dims]
        kinds = [AFFINE if isinstance(dim, Affine) else SIZE for dim in dims]
        values = [self._affines[d] if isinstance(d, Affine) else d for d in dims]
        return {
            "type_dtypes": np.array([kind.dtype for kind in self._types], np.uint8),
            "type_ends": np.cumsum([len(k.dims) for k in self._types], dtype=np.uint32),
            "dim_kinds": np.array(kinds, np.uint8),
            "dim_values": np.array(values, np.int64),
        }


@frozen
class Pool:
    """A decoded pool; the id of an entry is the entry's index in its tuple.

    `max_nbytes` has, for each type, the size in bytes of a tensor whose symbols are all
    at their upper bounds.
    """

    symbols: tuple[Symbol, ...]
    affines: tuple[Affine, ...]
    types: tuple[TensorType, ...]
    ops: tuple[str, ...]
    strings: tuple[str, ...]
    doubles: tuple[float, ...]
    integers: tuple[int, ...]
    max_nbytes: tuple[int, ...]

    def read_dim(self, kind: int, number: int, path: str, where: str) -> Dim:
        """Return the dim that `kind` and `number`, from `PoolWriter.dim`, encode.

        Raises:
            BadProgram: the pool has no expression with this id.
        """
        if kind == SIZE:
            return number
        (index,) = check_ids(np.array([number]), len(self.affines), path, where)
        return self.affines[index]


def read_pool(table: TableReader, path: str) -> Pool:
    """Decode a pool, and check every index in it.

    Raises:
        BadProgram: an index is out of range, or the ends of parts of a vector do not
            ascend to the end of the vector.
    """
    names = table.texts("symbol_names")
    lowers, uppers = table.integers("symbol_lowers"), table.integers("symbol_uppers")
    check_lengths(path, "symbols", names, lowers, uppers)
    affines = read_expressions(table, names, path)
    symbols = tuple(map(Symbol, names, lowers, uppers))
    dtypes = [DType(number) for number in table.integers("type_dtypes")]
    kinds, values = table.vector("dim_kinds"), table.vector("dim_values")
    check_lengths(path, "types", kinds, values)
    check_ids(values[kinds == AFFINE], len(affines), path, "types")
    dims: list[Dim] = [
        affines[value] if kind == AFFINE else value
        for kind, value in zip(kinds.tolist(), values.tolist(), strict=True)
    ]
    groups = cut(dims, table.vector("type_ends"), len(dtypes), path, "types")
    types = tuple(map(TensorType, dtypes, groups))
    by_name = {symbol.name: symbol for symbol in symbols}
    return Pool(
        symbols=symbols,
        affines=affines,
        types=types,
        ops=tuple(table.texts("ops")),
        strings=tuple(table.texts("strings")),
        doubles=tuple(table.vector("doubles").tolist()),
        integers=tuple(table.integers("integers")),
        max_nbytes=tuple(kind.max_nbytes(by_name) for kind in types),
    )


_DIM_KINDS = 2


def dim_fields(dim: Dim | None, pool: PoolWriter) -> tuple[int | None, int | None]:
    """Return the kind and number that encode a dim; (None, None) if `dim` is None."""
    return (None, None) if dim is None else pool.dim(dim)


def read_dim(
    table: TableReader, name: str, pool: Pool, path: str, where: str
) -> Dim | None:
    """Return the dim that a table's fields `name` and `name`_kind encode.

    The result is None if the table has neither field.

    Raises:
        BadProgram: one of the fields is missing, or the id in it is out of range.
    """
    kind, number = table.optional_number(f"{name}_kind"), table.optional_number(name)
    if (kind is None) != (number is None):
        raise BadProgram(path=path, where=where, what=f"{name} without its kind")
    if kind is None or number is None:
        return None
    return pool.read_dim(kind, number, path, where)


def update_fields(updates: Sequence[Update], pool: PoolWriter) -> dict[str, FieldValue]:
    """Return the fields, by name, that describe the writes of a method or block."""
    copies = [update.copies for update in updates]
    flat = [index for run in copies for index in run]
    return {
        "update_instructions": np.array([u.instruction for u in updates], np.uint32),
        "update_reasons": np.array([pool.string(u.reason) for u in updates], np.uint32),
        "update_copy_ends": np.cumsum([len(run) for run in copies], dtype=np.uint32),
        "update_copies": np.array(flat, np.uint32),
        "accesses": _accesses_record([update.accesses for update in updates], pool),
    }


def _accesses_record(runs: Sequence[Sequence[Access]], pool: PoolWriter) -> Record:
    flat = [access for run in runs for access in run]
    sizes = [(SIZE, 0) if a.size is None else pool.dim(a.size) for a in flat]
    return Record(
        "Accesses",
        {
            "ends": np.cumsum([len(run) for run in runs], dtype=np.uint32),
            "roots": np.array([access.root for access in flat], np.uint32),
            "modes": np.array([access.mode for access in flat], np.uint8),
            "axes": np.array([access.axis or 0 for access in flat], np.uint8),
            "size_kinds": np.array([kind for kind, _ in sizes], np.uint8),
            "sizes": np.array([size for _, size in sizes], np.int64),
        },
    )


def read_updates(
    table: TableReader, pool: Pool, path: str, where: str
) -> tuple[Update, ...]:
    """Return the writes to states that the table of a method or block describes.

    The ids of instructions in the writes are not checked.

    Raises:
        BadProgram: the lengths of vectors do not agree, or the id of a text, mode or
            size is invalid.
    """
    instructions = table.integers("update_instructions")
    reasons = check_ids(table.vector("update_reasons"), len(pool.strings), path, where)
    check_lengths(path, where, instructions, reasons)
    ends, copies = table.vector("update_copy_ends"), table.integers("update_copies")
    runs = cut(copies, ends, len(instructions), path, where)
    accesses = _read_accesses(
        table.child("accesses"), pool, len(instructions), path, where
    )
    return tuple(
        Update(instruction, pool.strings[reason], run, made)
        for instruction, reason, run, made in zip(
            instructions, reasons, runs, accesses, strict=True
        )
    )


def _read_accesses(
    table: TableReader, pool: Pool, count: int, path: str, where: str
) -> list[tuple[Access, ...]]:
    roots, axes = table.integers("roots"), table.integers("axes")
    modes = check_ids(table.vector("modes"), len(AccessMode), path, where)
    kinds = check_ids(table.vector("size_kinds"), _DIM_KINDS, path, where)
    sizes = table.integers("sizes")
    check_lengths(path, where, roots, modes, axes, kinds, sizes)
    flat = [
        Access(root, AccessMode.ANYWHERE)
        if mode == AccessMode.ANYWHERE
        else Access(
            root, AccessMode(mode), axis, pool.read_dim(kind, size, path, where)
        )
        for root, mode, axis, kind, size in zip(
            roots, modes, axes, kinds, sizes, strict=True
        )
    ]
    return cut(flat, table.vector("ends"), count, path, where)
