"""The decoded program: one frozen dataclass for each table of `program.fbs`.

`schema/codec` reads and writes programs, the verifiers check them, the compiler emits
them and the runtime runs them. The id of a method, state, cursor, name, blob or value
is its position in the tuple that holds it.
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
    """Where a write lands; the member's value is its number in the file."""

    ANYWHERE = 0
    SLOTS = 1  # rows from an index on; for a state with a cursor, the cursor
    APPEND = 2  # rows after the end
    REPLACE = 3  # the whole value, with a new length

    @property
    def lengthens(self) -> bool:
        """Tell whether the write may change the length of the value."""
        return self in (AccessMode.APPEND, AccessMode.REPLACE)


@frozen
class Access:
    """The write of an instruction to memory that outlives the instruction.

    Attributes:
        root: the value that owns the memory: a state, or a lent input.
        mode: where the write lands.
        axis: the axis of the slots, or of the changed length; None for ANYWHERE.
        size: the number of slots written, or the new length.
    """

    root: int
    mode: AccessMode
    axis: int | None = None
    size: Dim | None = None


@frozen
class Update:
    """One write to a state, or to an input in the caller's array.

    Attributes:
        instruction: index of the instruction that writes.
        reason: why the write needs copies of bytes; "" for a write in place.
        copies: indices of the instructions that copy these bytes, ascending.
        accesses: the accesses of the instruction, in order; of equal accesses, only
            the last.
    """

    instruction: int
    reason: str
    copies: tuple[int, ...]
    accesses: tuple[Access, ...] = ()


@frozen
class Block:
    """Code of a method that a control instruction runs.

    A block is a branch, the body or condition of a loop, or the code of a delegate. Its
    inputs are lent: they lie in the memory of the instruction's operands (`Caller`).
    Only inputs that are slices of operands lie in scratch.

    Attributes:
        graph: the code of the block; it accesses states only through its inputs.
        updates: a verdict for each write to an input, in order.
    """

    graph: Graph
    updates: tuple[Update, ...]


@frozen
class Advance:
    """The advance of a cursor by a call of a method.

    Attributes:
        cursor: id of the cursor.
        tokens: the number of tokens that a call adds to each row; None if loops decide
            the number, and the cursor's counter holds it after the call.
        lengths: index of the graph input that gives the number of `tokens` that count
            in each row, int64 [rows], or bool [rows] if `tokens` is 1; None if all
            count.
    """

    cursor: int
    tokens: Dim | None
    lengths: int | None = None


@frozen
class Method:
    """An entry point.

    Attributes:
        name: unique in the program.
        role: the method's role in a generation loop: "encode", "prefill", "decode",
            "prefill_all" or "".
        graph: the code of the method.
        input_names: one for each of `graph.inputs`, unique, as in error messages.
        input_tree: JSON of how arguments nest, see `kvc.schema.trees`.
        output_tree: JSON of how results nest.
        reads, writes: ids of the states that the method reads and writes, ascending.
        advances: the advances of cursors by a call, ascending by cursor.
        updates: a verdict for each write to a state or a caller's input, in order.
        blocks: code of control instructions; exactly one instruction names each block,
            in the method's graph or in an earlier block.
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
        """Return the method's name and inputs; `kvc dump --ops` prints its code."""
        return f"<Method {self.name}({', '.join(self.input_names)})>"

    def advance_of(self, cursor: int) -> Advance | None:
        """Return the advance of a cursor by a call, None for no advance."""
        return next((one for one in self.advances if one.cursor == cursor), None)

    @property
    def advance(self) -> Dim | None:
        """Return the number of tokens by which a call advances the position.

        None if a call does not advance the position, or if only the position's counter
        has the number.
        """
        found = self.advance_of(0)
        return None if found is None else found.tokens

    @property
    def row_lengths(self) -> int | None:
        """Return the index of the input with the row lengths; None if there is none."""
        found = self.advance_of(0)
        return None if found is None else found.lengths

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Return all graphs of a method: its own, then those of its blocks."""
        return (self.graph, *(block.graph for block in self.blocks))


class StateKind(IntEnum):
    """How calls write a state; the member's value is its number in the file."""

    PLAIN = 0  # the whole tensor, by any instructions
    LINEAR = 1  # rows at increasing slots of the sequence axis
    RING = 2  # as LINEAR, slots modulo their number
    APPEND = 3  # grows by concatenation
    COUNTER = 4  # integers that advance as the position does


class ResetRule(IntEnum):
    """The effect of a reset on a state; the member's value is its file code."""

    INITIAL = 0  # back to the initial value
    KEEP = 1  # untouched


@frozen
class State:
    """Memory that outlives a call; each session has its own.

    Attributes:
        name: unique in the program.
        type: dtype and dims; dims may use symbols that a session fixes. Along the
            sequence axis, an APPEND state has its maximum length here; values that hold
            the state have their actual length there.
        kind: how calls write it.
        axis: the sequence axis, None for PLAIN and COUNTER.
        layout: order of the dims in memory, outermost first; a permutation.
        initial: id of the named data with the initial value; None for zeros.
        reset: the effect of `Session.reset` on it.
        cursor: id of the cursor at which every write begins, so that content after the
            cursor is unused (LINEAR, RING, APPEND), or whose count the state holds
            (COUNTER); None otherwise.
        window: the window of queries, if calls write a RING at the position and only
            `kvc::attention` reads it after that, else None.
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
        """Tell whether every write to the state begins at its cursor."""
        return self.cursor is not None and self.kind is not StateKind.COUNTER


class CursorKind(IntEnum):
    """The source of a cursor; the member's value is its number in the file."""

    STATE = 0  # an integer state proven to advance by the token count
    SESSION = 1  # the session counts, and methods read the count as `CursorSlot`s
    LENGTH = 2  # the common length of its APPEND states


@frozen
class Cursor:
    """The position of each row: the number of tokens that it holds, int64 [rows].

    Attributes:
        name: name of the input or state that holds the position, "" if there is none.
        kind: the source of the cursor.
        state: id of the state (STATE), None otherwise.
        rows: the number of rows with positions of their own, in symbols that a session
            fixes; None if all rows share one position.
        capacity: the greatest position, in symbols that a session fixes; None for no
            limit.
    """

    name: str
    kind: CursorKind
    state: int | None
    rows: Dim | None
    capacity: Dim | None


@frozen
class DataFile:
    """A file that holds blobs; file 0 is the bundle itself, with empty name and digest.

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
        align: the largest alignment that any of the blob's names requires.
    """

    digest: bytes
    nbytes: int
    file: int
    offset: int
    align: int


@frozen
class NamedData:
    """A name for a blob; several names may share a blob.

    Attributes:
        name: unique in the program.
        blob: id of the blob.
        type: static; its size equals the blob's.
        format: "plain"; "file" for an added file, which no instruction uses; or the
            name of a packing: a copy of plain data in the form of a backend's library,
            which only its delegates use. Packed names come last.
        provenance: the origin of the name: a parameter's name, a pass, a backend.
    """

    name: str
    blob: int
    type: TensorType
    format: str
    provenance: str


class MemoryKind(IntEnum):
    """Who plans memory; the member's value is its number in the file."""

    PLANNED = 0  # kvc's planner
    OPAQUE = 1  # a library, within a stated bound


@frozen
class Delegate:
    """A block of a method that runs on a backend; `kvc::delegate` names the block.

    Attributes:
        backend: name of the backend.
        method: id of the method it belongs to.
        block: index of the method's block that holds the code.
        payload: data that the backend adds to the code, in a format of its own.
        names: ids of the named data that it uses, ascending; including packed data.
        memory: who plans its workspace.
        workspace_nbytes: upper bound of the workspace.
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
        recipe, recipe_text: as in `Provenance`.
        methods: the methods, with the program's names and signatures, in its order.
        delegates: partitions of these methods.
        symbols: the program's symbols, perhaps with other buckets.
    """

    recipe: str
    recipe_text: str
    methods: tuple[Method, ...]
    delegates: tuple[Delegate, ...]
    symbols: tuple[Symbol, ...]


@frozen
class Program:
    """The whole content of a bundle, except the bytes of its blobs.

    Attributes:
        provenance: the compiler and sources of the program.
        symbols: bounded sizes, with unique names.
        files, blobs, names: the data; see the class of each.
        states: memory that outlives a call.
        cursors: the positions of rows; the first is the program's position.
        methods: entry points.
        delegates: partitions of methods that run on backends.
        metadata: the user's own settings, from text to JSON text.
        variants: the methods by other recipes; `methods` and `delegates` are by the
            recipe of the provenance. Everything else is the same for all recipes.
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
        """Return the program of each recipe, without the other variants."""
        own = replace(self, variants=())
        return (own, *(_by_variant(own, variant) for variant in self.variants))

    @property
    def backends(self) -> tuple[str, ...]:
        """Return the backends of the partitions, the recipe's own backend first."""
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
