"""The tables of bound lists: `Bounds`, and a `BoundList` for each list."""

from kvc.schema.bounds import (
    LIST_COLUMNS,
    TABLE_COLUMNS,
    BoundList,
    Bounds,
    Columns,
)
from kvc.schema.codec.records import Record, TableReader, octets


def bounds_record(bounds: Bounds) -> Record:
    """Return the record of bound lists."""
    return Record(
        "Bounds",
        {
            "kernels_version": bounds.kernels_version,
            "identity": octets(bounds.identity),
            "kernels": list(bounds.kernels),
            **bounds.columns,
            "lists": [_list_record(one) for one in bounds.lists],
        },
    )


def _list_record(one: BoundList) -> Record:
    own = {"method": one.method, "scratch_nbytes": one.scratch_nbytes}
    return Record("BoundList", {**own, **one.columns})


def read_bounds(table: TableReader) -> Bounds:
    """Return the bound lists in a table that the structural verifier has accepted."""
    return Bounds(
        kernels_version=table.number("kernels_version"),
        identity=table.octets("identity"),
        kernels=tuple(table.texts("kernels")),
        columns=Columns({name: table.vector(name) for name in TABLE_COLUMNS}),
        lists=tuple(
            BoundList(
                method=one.number("method"),
                scratch_nbytes=one.number("scratch_nbytes"),
                columns=Columns({name: one.vector(name) for name in LIST_COLUMNS}),
            )
            for one in table.children("lists")
        ),
    )
