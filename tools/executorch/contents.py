"""What a `.pte` file of ExecuTorch holds, as `program.py` reads it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

UNBOUND: Final = "unbound"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a method.

    Attributes:
        dtype: its name.
        sizes: upper bounds of them where it is dynamic.
        nbytes: at these sizes.
        dynamism: "" for fixed sizes, "bound" or "unbound".
        memory: number of its buffer and offset in bytes; None where the runtime or the
            caller gives memory.
        data: index of its data in the file, 0 for none.
        name: that the file tells, or "".
        external: whether its data lies in another file, under its name.
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
    """A value of a method: a tensor, or what stands as text."""

    kind: str
    text: str
    tensor: Tensor | None
    items: tuple[int, ...] = ()  # of a list of tensors or integers, as values


@dataclass(frozen=True, slots=True)
class Call:
    """An instruction; `what` indexes operators or delegates by its kind."""

    kind: str
    what: int
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PteDelegate:
    """A partition; `inline` is the size of a payload in the program, else `segment`."""

    backend: str
    inline: int
    segment: int | None
    specs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PteMethod:
    """A method as the file has it."""

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
    """Bytes after the program, `offset` counted from where segments begin."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Pte:
    """A program of ExecuTorch.

    Attributes:
        path, nbytes: of the file.
        version: of the schema.
        header_nbytes: of the extended header, 0 where there is none.
        program_nbytes: of the program with what lies in it, the header included.
        segments_at: where segments begin in the file.
        constants: bytes of each constant that lies in the program.
        inline: bytes of each delegate's payload that lies in the program.
        constant_segment: index of the one with constants, None for none.
        constant_offsets: of each in it.
        mutable_segments: of those with initial data of states.
        named: key and segment of data with a name.
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
        """Bytes of the program without data that lies in it."""
        within = sum(self.constants) + sum(self.inline)
        return self.program_nbytes - self.header_nbytes - within


def arguments(method: PteMethod, call: Call) -> Iterator[int]:
    """Yield the values that a call names, those within lists of tensors too."""
    for arg in call.args:
        yield arg
        yield from (item for item in method.values[arg].items if item != -1)
