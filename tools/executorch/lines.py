"""Reports on files of ExecuTorch as text."""

from collections.abc import Callable, Sequence

from kvc.schema.text import columns, escape, families, plural, share, size
from kvc.tools.executorch.contents import PteMethod
from kvc.tools.executorch.memory import operator_of, written_by
from kvc.tools.executorch.report import (
    PteMethodReport,
    PteReport,
    PteStateReport,
    shown,
    typed,
)
from kvc.tools.reports.overview import plan_text, size_summary_lines
from kvc.tools.reports.tables import size_lines
from kvc.tools.text import table

_NO_STATES = "  none that can be told: every tensor is written before it is read"
_FEW = 3  # names of operators in a line, at most


def pte_lines(report: PteReport) -> list[str]:
    """Lay out a summary of a file on one screen."""
    file = report.file
    lines = [
        f"{escape(file.path)}: {size(file.nbytes)}, {file.format} "
        f"(schema version {file.schema_version})"
    ]
    if report.methods:
        lines += ["", "METHODS", *_methods(report.methods)]
        kept = sum(state.nbytes for state in report.states)
        title = f"STATE, {size(kept)} that calls read before they write it"
        lines += ["", title, *_state_families(report.states)]
    lines += ["", "DATA", *_data_summary(report)]
    if report.delegates:
        groups: dict[tuple[str, str], list[int]] = {}
        for part in report.delegates:
            sizes = groups.setdefault((part.method, part.backend), [])
            sizes.append(part.payload_nbytes)
        parts = [
            (
                escape(method),
                escape(backend),
                plural(len(sizes), "delegate"),
                f"{size(sum(sizes))} of payload; what runs inside, only it knows",
            )
            for (method, backend), sizes in groups.items()
        ]
        lines += ["", "DELEGATES", *columns(parts, "<<>")]
    if report.memory:
        title = "MEMORY, planned for each method by itself"
        rows = []
        for one in report.memory:
            planned = sum(one.buffers)
            more = plan_text(planned, one.peak_live)
            rows.append((escape(one.method), size(planned), more))
        lines += ["", title, *columns(rows, "<>")]
    lines += ["", f"FILE, {size(file.nbytes)}"]
    return [*lines, *size_summary_lines(report.size.parts, file.nbytes)]


def table_of(name: str) -> Callable[[PteReport], list[str]]:
    """Return the function that lays out a table in full, by the name of its option."""
    return {
        "size": lambda report: size_lines(report.size),
        "memory": _memory,
        "states": lambda report: _states(report.states),
        "copies": _copies,
        "blobs": _blobs,
        "delegates": _delegates,
    }[name]


def code_lines(method: PteMethod) -> list[str]:
    """Lay out the instructions of a method, outputs of kernels after an arrow."""
    lines = [f"{escape(method.name)}"]
    lines += [f"  input %{value}: {typed(method, value)}" for value in method.inputs]
    for index, call in enumerate(method.calls):
        given = ", ".join(shown(method, value) for value in call.args[:-1])
        last = shown(method, call.args[-1]) if call.args else ""
        name = operator_of(method, call)
        if call.kind == "jump unless":
            text = f"{name} {last}, to {call.what}"
        elif call.kind == "kernel":
            made = ", ".join(
                f"%{value}: {typed(method, value)}{_place(method, value)}"
                for value in written_by(method, call)
                if method.values[value].tensor
            )
            text = f"{name}({given})" + (f" -> {made}" if made else "")
        else:
            text = f"{name}({', '.join(filter(None, (given, last)))})"
        lines.append(f"  {index:>4} | {escape(text)}")
    returned = ", ".join(shown(method, value) for value in method.outputs)
    return [*lines, f"  return {escape(returned)}"]


def _place(method: PteMethod, value: int) -> str:
    tensor = method.values[value].tensor
    if tensor is None or tensor.memory is None:
        return ""
    number, offset = tensor.memory
    return f" at {number}:{offset:,}"


def _methods(methods: Sequence[PteMethodReport]) -> list[str]:
    lines = []
    for one in methods:
        given, made = ", ".join(one.inputs), ", ".join(one.outputs)
        lines.append(escape(f"  {one.name}({given}) -> {made or 'nothing'}"))
        left = sum(one.kernels.values())
        count = left + sum(one.delegates.values()) + one.others
        calls = [
            f", {plural(n, 'call')} of {escape(backend)}"
            for backend, n in one.delegates.items()
        ]
        lines.append(f"      {plural(count, 'instruction')}{''.join(calls)}")
        if left:
            names = _few(list(one.kernels))
            lines.append(f"      {left:,} outside delegates ({names})")
    return lines


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(escape, [*names[:_FEW], *["..."] * (len(names) > _FEW)]))


def _state_families(states: Sequence[PteStateReport]) -> list[str]:
    if not states:
        return [_NO_STATES]
    found = families(
        states,
        name=lambda s: f"{s.method} {s.name or f'%{s.value}'}",
        like=lambda s: (s.method, s.type, s.written, s.copied > 0),
    )
    rows = [
        (
            escape(pattern),
            group[0].type,
            f"{len(group)} x " * (len(group) > 1) + size(group[0].nbytes),
            _writers(group[0]),
        )
        for pattern, group in found
    ]
    copied = sum(state.copied for state in states)
    note = "  no state is copied whole"
    if copied:
        whole = sum(state.nbytes for state in states)
        note = (
            f"  {size(copied)} copied into states if each method is called once "
            f"({share(copied, whole)} of what they hold)"
        )
    return [*columns(rows, "<<><"), note]


def _writers(state: PteStateReport) -> str:
    if state.copied:
        return "overwritten whole in each call"
    return f"written by {_few(state.written) or 'nothing here'}"


def _states(states: Sequence[PteStateReport]) -> list[str]:
    rows = [
        (
            escape(s.method),
            f"%{s.value}",
            escape(s.name) or "-",
            s.type,
            f"{s.nbytes:,}",
            "data of the file" if s.initial else "not in the file",
            _few(s.written) or "nothing here",
            f"{s.copied:,}",
        )
        for s in states
    ]
    titles = ("method", "value", "name", "type", "bytes", "starts as", "written by")
    return table((*titles, "copied a call"), rows, "<<<<><<>", _NO_STATES)


def _copies(report: PteReport) -> list[str]:
    rows = [
        (escape(one.method), escape(one.operator), f"{one.calls:,}", f"{one.nbytes:,}")
        for one in report.updates
    ]
    none = "  no instruction outside delegates only copies"
    return table(("method", "operator", "calls", "bytes a call"), rows, "<<>>", none)


def _data_summary(report: PteReport) -> list[str]:
    once = {blob.segment: blob.nbytes for blob in report.blobs}
    lines = ["  none with names"]
    if once:
        names = plural(len(report.blobs), "name")
        lines = [f"  {size(sum(once.values()))} with names: {names}"]
    if report.needed:
        names = plural(len(report.needed), "tensor")
        lines.append(f"  {names} in other files ({_few(report.needed)})")
    return lines


def _blobs(report: PteReport) -> list[str]:
    rows = [
        (f"{one.nbytes:,}", str(one.segment), one.type or "-", escape(one.name))
        for one in report.blobs
    ]
    rows += [("-", "-", "another file", escape(name)) for name in report.needed]
    none = "  none with names"
    return table(("bytes", "segment", "type", "name"), rows, ">><<", none)


def _delegates(report: PteReport) -> list[str]:
    if not report.delegates:
        return ["  no backend runs anything"]
    rows = [
        (
            escape(one.method),
            escape(one.backend),
            f"{one.payload_nbytes:,}",
            f"{one.calls:,}",
            ", ".join(map(escape, one.specs)) or "-",
        )
        for one in report.delegates
    ]
    lines = columns(
        [("method", "backend", "payload", "calls", "options"), *rows], "<<>>"
    )
    for method in report.methods:
        left = [(f"{count:,}", escape(name)) for name, count in method.kernels.items()]
        title = f"{escape(method.name)}, outside delegates:"
        lines += ["", f"  {title}{'' if left else ' nothing'}"]
        lines += columns(left, "><", indent=6)
    return lines


def _memory(report: PteReport) -> list[str]:
    rows = [
        (
            escape(one.method),
            f"{sum(one.buffers):,}",
            f"{one.peak_live:,}",
            f"{one.states:,}",
            ", ".join(f"{nbytes:,}" for nbytes in one.buffers) or "-",
        )
        for one in report.memory
    ]
    title = ("method", "planned", "peak live", "of it states", "buffers")
    total = sum(sum(one.buffers) for one in report.memory)
    return [
        *columns([title, *rows], "<>>>"),
        f"  all methods loaded: {size(total)}, each with memory of its own",
    ]
