"""The proof: an order in which every write can happen in place.

In: a functional method. Out: the method in an order in which each write can use the
memory of the value that it overwrites, and a verdict for each write. A write can use
that memory if no later node reads the old value or a view of the old value, so readers
of the old value are put before the write. Some nodes need both the old and the new
value, and a method can return the old value to its caller. They get a copy that is made
just before the write; the verdict reports the bytes of that copy. The emitted program
is checked again by `kvc.schema.verify`, which shares no code with this module.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kvc.compiler.ir import Method, Node, Program, Value
from kvc.compiler.ir.control import (
    blocks_by_number,
    control_of,
    entries,
    with_over,
)
from kvc.compiler.place.index_checks import add_index_checks
from kvc.compiler.place.persistent import (
    HANDED_OUT,
    VIEW_WRITTEN,
    CopyReason,
    Write,
    both_read,
    find_persistent,
    with_old_contents,
)
from kvc.compiler.place.schedule import Schedule
from kvc.compiler.place.through_blocks import Placer
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import Symbol


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one write to persistent memory copies in addition to the written values.

    Attributes:
        memory: name of the state or input that is written; in a block, of that of the
            method that runs the block.
        value: id of the new value.
        reason: all reasons why bytes are copied; "" if the write is in place.
        copies: ids of the values that hold the copied bytes.
        nbytes: number of bytes that a call copies, for the greatest sizes.
        source: the line of the user's code that writes.
        remedy: changes of the model that would avoid the copies; "" if there are none.
    """

    memory: str
    value: int
    reason: str
    copies: tuple[int, ...]
    nbytes: int
    source: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """A method in its final order, and the verdicts on its writes, in order."""

    method: Method
    verdicts: tuple[Verdict, ...]


def prove_all(program: Program) -> dict[str, Proof]:
    """Return name -> proof, for all methods and their blocks.

    A method is proven before the blocks that it runs.
    """
    blocks = blocks_by_number(program)
    placer = Placer(blocks)
    proofs: dict[str, Proof] = {}
    named: dict[str, dict[str, str]] = defaultdict(dict)  # block -> input -> memory
    waiting = list(entries(program))
    while waiting:
        proof = prove(placer.mark(waiting.pop()), program)
        proof = _with_names(proof, named[proof.method.name])
        proofs[proof.method.name] = proof
        for block, name, memory in _handed_on(proof, blocks):
            named[block][name] = memory
        waiting += placer.blocks_to_prove(proof.method)
    return proofs


def _with_names(proof: Proof, names: Mapping[str, str]) -> Proof:
    """Return a block's proof, whose verdicts name the memory as the caller does."""
    told = (replace(v, memory=names.get(v.memory, v.memory)) for v in proof.verdicts)
    return replace(proof, verdicts=tuple(told))


def _handed_on(
    proof: Proof, blocks: Mapping[int, Method]
) -> Iterator[tuple[str, str, str]]:
    """Yield (block, its input, memory) for the memory that a method's blocks write."""
    written = {verdict.value: verdict.memory for verdict in proof.verdicts}
    for node in proof.method.nodes:
        control = control_of(node)
        if control is None:
            continue
        for result, place in zip(node.outputs, control.over, strict=True):
            if place is None or result.id not in written:
                continue
            for number in control.blocks:
                block = blocks[number]
                yield block.name, block.input_names[place], written[result.id]


def prove(method: Method, program: Program) -> Proof:
    """Return a method in an order in which its writes are in place, with verdicts."""
    symbols = {symbol.name: symbol for symbol in program.symbols}
    grows = {s.name: s.grows for s in program.states if s.grows is not None}
    method = with_old_contents(method, grows)
    # Outputs that lie in the memory of inputs are no reason to keep an old content:
    # the proof decides their values.
    placed = _placed(method)
    kept = tuple(v for i, v in enumerate(method.outputs) if i not in placed)
    schedule = Schedule(replace(method, outputs=kept))
    memories = find_persistent(schedule, grows, symbols)
    written = {write.result.id for memory in memories for write in memory.writes}
    for key, node in schedule.nodes.items():
        control = control_of(node)
        if control is not None:
            pairs = zip(node.outputs, control.over, strict=True)
            over = tuple(k if v.id in written else None for v, k in pairs)
            schedule.nodes[key] = with_over(node, over)
    costs = [
        (memory.name, write, _clear(schedule, write))
        for memory in memories
        for write in memory.writes
    ]
    add_index_checks(schedule, [write.key for _, write, _ in costs])
    keys = schedule.sorted()
    final = _with_placed(schedule.finish(keys), method)
    order = {key: i for i, key in enumerate(keys)}
    verdicts = [
        (order[write.key], _verdict(schedule, name, write, saved, symbols))
        for name, write, saved in costs
    ]
    verdicts += _grown(final, method)
    verdicts.sort(key=lambda pair: pair[0])
    return Proof(final, tuple(verdict for _, verdict in verdicts))


@dataclass(frozen=True, slots=True)
class WriteOrder:
    """A method in which readers of old contents precede the writes over them.

    Attributes:
        method: the method. A node that reads both the old and the new content follows
            the write.
        waits: index of a node that writes persistent memory -> indices of the readers
            that must run before it.
    """

    method: Method
    waits: Mapping[int, frozenset[int]]


def in_write_order(method: Method, program: Program) -> WriteOrder:
    """Order a method's nodes so that its writes can be in place."""
    symbols = {symbol.name: symbol for symbol in program.symbols}
    grows = {s.name: s.grows for s in program.states if s.grows is not None}
    marked = with_old_contents(Placer(blocks_by_number(program)).mark(method), grows)
    schedule, count = Schedule(marked), len(method.nodes)
    waits: dict[int, set[int]] = {}
    for memory in find_persistent(schedule, grows, symbols):
        for write in memory.writes:
            waits.setdefault(write.key, set()).update(_order_readers(schedule, write))
    keys = [key for key in schedule.sorted() if key < count]
    places = {key: i for i, key in enumerate(keys)}
    nodes = tuple(method.nodes[key] for key in keys)
    found = {
        places[key]: frozenset(places[reader] for reader in readers if reader < count)
        for key, readers in waits.items()
        if key < count
    }
    return WriteOrder(replace(method, nodes=nodes, state_in=marked.state_in), found)


def _order_readers(schedule: Schedule, write: Write) -> set[int]:
    """Put the readers of a write's old content before the write; return their keys.

    Readers that must run after the write stay after it.
    """
    if schedule.nodes[write.key].op == "kvc::append":
        return set()
    readers = {
        user for value in schedule.closure(write.old) for user in schedule.users(value)
    }
    readers -= {write.key, *schedule.descendants(write.key)}
    for reader in readers:
        schedule.order(reader, write.key)
    return readers


def _placed(block: Method) -> dict[int, str]:
    """Return output index -> input name, for outputs in the memory of an input."""
    names = {value.id: name for value, name in block.input_out}
    if block.block is None:
        return {}
    return {i: names[v.id] for i, v in enumerate(block.outputs) if v.id in names}


def _with_placed(final: Method, block: Method) -> Method:
    """Return a proven block with all outputs that the block had before the proof.

    The proof leaves out the outputs that lie in the memory of inputs.
    """
    placed, left = _placed(block), {name: value for value, name in final.input_out}
    kept = iter(final.outputs)
    return replace(
        final,
        outputs=tuple(
            left[placed[i]] if i in placed else next(kept)
            for i in range(len(block.outputs))
        ),
    )


def _grown(final: Method, method: Method) -> Iterator[tuple[int, Verdict]]:
    """Yield (node index, verdict) for each node that appends to a caller's array.

    An append to the result of another such append counts too.
    """
    changed = {name for _, name in method.input_out}
    named = zip(method.inputs, method.input_names, strict=True)
    arrays = {value.id: name for value, name in named if name not in changed}
    for i, node in enumerate(final.nodes):
        if node.op == "kvc::append" and node.inputs[0].id in arrays:
            name, result = arrays[node.inputs[0].id], node.outputs[0].id
            arrays[result] = name
            yield i, Verdict(name, result, "", (), 0, node.source)


@dataclass(frozen=True, slots=True)
class _Saved:
    """Copies of values that a write overwrites, and the reasons for them."""

    values: tuple[Value, ...] = ()
    reasons: tuple[CopyReason, ...] = ()


def _clear(schedule: Schedule, write: Write) -> _Saved:
    """Let nodes after a write read copies of overwritten values; return the copies.

    The copies come with the reasons for them.
    """
    node = schedule.nodes[write.key]
    if node.op == "kvc::append":
        return _Saved()  # it leaves the old rows unchanged
    lost = schedule.closure(write.old)
    saver = _Saver(schedule, write.key)
    for value in _beside_target(node, write):
        if value.id in lost:
            saver.save_operand(value)
    readers = {user for value in lost for user in schedule.users(value)} - {write.key}
    for reader in sorted(readers - _order_readers(schedule, write)):
        saver.save_reads(reader, lost)
    for value in schedule.method.outputs:
        if value.id in lost:
            saver.save_output(value)
    return _Saved(tuple(saver.clones.values()), tuple(saver.reasons))


def _beside_target(node: Node, write: Write) -> tuple[Value, ...]:
    """Return the operands of a write except the value that it overwrites."""
    match OPS[node.op].aliasing:
        case Aliasing.UPDATE:
            return node.inputs[1:]
        case Aliasing.CONTROL:
            control = control_of(node)
            assert control is not None
            over = control.over[node.outputs.index(write.result)]
            others = [v for i, v in enumerate(control.operands) if i != over]
            return (*others, *(() if control.pred is None else (control.pred,)))
    return ()


class _Saver:
    """Copies old contents before one write; each value is copied at most once."""

    def __init__(self, schedule: Schedule, write: int) -> None:
        self._schedule, self._write = schedule, write
        self.clones: dict[int, Value] = {}
        self.reasons: dict[CopyReason, None] = {}  # in order

    def save_operand(self, value: Value) -> None:
        """Let the write read a copy of `value`, except as its overwritten operand."""
        clone = self._clone(value, VIEW_WRITTEN)
        self._schedule.rename(self._write, value, clone, but_target=True)

    def save_reads(self, reader: int, lost: Mapping[int, Value]) -> None:
        """Let node `reader` read copies of the overwritten values in `lost`."""
        node = self._schedule.nodes[reader]
        reason = both_read(node.op, node.source)
        for value in dict.fromkeys(node.inputs):
            if value.id in lost:
                self._schedule.rename(reader, value, self._clone(value, reason))

    def save_output(self, value: Value) -> None:
        """Let the method return a copy of `value`, which is overwritten."""
        self._schedule.rename_outputs(value, self._clone(value, HANDED_OUT))

    def _clone(self, value: Value, reason: CopyReason) -> Value:
        self.reasons[reason] = None
        if value.id not in self.clones:
            clone = self.clones[value.id] = self._schedule.fresh(value.type)
            source = self._schedule.nodes[self._write].source
            node = Node("aten::clone", (value,), (clone,), source)
            self._schedule.add_before(self._write, node)
        return self.clones[value.id]


def _verdict(
    schedule: Schedule,
    memory: str,
    write: Write,
    saved: _Saved,
    symbols: Mapping[str, Symbol],
) -> Verdict:
    copies = [*saved.values, *([write.result] if write.reason else [])]
    # Only all of these changes together avoid the copies.
    reasons = [*([write.reason] if write.reason else []), *saved.reasons]
    return Verdict(
        memory=memory,
        value=write.result.id,
        reason="; ".join(reason.text for reason in reasons),
        copies=tuple(value.id for value in copies),
        nbytes=sum(value.type.max_nbytes(symbols) for value in copies),
        source=schedule.nodes[write.key].source,
        remedy="; and ".join(reason.remedy for reason in reasons),
    )
