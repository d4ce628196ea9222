"""What `kvc dump` says of a program or data file of ExecuTorch: its reports.

Such a file does not say which tensors are states. Here those are the ones with planned
memory that a call reads before anything of the same method writes them, inputs left
out: what they hold then is from the call before, or from the data they start with.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvc.tools.executorch.flat_tensor import Ptd
from kvc.tools.executorch.peak import peak_of, tensor_in_memory
from kvc.tools.executorch.program import (
    UNBOUND,
    Call,
    Pte,
    PteMethod,
    Tensor,
    arguments,
)
from kvc.tools.reports.sizes import PartReport, SizeReport

_WRITE_BACK: Final = "aten::copy_"
_COPIES: Final = ("_copy", "::clone", _WRITE_BACK, "::_clone_dim_order")


@dataclass(frozen=True, slots=True)
class PteFileReport:
    """The file itself."""

    path: str
    nbytes: int
    format: str
    schema_version: int


@dataclass(frozen=True, slots=True)
class PteMethodReport:
    """A method.

    Attributes:
        inputs, outputs: types; of what is no tensor, the kind of value.
        kernels: calls of each operator outside delegates.
        delegates: calls of each backend.
        others: jumps, moves and frees.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kernels: dict[str, int]
    delegates: dict[str, int]
    others: int


@dataclass(frozen=True, slots=True)
class PteStateReport:
    """A tensor that keeps its content between calls of a method.

    Attributes:
        value: of the method.
        initial: whether the file has the data that it starts with.
        written: operators that write it, "nothing here" for none.
        copied: bytes that whole copies into it take in each call.
    """

    method: str
    value: int
    name: str
    type: str
    nbytes: int
    initial: bool
    written: tuple[str, ...]
    copied: int


@dataclass(frozen=True, slots=True)
class PteMemoryReport:
    """Planned memory of a method, in bytes, with every size at its upper bound.

    Attributes:
        buffers: sizes of the buffers that its tensors share.
        peak_live: the most that is in use at one moment; no plan can be smaller.
        states: bytes of its states, which are in use all the time.
    """

    method: str
    buffers: tuple[int, ...]
    peak_live: int
    states: int


@dataclass(frozen=True, slots=True)
class PteCopyReport:
    """Calls of an operator of a method that only copies, and the bytes they write."""

    method: str
    operator: str
    calls: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class PteDelegateReport:
    """A partition of a method; `calls` are instructions that run it."""

    method: str
    backend: str
    payload_nbytes: int
    specs: tuple[str, ...]
    calls: int


@dataclass(frozen=True, slots=True)
class PteDataReport:
    """Data with a name; data with equal segments is stored once."""

    name: str
    type: str
    segment: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class PteReport:
    """All that `kvc dump` knows about such a file.

    Attributes:
        needed: names of tensors whose data lies in other files.
    """

    file: PteFileReport
    methods: tuple[PteMethodReport, ...]
    states: tuple[PteStateReport, ...]
    updates: tuple[PteCopyReport, ...]
    blobs: tuple[PteDataReport, ...]
    needed: tuple[str, ...]
    delegates: tuple[PteDelegateReport, ...]
    memory: tuple[PteMemoryReport, ...]
    size: SizeReport


def describe_pte(pte: Pte) -> PteReport:
    """Return the reports on a program."""
    states = {m.name: states_of(m) for m in pte.methods}
    return PteReport(
        file=PteFileReport(pte.path, pte.nbytes, "ExecuTorch program", pte.version),
        methods=tuple(map(_method, pte.methods)),
        states=tuple(one for m in pte.methods for one in _states(m, states[m.name])),
        updates=tuple(one for m in pte.methods for one in _copies(m)),
        blobs=tuple(
            PteDataReport(key, "", segment, pte.segments[segment].nbytes)
            for key, segment in pte.named
        ),
        needed=tuple(dict.fromkeys(_needed(pte))),
        delegates=tuple(one for m in pte.methods for one in _delegates(pte, m)),
        memory=tuple(_memory(m, states[m.name]) for m in pte.methods),
        size=SizeReport(pte.nbytes, tuple(_program_parts(pte)), ()),
    )


def _needed(pte: Pte) -> Iterator[str]:
    for method in pte.methods:
        for value in method.values:
            if value.tensor and value.tensor.external:
                yield value.tensor.name


def describe_ptd(ptd: Ptd) -> PteReport:
    """Return the reports on a data file: it has no methods."""
    segments = {entry.segment for entry in ptd.entries}
    known = sum(ptd.segments[one].nbytes for one in segments)
    rest = [s.nbytes for i, s in enumerate(ptd.segments) if i not in segments]
    parts = [
        PartReport("header", "", 1, ptd.header_nbytes),
        PartReport("index", "", 1, ptd.index_nbytes - ptd.header_nbytes),
        PartReport("blobs", "data with names", len(segments), known),
        PartReport("blobs", "without a name", len(rest), sum(rest)),
    ]
    blobs = tuple(
        PteDataReport(e.key, e.type, e.segment, ptd.segments[e.segment].nbytes)
        for e in ptd.entries
    )
    return PteReport(
        file=PteFileReport(ptd.path, ptd.nbytes, "ExecuTorch data file", ptd.version),
        methods=(),
        states=(),
        updates=(),
        blobs=blobs,
        needed=(),
        delegates=(),
        memory=(),
        size=SizeReport(ptd.nbytes, tuple(_padded(parts, ptd.nbytes)), ()),
    )


def typed(method: PteMethod, value: int) -> str:
    """Return the type of a tensor, or of another value its text."""
    found = method.values[value]
    if found.tensor is None:
        return shown(method, value)
    tensor = found.tensor
    more = {"": "", "bound": " at most", UNBOUND: " of any sizes"}[tensor.dynamism]
    return f"{tensor.dtype}{list(tensor.sizes)}{more}"


def shown(method: PteMethod, value: int) -> str:
    """Return what stands for a value in a call: `%3` of a tensor, else its content."""
    found = method.values[value]
    if found.tensor is not None:
        return f"%{value}"
    if found.kind in ("tensors", "ints"):
        items = (_item(method, item) for item in found.items)
        return f"[{', '.join(items)}]"
    return found.text


def _item(method: PteMethod, item: int) -> str:
    if item == -1:
        return "None"
    found = method.values[item]
    return found.text if found.tensor is None else f"%{item}"


def operator_of(method: PteMethod, call: Call) -> str:
    """Return the name of what a call runs."""
    if call.kind == "kernel":
        return method.operators[call.what]
    if call.kind == "delegate":
        return f"delegate {call.what} ({method.delegates[call.what].backend})"
    return call.kind


def written_by(method: PteMethod, call: Call) -> tuple[int, ...]:
    """Return the values that a call surely writes: a kernel's last argument.

    What a delegate writes stands among its arguments, and only it knows where.
    """
    if call.kind == "kernel" and call.args:
        last = call.args[-1]
        if method.values[last].kind == "tensors":
            return tuple(item for item in method.values[last].items if item != -1)
        return (last,)
    return call.args[1:] if call.kind == "move" else ()


def states_of(method: PteMethod) -> tuple[int, ...]:
    """Return the values whose content is from before the call."""
    seen, found, filled = set(method.inputs), [], _Filled()
    back = {call.args[0] for call in method.calls if _writes_back(method, call)}
    for value in method.inputs:
        filled.add(method.values[value].tensor)
    for call in method.calls:
        written = frozenset(written_by(method, call))
        for value in arguments(method, call):
            tensor = method.values[value].tensor
            if value in seen or tensor is None or tensor.memory is None:
                continue
            seen.add(value)
            reads = call.kind == "kernel" and value not in written
            if (reads and not filled.touches(tensor)) or value in back:
                found.append(value)
        # A delegate may fill all that it is given.
        for value in call.args if call.kind == "delegate" else written:
            filled.add(method.values[value].tensor)
    return tuple(found)


class _Filled:
    """The bytes of planned memory that something has filled, as spans that are apart.

    A view is a tensor of its own here: its memory is filled, though no call writes it.
    """

    def __init__(self) -> None:
        self._starts: list[tuple[int, int]] = []
        self._ends: list[tuple[int, int]] = []

    def _around(self, tensor: Tensor) -> tuple[int, int, int, int, int]:
        """Return buffer, start and end of a tensor, and which spans it touches."""
        assert tensor.memory is not None
        number, start = tensor.memory
        end = start + tensor.nbytes
        first = bisect_right(self._ends, (number, start))
        last = bisect_left(self._starts, (number, end))
        return number, start, end, first, last

    def touches(self, tensor: Tensor) -> bool:
        *_, first, last = self._around(tensor)
        return first < last

    def add(self, tensor: Tensor | None) -> None:
        if tensor is None or tensor.memory is None or not tensor.nbytes:
            return
        number, start, end, first, last = self._around(tensor)
        if first < last:
            start = min(start, self._starts[first][1])
            end = max(end, self._ends[last - 1][1])
        self._starts[first:last] = [(number, start)]
        self._ends[first:last] = [(number, end)]


def _writes_back(method: PteMethod, call: Call) -> bool:
    """Tell whether a call ends a method's work on a state, by a copy into it."""
    return operator_of(method, call) == _WRITE_BACK and len(call.args) > 1


def _method(method: PteMethod) -> PteMethodReport:
    kernels: dict[str, int] = {}
    delegates: dict[str, int] = {}
    others = 0
    for call in method.calls:
        if call.kind == "kernel":
            name = operator_of(method, call)
            kernels[name] = kernels.get(name, 0) + 1
        elif call.kind == "delegate":
            backend = method.delegates[call.what].backend
            delegates[backend] = delegates.get(backend, 0) + 1
        else:
            others += 1
    return PteMethodReport(
        name=method.name,
        inputs=tuple(typed(method, value) for value in method.inputs),
        outputs=tuple(typed(method, value) for value in method.outputs),
        kernels=kernels,
        delegates=delegates,
        others=others,
    )


def _states(method: PteMethod, states: Sequence[int]) -> Iterator[PteStateReport]:
    writes: dict[int, list[Call]] = {value: [] for value in states}
    for call in method.calls:
        for value in dict.fromkeys(written_by(method, call)):
            if value in writes:
                writes[value].append(call)
    for value, calls in writes.items():
        yield _state(method, value, calls)


def _state(method: PteMethod, value: int, writes: Sequence[Call]) -> PteStateReport:
    tensor = method.values[value].tensor
    assert tensor is not None
    whole = [call for call in writes if _writes_back(method, call)]
    return PteStateReport(
        method=method.name,
        value=value,
        name=tensor.name,
        type=typed(method, value),
        nbytes=tensor.nbytes,
        initial=tensor.data > 0,
        written=tuple(dict.fromkeys(operator_of(method, call) for call in writes)),
        copied=tensor.nbytes * len(whole),
    )


def _copies(method: PteMethod) -> Iterator[PteCopyReport]:
    found: dict[str, list[int]] = {}
    for call in method.calls:
        name = operator_of(method, call)
        base = name.partition(".")[0]
        if call.kind == "kernel" and base.endswith(_COPIES):
            nbytes = sum(
                tensor.nbytes
                for value in written_by(method, call)
                if (tensor := method.values[value].tensor)
            )
            found.setdefault(name, []).append(nbytes)
    for name, sizes in sorted(found.items(), key=lambda one: -sum(one[1])):
        yield PteCopyReport(method.name, name, len(sizes), sum(sizes))


def _delegates(pte: Pte, method: PteMethod) -> Iterator[PteDelegateReport]:
    calls = Counter(call.what for call in method.calls if call.kind == "delegate")
    for index, one in enumerate(method.delegates):
        inside = one.inline
        if one.segment is not None:
            inside = pte.segments[one.segment].nbytes
        yield PteDelegateReport(
            method.name, one.backend, inside, one.specs, calls[index]
        )


def _memory(method: PteMethod, states: Sequence[int]) -> PteMemoryReport:
    tensors = (tensor_in_memory(method, value) for value in states)
    kept = sum(tensor.nbytes for tensor in tensors if tensor)
    return PteMemoryReport(
        method=method.name,
        buffers=method.buffers[1:],
        peak_live=peak_of(method, states),
        states=kept,
    )


def _program_parts(pte: Pte) -> Iterator[PartReport]:
    """Yield every part of a program's file; what nothing names is padding."""
    backends: dict[int, str] = {}
    for method in pte.methods:
        for one in method.delegates:
            if one.segment is not None:
                backends.setdefault(one.segment, one.backend)
    named = {segment for _, segment in pte.named}
    mutable = set(pte.mutable_segments)
    groups: dict[str, list[int]] = {}
    for index, segment in enumerate(pte.segments):
        what = "without a name"
        if index == pte.constant_segment:
            what = "constants"
        elif index in mutable:
            what = "what states start with"
        elif index in backends:
            what = f"payloads of {backends[index]}"
        elif index in named:
            what = "data with names"
        groups.setdefault(what, []).append(segment.nbytes)
    inline = [("constants", pte.constants), ("payloads of delegates", pte.inline)]
    parts = [PartReport("header", "", 1, pte.header_nbytes)]
    parts += [PartReport("blobs", what, len(g), sum(g)) for what, g in groups.items()]
    parts += [
        PartReport("program", what, len(sizes), sum(sizes)) for what, sizes in inline
    ]
    parts.append(
        PartReport(
            "program", "tables of methods and values; code", 1, pte.tables_nbytes
        )
    )
    yield from _padded(parts, pte.nbytes)


def _padded(parts: Sequence[PartReport], nbytes: int) -> Iterator[PartReport]:
    known = sum(part.nbytes for part in parts)
    yield from (part for part in parts if part.nbytes)
    if nbytes > known:
        yield PartReport("padding", "between segments", 1, nbytes - known)
