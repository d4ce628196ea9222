"""The reports of `kvc dump` on a program or data file of ExecuTorch."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvc.tools.executorch.contents import UNBOUND, Call, Pte, PteMethod
from kvc.tools.executorch.memory import (
    WRITE_BACK,
    operator_of,
    peak_of,
    states_of,
    tensor_in_memory,
    writes_back,
    written_by,
)
from kvc.tools.executorch.reading import Ptd
from kvc.tools.reports.blobs import PartReport, SizeReport

_COPIES: Final = ("_copy", "::clone", WRITE_BACK, "::_clone_dim_order")


@dataclass(frozen=True, slots=True)
class PteFileReport:
    """The path, size and version of the file."""

    path: str
    nbytes: int
    format: str
    schema_version: int


@dataclass(frozen=True, slots=True)
class PteMethodReport:
    """A method.

    Attributes:
        inputs, outputs: types of the inputs and outputs; for other values than tensors,
            the kind of value.
        kernels: number of calls of each operator outside delegates.
        delegates: number of calls of each backend.
        others: number of jumps, moves and frees.
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
        value: number of the tensor among the method's values.
        initial: whether the file has the data that the tensor starts with.
        written: operators that write the tensor; empty if only delegates may write it.
        copied: bytes that whole copies into the tensor take in each call.
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
        buffers: sizes of the buffers in which the method's tensors lie.
        peak_live: the most bytes that are in use at one moment; no plan can be smaller.
        states: bytes of the method's states, which are in use all the time.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PteReport:
    """All that `kvc dump` knows about a program or data file of ExecuTorch.

    Attributes:
        needed: names of tensors whose data lies in other files.
    """

    file: PteFileReport
    methods: tuple[PteMethodReport, ...] = ()
    states: tuple[PteStateReport, ...] = ()
    updates: tuple[PteCopyReport, ...] = ()
    blobs: tuple[PteDataReport, ...]
    needed: tuple[str, ...] = ()
    delegates: tuple[PteDelegateReport, ...] = ()
    memory: tuple[PteMemoryReport, ...] = ()
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
        needed=tuple(
            dict.fromkeys(
                value.tensor.name
                for method in pte.methods
                for value in method.values
                if value.tensor and value.tensor.external
            )
        ),
        delegates=tuple(one for m in pte.methods for one in _delegates(pte, m)),
        memory=tuple(_memory(m, states[m.name]) for m in pte.methods),
        size=SizeReport(pte.nbytes, tuple(_program_parts(pte)), ()),
    )


def describe_ptd(ptd: Ptd) -> PteReport:
    """Return the reports on a data file, which has no methods."""
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
        blobs=blobs,
        size=SizeReport(ptd.nbytes, tuple(_padded(parts, ptd.nbytes)), ()),
    )


def typed(method: PteMethod, value: int) -> str:
    """Return the type of a tensor, or the text of another value."""
    found = method.values[value]
    if found.tensor is None:
        return shown(method, value)
    tensor = found.tensor
    more = {"": "", "bound": " at most", UNBOUND: " of any sizes"}[tensor.dynamism]
    return f"{tensor.dtype}{list(tensor.sizes)}{more}"


def shown(method: PteMethod, value: int) -> str:
    """Return a value's text in a call: `%3` for a tensor, the content for others."""
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


def _method(method: PteMethod) -> PteMethodReport:
    calls = Counter(call.kind for call in method.calls)
    kernels = [operator_of(method, c) for c in method.calls if c.kind == "kernel"]
    backends = [
        method.delegates[c.what].backend for c in method.calls if c.kind == "delegate"
    ]
    return PteMethodReport(
        name=method.name,
        inputs=tuple(typed(method, value) for value in method.inputs),
        outputs=tuple(typed(method, value) for value in method.outputs),
        kernels=dict(Counter(kernels)),
        delegates=dict(Counter(backends)),
        others=calls.total() - calls["kernel"] - calls["delegate"],
    )


def _states(method: PteMethod, states: Sequence[int]) -> Iterator[PteStateReport]:
    writes: dict[int, list[Call]] = {value: [] for value in states}
    for call in method.calls:
        for value in dict.fromkeys(written_by(method, call)):
            if value in writes:
                writes[value].append(call)
    for value, calls in writes.items():
        tensor = method.values[value].tensor
        assert tensor is not None
        whole = [call for call in calls if writes_back(method, call)]
        yield PteStateReport(
            method=method.name,
            value=value,
            name=tensor.name,
            type=typed(method, value),
            nbytes=tensor.nbytes,
            initial=tensor.data > 0,
            written=tuple(dict.fromkeys(operator_of(method, call) for call in calls)),
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
        at = one.segment
        inside = one.inline if at is None else pte.segments[at].nbytes
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
    """Yield every part of a program's file; all other bytes are padding."""
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
