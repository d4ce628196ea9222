"""The decoded program: one frozen dataclass for each table of `program.fbs`.

`schema/codec` reads and writes it, the verifiers check it, the compiler emits it and
the runtime runs it. Ids are positions in the tuple that holds the thing.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum

from kvc.schema.frozen import frozen
from kvc.schema.graph import Graph
from kvc.schema.provenance import Provenance
from kvc.schema.rings import Window
from kvc.schema.types import Dim, Symbol, TensorType


class AccessMode(IntEnum):
    """Where a write lands; the number is the one in the file."""

    ANYWHERE = 0
    SLOTS = 1  # rows from an index on, which of a state at a cursor is the cursor
    APPEND = 2  # after the end
    REPLACE = 3  # all of it, with another length

    @property
    def lengthens(self) -> bool:
        """Tell whether what is written has another length afterwards."""
        return self in (AccessMode.APPEND, AccessMode.REPLACE)


@frozen
class Access:
    """How an instruction writes over memory that outlives it.

    Attributes:
        root: the value that the memory belongs to: a state, or an input that is lent.
        mode: where it lands.
        axis: that of the slots, or that becomes longer; None for ANYWHERE.
        size: how many slots are written, or how long the value is then.
    """

    root: int
    mode: AccessMode
    axis: int | None = None
    size: Dim | None = None


@frozen
class Update:
    """One write over a state, or over an input in the caller's array.

    Attributes:
        instruction: index of the instruction that writes.
        reason: why bytes are copied for it; "" when none are, which is "in place".
        copies: indices of the instructions that copy these bytes, ascending.
        accesses: what it writes over, in order; of equal ones, the last.
    """

    instruction: int
    reason: str
    copies: tuple[int, ...]
    accesses: tuple[Access, ...] = ()


@frozen
class Block:
    """Code that a control instruction of a method runs.

    It is a branch, a turn of a loop, or what a delegate runs. Its inputs are lent: they
    lie in the memory of the instruction's operands (`Caller`), apart from those that
    are parts of operands, which lie in scratch.

    Attributes:
        graph: its code; it touches no state but by its inputs.
        updates: a verdict for each write over an input, in order.
    """

    graph: Graph
    updates: tuple[Update, ...]


@frozen
class Advance:
    """What a call of a method adds to a cursor.

    Attributes:
        cursor: its id.
        tokens: how many a call adds to each row; None where loops decide that, and the
            cursor's counter says it after the call.
        lengths: index among the graph's inputs of how many of `tokens` count in each
            row, int64 [rows], or bool [rows] where that is 1; None where all count.
    """

    cursor: int
    tokens: Dim | None
    lengths: int | None = None


@frozen
class Method:
    """An entry point.

    Attributes:
        name: unique in the program.
        role: what it is to a generation loop: "encode", "prefill", "decode",
            "prefill_all" or "".
        graph: its code.
        input_names: one for each of `graph.inputs`, unique, as error messages say them.
        input_tree: JSON of how arguments nest, see `kvc.schema.trees`.
        output_tree: JSON of how results nest.
        reads, writes: ids of the states it reads and writes, ascending.
        advances: what a call adds to cursors, ascending by cursor.
        updates: a verdict for each write over a state or a caller's input, in order.
        blocks: code of control instructions; each is named by one argument of one
            instruction, of the method or of a block before it.
    """

    name: str
    role: str
    graph: Graph
    input_names: tuple[str, ...]
    input_tree: str
    output_tree: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    advances: tuple[Advance, ...]
    updates: tuple[Update, ...]
    blocks: tuple[Block, ...] = ()

    def __repr__(self) -> str:
        """Return its name and its inputs; `kvc dump --ops` prints its code."""
        return f"<Method {self.name}({', '.join(self.input_names)})>"

    def advance_of(self, cursor: int) -> Advance | None:
        """Return what a call adds to a cursor, None when it adds nothing."""
        return next((one for one in self.advances if one.cursor == cursor), None)

    @property
    def advance(self) -> Dim | None:
        """Return how many tokens a call adds to the position.

        None for none, and where only its counter says so.
        """
        found = self.advance_of(0)
        return None if found is None else found.tokens

    @property
    def row_lengths(self) -> int | None:
        """Return the input with the row lengths; None if there is none."""
        found = self.advance_of(0)
        return None if found is None else found.lengths

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Return all of a method's code, that of its blocks after its own."""
        return (self.graph, *(block.graph for block in self.blocks))


class StateKind(IntEnum):
    """How a state is written; the number is the one in the file."""

    PLAIN = 0  # whole tensor, any spelling
    LINEAR = 1  # rows at increasing slots of the sequence axis
    RING = 2  # as LINEAR, slots modulo their number
    APPEND = 3  # grows by concatenation
    COUNTER = 4  # integers to which every call adds what it adds to the position


class ResetRule(IntEnum):
    """What a reset does to a state; the number is the one in the file."""

    INITIAL = 0  # back to the initial value
    KEEP = 1  # untouched


@frozen
class State:
    """Memory that outlives a call; each session has its own.

    Attributes:
        name: unique in the program.
        type: dtype and dims; dims may use symbols that a session fixes. Along the
            axis of an APPEND state it is the greatest length; values that are such a
            state have their own size there.
        kind: how it is written.
        axis: the sequence axis, None for PLAIN and COUNTER.
        layout: order of the dims in memory, outermost first; a permutation.
        initial: id of the named data it starts as; None for zeros.
        reset: what `Session.reset` does to it.
        cursor: id of the cursor at which every write to it begins, so that what lies
            after the cursor is dead (LINEAR, RING, APPEND), or that it counts as
            (COUNTER); None for any other.
        window: what a query sees, where calls write a RING at the position and
            `kvc::attention` alone reads it after that, else None.
    """

    name: str
    type: TensorType
    kind: StateKind
    axis: int | None
    layout: tuple[int, ...]
    initial: int | None
    reset: ResetRule
    cursor: int | None
    window: Window | None = None

    @property
    def at_position(self) -> bool:
        """Tell whether every write to it begins at its cursor."""
        return self.cursor is not None and self.kind is not StateKind.COUNTER


class CursorKind(IntEnum):
    """Where a cursor comes from; the number is the one in the file."""

    STATE = 0  # an integer state proven to advance by the token count
    SESSION = 1  # the session counts, and methods take it as `CursorSlot`s
    LENGTH = 2  # the common length of its APPEND states


@frozen
class Cursor:
    """Where each row stands: how many tokens it holds, int64 [rows].

    Attributes:
        name: of the input or state that it stands for, "" where there is none.
        kind: where it comes from.
        state: id of the state (STATE), None otherwise.
        rows: how many rows have positions of their own, in terms of symbols that a
            session fixes; None where there is one for all rows.
        capacity: greatest position, in terms of symbols that a session fixes; None
            where nothing limits it.
    """

    name: str
    kind: CursorKind
    state: int | None
    rows: Dim | None
    capacity: Dim | None


@frozen
class DataFile:
    """A file that holds blobs: 0 is the bundle itself, with empty name and digest.

    Attributes:
        name: a plain file name, never a path.
        digest: SHA-256 of its index, 32 bytes, or b"" for file 0.
    """

    name: str
    digest: bytes


@frozen
class Blob:
    """A run of bytes in a file, addressed by content.

    Attributes:
        digest: 32 bytes, see `kvc.schema.digests`.
        nbytes: exact length.
        file: id of the data file.
        offset: absolute position in that file, a multiple of `align`.
        align: the largest alignment that any of its names asked for.
    """

    digest: bytes
    nbytes: int
    file: int
    offset: int
    align: int


@frozen
class NamedData:
    """A name for a blob; many names may share one.

    Attributes:
        name: unique in the program.
        blob: id of the blob.
        type: static; its bytes equal the blob's.
        format: "plain"; "file" for a file that goes along, which nothing computes
            with; or the name of a packing: a copy of plain data in the form of a
            backend's library, which only its delegates use. Packed names are last.
        provenance: who asked for it: a parameter's name, a pass, a backend.
    """

    name: str
    blob: int
    type: TensorType
    format: str
    provenance: str


class MemoryKind(IntEnum):
    """Who lays memory out; the number is the one in the file."""

    PLANNED = 0  # kvc's planner
    OPAQUE = 1  # a library, within a stated bound


@frozen
class Delegate:
    """A block of a method that a backend runs; `kvc::delegate` names the block.

    Attributes:
        backend: name of the backend.
        method: id of the method it belongs to.
        block: which block of the method is its code.
        payload: what the backend adds to that code, in a form of its own.
        names: ids of the named data it uses, ascending; packed data among it.
        memory: who lays out its workspace.
        workspace_nbytes: bound of that workspace.
        tail_nbytes: bytes that must be readable after each of its inputs and outputs.
    """

    backend: str
    method: int
    block: int
    payload: bytes
    names: tuple[int, ...]
    memory: MemoryKind
    workspace_nbytes: int
    tail_nbytes: int


@frozen
class Variant:
    """The same methods, lowered by another recipe for another backend.

    Attributes:
        recipe, recipe_text: as of `Provenance`.
        methods: of the program's names and signatures, in its order.
        delegates: partitions of these methods.
        symbols: the program's, perhaps with other buckets.
    """

    recipe: str
    recipe_text: str
    methods: tuple[Method, ...]
    delegates: tuple[Delegate, ...]
    symbols: tuple[Symbol, ...]


@frozen
class Program:
    """All that a bundle says beside the bytes of its blobs.

    Attributes:
        provenance: who made it of what.
        symbols: bounded sizes, by unique name.
        files, blobs, names: the data, see each.
        states: memory that outlives a call.
        cursors: where rows stand; the first is the program's position.
        methods: entry points.
        delegates: partitions of methods that backends run.
        metadata: the user's own settings, text to JSON text.
        variants: the methods by other recipes; `methods` and `delegates` are by that of
            the provenance. All else is the same for all of them.
    """

    provenance: Provenance
    symbols: tuple[Symbol, ...]
    files: tuple[DataFile, ...]
    blobs: tuple[Blob, ...]
    names: tuple[NamedData, ...]
    states: tuple[State, ...]
    cursors: tuple[Cursor, ...]
    methods: tuple[Method, ...]
    delegates: tuple[Delegate, ...]
    metadata: Mapping[str, str]
    variants: tuple[Variant, ...] = ()

    @property
    def bodies(self) -> tuple["Program", ...]:
        """Return what each recipe made of the program, without the other variants."""
        own = replace(self, variants=())
        return (own, *(_by_variant(own, variant) for variant in self.variants))

    @property
    def backends(self) -> tuple[str, ...]:
        """Return the backends of its partitions, the recipe's own first."""
        return tuple(dict.fromkeys(one.backend for one in self.delegates))

    @property
    def position(self) -> Cursor | None:
        """Return the cursor that counts the tokens of prefill and decode."""
        return self.cursors[0] if self.cursors else None


def _by_variant(program: Program, variant: Variant) -> Program:
    origin = replace(
        program.provenance, recipe=variant.recipe, recipe_text=variant.recipe_text
    )
    return replace(
        program,
        provenance=origin,
        symbols=variant.symbols,
        methods=variant.methods,
        delegates=variant.delegates,
    )
