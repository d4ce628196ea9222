"""The content of a `.pte` file of ExecuTorch, and checks of the names in it.

`reading.py` makes these objects, and calls the checks: everything that a method names
exists, and tensors fit in their memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvc.schema.errors import LimitExceeded
from kvc.tools.executorch.tables import Buffer

UNBOUND: Final = "unbound"
_MOST_SHOWN: Final = 16_000_000  # items and letters of all arguments in a method


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a method.

    Attributes:
        dtype: name of the dtype.
        sizes: sizes of the dimensions, upper bounds for dynamic ones.
        nbytes: bytes of the tensor at these sizes.
        dynamism: "" for fixed sizes, "bound" or "unbound".
        memory: number of its buffer and offset in bytes; None if the runtime or the
            caller gives the memory.
        data: index of the tensor's data in the file, 0 for none.
        name: name of the tensor in the file, "" for none.
        external: whether the tensor's data lies in another file, under its name.
    """

    dtype: str
    sizes: tuple[int, ...]
    nbytes: int
    dynamism: str
    memory: tuple[int, int] | None
    data: int
    name: str
    external: bool


@dataclass(frozen=True, slots=True)
class PteValue:
    """A value of a method: a tensor, or another value as text."""

    kind: str
    text: str
    tensor: Tensor | None
    items: tuple[int, ...] = ()  # of a list of tensors or integers, as values


@dataclass(frozen=True, slots=True)
class Call:
    """An instruction.

    Attributes:
        kind: "kernel", "delegate", "jump unless", or another kind of instruction.
        what: for "kernel", the index of the operator; for "delegate", that of the
            delegate; for "jump unless", the instruction to jump to; 0 otherwise.
        args: the values that the instruction uses, by their indices.
    """

    kind: str
    what: int
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PteDelegate:
    """A partition. Its payload lies in the program (`inline` bytes) or in `segment`."""

    backend: str
    inline: int
    segment: int | None
    specs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PteMethod:
    """A method, as it is in the file."""

    name: str
    values: tuple[PteValue, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    calls: tuple[Call, ...]
    operators: tuple[str, ...]
    delegates: tuple[PteDelegate, ...]
    buffers: tuple[int, ...]  # bytes of planned memory; the first one is unused


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes after the program; `offset` counts from the start of all segments."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Pte:
    """A program of ExecuTorch.

    Attributes:
        path, nbytes: path and size in bytes of the file.
        version: version of the schema.
        header_nbytes: bytes of the extended header, 0 if there is none.
        program_nbytes: bytes of the program, with the header and all data inside it.
        segments_at: offset in the file at which the segments begin.
        constants: bytes of each constant inside the program.
        inline: bytes of each delegate's payload inside the program.
        constant_segment: index of the segment with constants, None for none.
        constant_offsets: offset of each constant in that segment.
        mutable_segments: indices of the segments with initial data of states.
        named: key and segment of each data with a name.
    """

    path: str
    nbytes: int
    version: int
    header_nbytes: int
    program_nbytes: int
    methods: tuple[PteMethod, ...]
    segments_at: int
    segments: tuple[Segment, ...]
    constants: tuple[int, ...]
    inline: tuple[int, ...]
    constant_segment: int | None
    constant_offsets: tuple[int, ...]
    mutable_segments: tuple[int, ...]
    named: tuple[tuple[str, int], ...]

    @property
    def tables_nbytes(self) -> int:
        """Return the bytes of the program but the constants and payloads in it."""
        within = sum(self.constants) + sum(self.inline)
        return self.program_nbytes - self.header_nbytes - within


def arguments(method: PteMethod, call: Call) -> Iterator[int]:
    """Yield the arguments of a call, and the items of arguments that are lists."""
    for arg in call.args:
        yield arg
        yield from (item for item in method.values[arg].items if item != -1)


def check_data(found: Pte, buffer: Buffer) -> None:
    """Check that names of methods differ, that segments exist, and that sizes add up.

    Raises:
        BadStructure: two methods have one name, a segment does not exist, or sizes do
            not add up.
    """
    if len({method.name for method in found.methods}) < len(found.methods):
        buffer.fail(0, "two methods have the same name")
    used = [segment for _, segment in found.named] + [*found.mutable_segments]
    if found.constant_segment is not None:
        used.append(found.constant_segment)
    for one in used:
        if one >= len(found.segments):
            buffer.fail(0, f"segment {one} is not there")
    if found.tables_nbytes < 0:
        buffer.fail(0, "constants or payloads in the program overlap")


def check_method(method: PteMethod, buffer: Buffer) -> None:
    """Check that the values of a method exist, and that tensors fit in their memory.

    Raises:
        BadStructure: a value does not exist, or a tensor does not fit.
        LimitExceeded: the text of all calls would be too long.
    """
    count = len(method.values)
    named = [*method.inputs, *method.outputs]
    named += [arg for call in method.calls for arg in call.args]
    named += [item for value in method.values for item in value.items if item != -1]
    for value in named:
        if not 0 <= value < count:
            buffer.fail(0, f"value {value} of method {method.name!r} is not there")
    _check_shown(method, buffer)
    if any(nbytes < 0 for nbytes in method.buffers):
        buffer.fail(0, f"memory of method {method.name!r} has a negative size")
    for index, one in enumerate(method.values):
        if one.tensor and one.tensor.memory and one.tensor.dynamism != UNBOUND:
            number, offset = one.tensor.memory
            fits = number < len(method.buffers)
            if not fits or offset + one.tensor.nbytes > method.buffers[number]:
                buffer.fail(
                    0,
                    f"value {index} of method {method.name!r} lies outside its memory",
                )


def _check_shown(method: PteMethod, buffer: Buffer) -> None:
    """Check that the text of all calls, with their lists and texts, is not too long.

    Raises:
        LimitExceeded: the text is too long; a small file could name one list a million
            times.
    """
    values = [1 + len(v.items) + len(v.text) for v in method.values]
    names = {
        "kernel": [len(name) for name in method.operators],
        "delegate": [len(one.backend) for one in method.delegates],
    }
    found = sum(values[arg] for arg in (*method.inputs, *method.outputs))
    for call in method.calls:
        found += sum(values[arg] for arg in call.args)
        if call.kind in names:
            found += names[call.kind][call.what]
    if found > _MOST_SHOWN:
        what = "the length of all that calls of a method name"
        raise LimitExceeded(path=buffer.path, what=what, found=found, limit=_MOST_SHOWN)
