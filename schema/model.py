"""The decoded program: one frozen dataclass for each table of `program.fbs`.

`schema/codec` reads and writes programs, the verifiers check them, the compiler makes
them and the runtime runs them. The id of a method, state, cursor, name, blob or value
is its index in the tuple that contains it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import IntEnum

from kvc.schema.bounds import Bounds
from kvc.schema.frozen import frozen
from kvc.schema.graph import Access, Graph
from kvc.schema.provenance import Provenance
from kvc.schema.rings import Window
from kvc.schema.types import Dim, Symbol, TensorType


@frozen
class Update:
    """One write to a state, or to an input in the caller's array, and how it is done.

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

    A block is a branch, the body or condition of a loop, or the code of a delegate. The
    inputs of a block are lent: they lie in the memory of the instruction's operands
    (`Caller`). Only inputs that are slices of operands lie in scratch memory.

    Attributes:
        graph: the code of the block; it accesses states only through its inputs.
        updates: for each write to an input, in order, whether the write is in place.
    """

    graph: Graph
    updates: tuple[Update, ...]


@frozen
class Advance:
    """How far a call of a method advances a cursor.

    Attributes:
        cursor: id of the cursor.
        tokens: the number of tokens that a call adds to each row; None if loops decide
            the number, and the cursor's counter has it after the call.
        lengths: index of the graph input that says how many of the `tokens` count in
            each row, int64 [rows], or bool [rows] if `tokens` is 1; None if all tokens
            count.
    """

    cursor: int
    tokens: Dim | None
    lengths: int | None = None


@frozen
class Method:
    """A function of the model that callers can call.

    Attributes:
        name: unique in the program.
        role: the method's role in a generation loop: "encode", "prefill", "decode",
            "prefill_all" or "".
        graph: the code of the method.
        input_names: a unique name for each of `graph.inputs`, for error messages.
        input_tree: JSON text that says how arguments are nested; see
            `kvc.schema.trees`.
        output_tree: JSON text that says how results are nested.
        reads, writes: ids of the states that the method reads and writes, ascending.
        advances: how far a call advances cursors, ascending by cursor.
        updates: an entry for each write to a state or a caller's input, in order.
        blocks: code of control instructions; exactly one instruction names each block,
            in the method's graph or in an earlier block.
        adapts: id of an earlier method, for the body of that method that sessions with
            adapters run; None for a method that callers call.
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
    blocks: Sequence[Block] = ()
    adapts: int | None = None

    def __repr__(self) -> str:
        """Return the method's name and inputs; `kvc dump --ops` prints the code."""
        return f"<Method {self.name}({', '.join(self.input_names)})>"

    def advance_of(self, cursor: int) -> Advance | None:
        """Return how far a call advances a cursor; None if it does not."""
        return next((one for one in self.advances if one.cursor == cursor), None)

    @property
    def advance(self) -> Dim | None:
        """Return the number of tokens by which a call advances the program's position.

        None if a call does not advance the position, or if the number is known only
        after the call, from the position's counter.
        """
        found = self.advance_of(0)
        return None if found is None else found.tokens

    @property
    def row_lengths(self) -> int | None:
        """Return the index of the input of row lengths, None if there is none."""
        found = self.advance_of(0)
        return None if found is None else found.lengths

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Return all graphs of the method: its main graph, then those of its blocks."""
        return (self.graph, *(block.graph for block in self.blocks))


class StateKind(IntEnum):
    """How calls write a state; the member's value is its number in files."""

    PLAIN = 0  # the whole tensor, by any instructions
    LINEAR = 1  # rows at increasing slots of the sequence axis
    RING = 2  # as LINEAR, slots modulo their number
    APPEND = 3  # grows by concatenation
    COUNTER = 4  # integers that advance as the position does


class ResetRule(IntEnum):
    """How a reset changes a state; the member's value is its number in files."""

    INITIAL = 0  # back to the initial value
    KEEP = 1  # untouched


@frozen
class State:
    """Memory that outlives a call; each session has its own.

    Attributes:
        name: unique in the program.
        type: dtype and dims; dims may use symbols that a session fixes. For an APPEND
            state, the size of the sequence axis is its maximum here, and the actual
            length in the types of values that contain the state.
        kind: how calls write the state.
        axis: the sequence axis, None for PLAIN and COUNTER.
        layout: order of the dims in memory, outermost first; a permutation.
        initial: id of the named data with the initial value; None for zeros.
        reset: how `Session.reset` changes the state.
        cursor: for LINEAR, RING and APPEND, the id of the cursor at which every write
            begins, so that content after the cursor is unused. For COUNTER, the id of
            the cursor whose count the state stores. None if there is no such cursor.
        window: the window of queries over a RING, if calls write the ring at the
            position and only `kvc::attention` reads it after the write; None otherwise.
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
    """Where the value of a cursor comes from; the member's value is its file code."""

    STATE = 0  # an integer state proven to advance by the token count
    SESSION = 1  # the session counts, and methods read the count as `CursorSlot`s
    LENGTH = 2  # the common length of its APPEND states


@frozen
class Cursor:
    """A counter of tokens: for each row, how many tokens the row has, int64 [rows].

    Attributes:
        name: name of the input or state that has the count, "" if there is none.
        kind: where the value of the cursor comes from.
        state: for kind STATE, the id of the state; None otherwise.
        rows: the number of rows with counts of their own, in symbols that a session
            fixes; None if all rows share one count.
        capacity: the greatest allowed count, in symbols that a session fixes; None for
            no limit.
    """

    name: str
    kind: CursorKind
    state: int | None
    rows: Dim | None
    capacity: Dim | None


@frozen
class DataFile:
    """A file that contains blobs; file 0 is the bundle, with empty name and digest.

    Attributes:
        name: a file name without folders.
        digest: SHA-256 of the file's index, 32 bytes; b"" for file 0.
    """

    name: str
    digest: bytes


@frozen
class Blob:
    """A sequence of bytes in a file, identified by its content.

    Attributes:
        digest: 32 bytes, see `kvc.schema.digests`.
        nbytes: the number of bytes.
        file: id of the file, an index in `Program.files`.
        offset: position in that file, in bytes from the start; a multiple of `align`.
        align: the largest alignment that any of the blob's names requires, in bytes.
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
        type: a type without symbols; its size in bytes equals the blob's.
        format: "plain"; "file" for an added file, which no instruction uses; "slot" for
            data that the bundle does not have and whose blob is empty: zeros until an
            adapter fills them; or the name of a packing. Packed data is a copy of plain
            data in the form of a backend's library, and only that backend's delegates
            use it. Packed names come last.
        provenance: the origin of the data: a parameter's name, a pass, a backend.
    """

    name: str
    blob: int
    type: TensorType
    format: str
    provenance: str


class MemoryKind(IntEnum):
    """Who plans a delegate's workspace; the member's value is its number in files."""

    PLANNED = 0  # kvc's planner
    OPAQUE = 1  # a library, within a stated bound


@frozen
class Delegate:
    """A block of a method that a backend runs; a `kvc::delegate` names the block.

    Attributes:
        backend: name of the backend.
        method: id of the method that has the block.
        block: index of the block in `Method.blocks`.
        payload: data that the backend adds to the code, in a format of its own.
        names: ids of the named data that the delegate uses, ascending, with packed
            data.
        memory: who plans the workspace, the delegate's scratch memory.
        workspace_nbytes: upper bound of the workspace's size, in bytes.
        tail_nbytes: how many bytes must be readable after each input and output.
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
    """The methods of a program, compiled by another recipe for another backend.

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
        files, blobs, names: the data; see `DataFile`, `Blob` and `NamedData`.
        states: memory that outlives a call.
        cursors: counters of tokens; the first is the program's position.
        methods: the functions that callers can call.
        delegates: partitions of methods that run on backends.
        metadata: the user's own settings: JSON text by name.
        variants: the methods as other recipes compile them. `methods` and `delegates`
            are for the recipe of the provenance. All else is the same for all recipes.
        bounds: the methods as bound lists, None if there are none.
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
    bounds: Bounds | None = None

    @property
    def bodies(self) -> tuple["Program", ...]:
        """Return one program per recipe: that recipe's methods, no variants."""
        own = replace(self, variants=())
        others = (
            replace(
                own,
                provenance=replace(
                    self.provenance, recipe=one.recipe, recipe_text=one.recipe_text
                ),
                symbols=one.symbols,
                methods=one.methods,
                delegates=one.delegates,
                bounds=None,
            )
            for one in self.variants
        )
        return (own, *others)

    @property
    def is_listed(self) -> bool:
        """Tell whether each method has a bound list, so that none needs its backend."""
        lists = () if self.bounds is None else self.bounds.lists
        return {one.method for one in lists} == set(range(len(self.methods)))

    @property
    def backends(self) -> tuple[str, ...]:
        """Return the names of backends that run partitions, the recipe's first."""
        return tuple(dict.fromkeys(one.backend for one in self.delegates))

    @property
    def position(self) -> Cursor | None:
        """Return the cursor that is the program's position, None if there is none."""
        return self.cursors[0] if self.cursors else None
