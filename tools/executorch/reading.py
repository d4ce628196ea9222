"""Read the files of ExecuTorch: a program, `.pte`, and data by name, `.ptd`.

In: a path. Out: a `Pte` or a `Ptd`. The layouts are those of `schema/program.fbs` of
ExecuTorch 1.5 (identifier ET12) and of its `flat_tensor.fbs` (FT01), which only ever
append fields, and of the extended header before them. The header is `eh00` or `FH01`,
followed by little-endian integers: the header's size (4 bytes), the size of the
program, the offset of the segments, and the bytes of the segments (8 bytes each; the
last is missing in older files). Files from before ExecuTorch had segments have no
header.
"""

from dataclasses import dataclass
from typing import Final

from kvc.schema.container import OpenFile
from kvc.schema.errors import BadStructure, LimitExceeded
from kvc.tools.executorch.contents import (
    UNBOUND,
    Call,
    Pte,
    PteDelegate,
    PteMethod,
    PteValue,
    Segment,
    Tensor,
    check_data,
    check_method,
)
from kvc.tools.executorch.tables import Buffer, Table

_EXTENDED: Final = b"eh00"
_MOST_NBYTES: Final = (1 << 31) - 1  # of a FlatBuffer
_MOST_DIMS: Final = 16  # of a tensor, as in ExecuTorch's runtime
_HEADER_NBYTES: Final = 40  # up to the end of the extended header, as long as ever
# The fields of each table, in the order of the schema.
_PROGRAM = (
    "version", "execution_plan", "constant_buffer", "backend_delegate_data", "segments",
    "constant_segment", "mutable_data_segments", "named_data",
)  # fmt: skip
_PLAN = (
    "name", "container_meta_type", "values", "inputs", "outputs", "chains", "operators",
    "delegates", "non_const_buffer_sizes", "non_const_buffer_device",
)  # fmt: skip
_TENSOR = (
    "scalar_type", "storage_offset", "sizes", "dim_order", "requires_grad",
    "data_buffer_idx", "allocation_info", "layout", "shape_dynamism",
    "extra_tensor_info",
)  # fmt: skip
_ALLOCATION = ("memory_id", "memory_offset_low", "memory_offset_high")
_EXTRA = ("mutable_data_segments_idx", "fully_qualified_name", "location")
_VALUE = ("val_type", "val")
_CHAIN = ("inputs", "outputs", "instructions", "stacktrace")
_INSTRUCTION = ("instr_args_type", "instr_args")
_OPERATOR = ("name", "overload")
_DELEGATE = ("id", "processed", "compile_specs")
_REFERENCE = ("location", "index")
_SPEC = ("key", "value")
_SEGMENT = ("offset", "size")
_SUBSEGMENTS = ("segment_index", "offsets")
_NAMED = ("key", "segment_index")
# The members of two unions, by their number, and the fields of each.
_VALUES = {
    1: ("null", ()), 2: ("int", ("int_val",)), 3: ("bool", ("bool_val",)),
    4: ("float", ("double_val",)), 5: ("tensor", _TENSOR), 6: ("str", ("string_val",)),
    7: ("ints", ("items",)), 8: ("floats", ("items",)), 9: ("bools", ("items",)),
    10: ("tensors", ("items",)), 11: ("tensors", ("items",)),
}  # fmt: skip
_CALLS = {
    1: ("kernel", ("op_index", "args")), 2: ("delegate", ("delegate_index", "args")),
    3: ("move", ("move_from", "move_to")),
    4: ("jump unless", ("cond_value_index", "destination_instruction")),
    5: ("free", ("value_index",)),
}  # fmt: skip
# kvc's name of a scalar type, and bits of an element, by the type's number.
SCALARS: Final = {
    0: ("uint8", 8), 1: ("int8", 8), 2: ("int16", 16), 3: ("int32", 32),
    4: ("int64", 64), 5: ("float16", 16), 6: ("float32", 32), 7: ("float64", 64),
    11: ("bool", 8), 12: ("qint8", 8), 13: ("quint8", 8), 14: ("qint32", 32),
    15: ("bfloat16", 16), 16: ("quint4x2", 4), 17: ("quint2x4", 2), 22: ("bits16", 16),
    23: ("float8_e5m2", 8), 24: ("float8_e4m3fn", 8), 25: ("float8_e5m2fnuz", 8),
    26: ("float8_e4m3fnuz", 8), 27: ("uint16", 16), 28: ("uint32", 32),
    29: ("uint64", 64),
}  # fmt: skip
_DYNAMISM = {1: "bound", 2: UNBOUND}
_FLAT_TENSOR = ("version", "segments", "named_data")
_ENTRY = ("key", "segment_index", "tensor_layout")
_LAYOUT = ("scalar_type", "sizes", "dim_order")


def read_pte(path: str) -> Pte:
    """Read a program file.

    Raises:
        FileProblem: the system cannot read the file.
        BadStructure, Truncated, LimitExceeded: the file is damaged, or is no `.pte`
            file.
    """
    content, nbytes, extended = read_front(path, _EXTENDED)
    header_nbytes, program_nbytes, segments_at = extended or (0, nbytes, nbytes)
    buffer = Buffer(content[:program_nbytes], path)
    root = buffer.root(_PROGRAM)
    inline = tuple(
        t.nbytes("data") for t in root.tables("backend_delegate_data", ("data",))
    )
    segments = read_segments(root, buffer, segments_at, nbytes)
    constant = root.table("constant_segment", _SUBSEGMENTS)
    offsets = constant.integers("offsets", "u8") if constant else ()
    found = Pte(
        path=path,
        nbytes=nbytes,
        version=root.integer("version", "I"),
        header_nbytes=header_nbytes,
        program_nbytes=program_nbytes,
        methods=tuple(
            _read_method(plan, buffer, inline, len(segments))
            for plan in root.tables("execution_plan", _PLAN)
        ),
        segments_at=segments_at,
        segments=segments,
        constants=tuple(
            t.nbytes("storage") for t in root.tables("constant_buffer", ("storage",))
        ),
        inline=inline,
        constant_segment=(
            constant.integer("segment_index", "I") if constant and offsets else None
        ),
        constant_offsets=offsets,
        mutable_segments=tuple(
            t.integer("segment_index", "I")
            for t in root.tables("mutable_data_segments", _SUBSEGMENTS)
        ),
        named=tuple(
            (t.name("key"), t.integer("segment_index", "I"))
            for t in root.tables("named_data", _NAMED)
        ),
    )
    check_data(found, buffer)
    return found


def read_front(
    path: str, magic: bytes
) -> tuple[bytes, int, tuple[int, int, int] | None]:
    """Return a file up to its segments, its size, and the numbers in its header.

    The numbers are the header's size, the size of the header and the FlatBuffer, and
    the offset of the segments. They are None if the file has no extended header.

    Raises:
        FileProblem: the system cannot read the file.
        Truncated: the file ends before its segments.
        LimitExceeded: the FlatBuffer would be larger than a FlatBuffer can be.
        BadStructure: the header's numbers contradict each other.
    """
    with OpenFile(path) as file:
        extended = _extended(file.pread(0, min(_HEADER_NBYTES, file.size)), magic, path)
        wanted = extended[1] if extended else file.size
        if wanted > _MOST_NBYTES:
            what = "the program, in bytes,"
            raise LimitExceeded(path=path, what=what, found=wanted, limit=_MOST_NBYTES)
        return file.pread(0, wanted), file.size, extended


def _extended(front: bytes, magic: bytes, path: str) -> tuple[int, int, int] | None:
    if front[8:12] != magic:
        return None
    buffer = Buffer(front, path)
    size = buffer.integer("I", 12)
    if magic == _EXTENDED:
        nbytes, base = buffer.integer("Q", 16), buffer.integer("Q", 24)
    else:
        nbytes = buffer.integer("Q", 16) + buffer.integer("Q", 24)
        base = buffer.integer("Q", 32)
    if nbytes < 8 + size or (base and base < nbytes):
        raise BadStructure(
            path=path, offset=8, what="the header's sizes contradict each other"
        )
    return size, nbytes, base or nbytes


def read_segments(
    root: Table, buffer: Buffer, begin: int, nbytes: int
) -> tuple[Segment, ...]:
    """Return the segments, after checking that they lie in the file."""
    found = tuple(
        Segment(t.integer("offset", "Q"), t.integer("size", "Q"))
        for t in root.tables("segments", _SEGMENT)
    )
    end = begin
    for segment in sorted(found, key=lambda one: (one.offset, one.nbytes)):
        start = begin + segment.offset
        if start < end:
            buffer.fail(start, "two segments overlap")
        end = start + segment.nbytes
        if end > nbytes:
            buffer.fail(start, "a segment reaches past the file's end")
    return found


def _read_method(
    plan: Table, buffer: Buffer, inline: tuple[int, ...], segments: int
) -> PteMethod:
    values = tuple(
        _read_value(value, buffer) for value in plan.tables("values", _VALUE)
    )
    operators = tuple(
        ".".join(filter(None, (op.name("name"), op.name("overload"))))
        for op in plan.tables("operators", _OPERATOR)
    )
    delegates = tuple(
        _read_delegate(one, buffer, inline, segments)
        for one in plan.tables("delegates", _DELEGATE)
    )
    calls = tuple(
        _read_call(call, buffer, len(operators), len(delegates))
        for chain in plan.tables("chains", _CHAIN)
        for call in chain.tables("instructions", _INSTRUCTION)
    )
    found = PteMethod(
        name=plan.name("name"),
        values=values,
        inputs=plan.integers("inputs", "i4"),
        outputs=plan.integers("outputs", "i4"),
        calls=calls,
        operators=operators,
        delegates=delegates,
        buffers=plan.integers("non_const_buffer_sizes", "i8"),
    )
    check_method(found, buffer)
    return found


def _read_value(value: Table, buffer: Buffer) -> PteValue:
    number = value.integer("val_type", "B")
    if number not in _VALUES:
        buffer.fail(0, f"a value of the kind {number}, which does not exist")
    kind, fields = _VALUES[number]
    content = value.table("val", fields)
    if content is None:
        if kind != "null":
            buffer.fail(0, f"a value of the kind {kind!r} has no content")
        return PteValue("null", "None", None)
    if kind == "tensor":
        return PteValue(kind, "", _read_tensor(content, buffer))
    if kind in ("tensors", "ints"):  # each item is the number of a value
        width = "i4" if kind == "tensors" else "i8"
        return PteValue(kind, "", None, content.integers("items", width))
    return PteValue(kind, _text(kind, content), None)


def _text(kind: str, content: Table) -> str:
    match kind:
        case "int":
            return str(content.integer("int_val", "q"))
        case "bool":
            return str(bool(content.integer("bool_val", "B")))
        case "float":
            return str(content.number("double_val", "d"))
        case "str":
            return repr(content.text("string_val"))
        case "floats":
            return str(content.numbers("items", "f8").tolist())
        case "bools":
            return str([bool(item) for item in content.integers("items", "u1")])
    return "None"


def _read_tensor(tensor: Table, buffer: Buffer) -> Tensor:
    dtype, bits = SCALARS.get(scalar := tensor.integer("scalar_type", "b"), ("", 0))
    if not dtype:
        buffer.fail(0, f"a tensor of the scalar type {scalar}, which does not exist")
    sizes = tensor.integers("sizes", "i4")
    if len(sizes) > _MOST_DIMS:
        buffer.fail(0, f"a tensor has {len(sizes)} dimensions, more than {_MOST_DIMS}")
    if any(size < 0 for size in sizes):
        buffer.fail(0, f"a tensor has negative sizes {sizes}")
    extra = tensor.table("extra_tensor_info", _EXTRA)
    place = tensor.table("allocation_info", _ALLOCATION)
    memory = None
    if place is not None:
        low, high = (place.integer(f"memory_offset_{h}", "I") for h in ("low", "high"))
        memory = place.integer("memory_id", "I"), low | high << 32
    return Tensor(
        dtype=dtype,
        sizes=sizes,
        nbytes=nbytes_of(sizes, bits),
        dynamism=_DYNAMISM.get(tensor.integer("shape_dynamism", "b"), ""),
        memory=memory,
        data=tensor.integer("data_buffer_idx", "I"),
        name=extra.name("fully_qualified_name") if extra else "",
        external=extra is not None and extra.integer("location", "b") == 1,
    )


def nbytes_of(sizes: tuple[int, ...], bits: int) -> int:
    """Return the bytes of a tensor with elements of `bits` bits."""
    elements = 1
    for size in sizes:
        elements *= size
    return -(-elements * bits // 8)


def _read_call(call: Table, buffer: Buffer, operators: int, delegates: int) -> Call:
    number = call.integer("instr_args_type", "B")
    if number not in _CALLS:
        buffer.fail(0, f"an instruction of the kind {number}, which does not exist")
    kind, fields = _CALLS[number]
    content = call.table("instr_args", fields)
    if content is None:
        buffer.fail(0, f"an instruction of the kind {kind!r} has no content")
    if kind in ("kernel", "delegate"):
        what = content.integer(fields[0], "i")
        if not 0 <= what < (operators if kind == "kernel" else delegates):
            buffer.fail(0, f"an instruction calls {kind} {what}, which is not there")
        return Call(kind, what, content.integers("args", "i4"))
    first = content.integer(fields[0], "i")
    if kind == "jump unless":
        return Call(kind, content.integer(fields[1], "i"), (first,))
    return Call(kind, 0, tuple(content.integer(field, "i") for field in fields))


def _read_delegate(
    one: Table, buffer: Buffer, inline: tuple[int, ...], segments: int
) -> PteDelegate:
    where = one.table("processed", _REFERENCE)
    index = where.integer("index", "I") if where else 0
    outside = where is not None and where.integer("location", "b") == 1
    if where is not None and index >= (segments if outside else len(inline)):
        buffer.fail(0, f"payload {index} of a delegate is not there")
    specs = tuple(
        f"{spec.name('key')} ({spec.nbytes('value')} bytes)"
        for spec in one.tables("compile_specs", _SPEC)
    )
    within = inline[index] if where and not outside else 0
    return PteDelegate(one.name("id"), within, index if outside else None, specs)


@dataclass(frozen=True, slots=True)
class Entry:
    """Data with a name; `type` is "" if the file does not say the type."""

    key: str
    type: str
    segment: int


@dataclass(frozen=True, slots=True)
class Ptd:
    """A data file of ExecuTorch."""

    path: str
    nbytes: int
    version: int
    header_nbytes: int
    index_nbytes: int
    segments: tuple[Segment, ...]
    entries: tuple[Entry, ...]


def read_ptd(path: str) -> Ptd:
    """Read a data file's index.

    Raises:
        FileProblem: the system cannot read the file.
        BadStructure, Truncated, LimitExceeded: the file is damaged, or is no `.ptd`
            file.
    """
    content, nbytes, extended = read_front(path, b"FH01")
    if extended is None:
        raise BadStructure(path=path, offset=8, what="the extended header is missing")
    header_nbytes, index_nbytes, begin = extended
    buffer = Buffer(content[:index_nbytes], path)
    root = buffer.root(_FLAT_TENSOR)
    segments = read_segments(root, buffer, begin, nbytes)
    entries = tuple(
        _read_entry(one, buffer) for one in root.tables("named_data", _ENTRY)
    )
    for entry in entries:
        if entry.segment >= len(segments):
            buffer.fail(0, f"segment {entry.segment} is not there")
    version = root.integer("version", "I")
    return Ptd(path, nbytes, version, header_nbytes, index_nbytes, segments, entries)


def _read_entry(one: Table, buffer: Buffer) -> Entry:
    layout = one.table("tensor_layout", _LAYOUT)
    kind = ""
    if layout is not None:
        scalar = layout.integer("scalar_type", "b")
        if scalar not in SCALARS:
            buffer.fail(0, f"data of the scalar type {scalar}, which does not exist")
        kind = f"{SCALARS[scalar][0]}{list(layout.integers('sizes', 'i4'))}"
    return Entry(one.name("key"), kind, one.integer("segment_index", "I"))
