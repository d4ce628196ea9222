"""A bundle at a glance, as text: methods, states, shared weights, parts of the file.

In: the reports on a bundle. Out: lines for one screen, with sizes in three digits.
Equal layers share a line. `tables.py` prints everything in exact bytes.
"""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Final

from kvc.schema.text import NUMBER, columns, escape, families, plural, share, size
from kvc.schema.uses import FILE, PLAIN
from kvc.tools.reports.blobs import (
    DataFileReport,
    PartReport,
    SharingReport,
    SizeReport,
)
from kvc.tools.reports.bundle import (
    CalibrationReport,
    CostReport,
    DumpReport,
    RecipeReport,
)
from kvc.tools.reports.memory import (
    MemoryReport,
    PositionReport,
    StateReport,
    UpdateReport,
)
from kvc.tools.reports.methods import (
    ANY_ADVANCE,
    DelegateReport,
    MethodReport,
    SymbolReport,
)
from kvc.tools.reports.needs import needs_text, ops_text

_WIDTH: Final = 100  # of a terminal, in columns


def overview_lines(report: DumpReport) -> list[str]:
    """Lay out the overview of a bundle on one screen."""
    file, memory = report.file, report.memory
    lines = [
        cost_line(report.cost),
        f"{escape(file.path)}: {_file_sizes(report.size)}, "
        f"recipe {escape(file.recipe)}, made by kvc {escape(file.kvc_version)} "
        f"(torch {escape(file.torch_version)})",
        *_need_lines(report.recipes),
        f"digest {file.digest[:16]}: bundles of equal content have equal digests",
        f"identity {file.identity[:16]}: a saved session goes on with any bundle of it",
        *_calibration_lines(file.calibration),
        *_recipe_section(report),
        *("", "METHODS", *method_lines(report.methods)),
        "",
        f"STATE, at most {size(memory.states)} for each session, kept between calls "
        "(r: reads, w: writes)",
        *_state_section(report),
        *(
            "",
            "DATA, each blob stored once",
            *sharing_lines(report.sharing, report.adapters),
        ),
    ]
    if report.delegates:
        title = "DELEGATES, partitions of a method that a backend runs"
        lines += ["", title, *delegate_summary_lines(report.delegates)]
    lines += [
        *("", f"MEMORY, {size(memory.scratch)} of scratch while a method runs"),
        *_memory_section(memory),
        *("", f"FILE, {size(file.nbytes)}"),
        *size_summary_lines(report.size.parts, file.nbytes),
    ]
    for other in report.size.data_files:
        summary = size_summary_lines(other.parts, other.nbytes)
        lines += ["", *data_file_title(other), *summary]
    if report.metadata:
        rows = [(escape(k), escape(v)) for k, v in report.metadata.items()]
        lines += ["", "METADATA", *columns(rows)]
    return lines


def _need_lines(recipes: Sequence[RecipeReport]) -> list[str]:
    """Say what each recipe needs at run time; a recipe alone is not named."""
    lines = []
    for one in recipes:
        who = f"{escape(one.recipe)} " * (len(recipes) > 1)
        text = f"{who}needs {needs_text(one.needs)}"
        lines += wrap(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return lines


def _calibration_lines(used: CalibrationReport | None) -> list[str]:
    """Describe the samples that ranges of values were found with."""
    if used is None:
        return []
    tokens = f" ({plural(used.tokens, 'token')})" if used.tokens else ""
    samples = f"{plural(used.samples, 'sample')}{tokens}"
    return [
        f"calibrated by {escape(used.method)} with {samples} of {escape(used.kind)}, "
        f"SHA-256 {escape(used.digest[:16])}"
    ]


def _recipe_section(report: DumpReport) -> list[str]:
    """List the bundle's recipes, if it has more than one."""
    if len(report.recipes) < 2:
        return []
    title = "RECIPES, of which load takes the first that can run, or that asked for"
    shown = f"  methods, delegates and memory below are those of {report.file.recipe}"
    titles = ("recipe", "--backend", "run by", "partitions", "for PyTorch", "scratch")
    rows = [
        (
            escape(one.recipe),
            escape(one.backend),
            ", ".join(map(escape, one.backends)),
            str(one.partitions),
            str(one.left),
            size(one.scratch),
        )
        for one in report.recipes
    ]
    return ["", title, *columns([titles, *rows], "<<<>>>"), escape(shown)]


def _file_sizes(sizes: SizeReport) -> str:
    if not sizes.data_files:
        return size(sizes.nbytes)
    beside = sum(file.nbytes for file in sizes.data_files)
    files = plural(len(sizes.data_files), "data file")
    return f"{size(sizes.nbytes)} and {size(beside)} in {files}"


def cost_line(cost: CostReport) -> str:
    """Return what a bundle costs as one line."""
    memory = f"{size(cost.memory)} in memory"
    if cost.tokens:
        each = f", {size(cost.token)} each" * (cost.token > 0)
        memory += f" at {plural(cost.tokens, 'token')}{each}"
    parts = [f"{size(cost.disk)} on disk", memory]
    if cost.computing:
        parts.append(
            f"{share(cost.delegated, cost.computing)} of instructions in delegates"
        )
    return "; ".join(parts)


def method_lines(methods: Sequence[MethodReport]) -> list[str]:
    """Return the lines of each method: signature, sizes, code."""
    if not methods:
        return ["  none"]
    return [line for method in methods for line in _method_lines(method)]


def _bounds(symbol: SymbolReport) -> str:
    if symbol.sizes:
        return f"{escape(symbol.name)} in {', '.join(map(str, symbol.sizes))}"
    return f"{symbol.lower} <= {escape(symbol.name)} <= {symbol.upper}"


def _method_lines(method: MethodReport) -> list[str]:
    role = f"   role {escape(method.role)}" if method.role else ""
    inputs = ", ".join(f"{escape(i.name)}: {escape(i.type)}" for i in method.inputs)
    outputs = ", ".join(escape(o.type) for o in method.outputs) or "nothing"
    lines = [f"  {escape(method.name)}({inputs}) -> {outputs}{role}"]
    lines += [f"      {_bounds(symbol)}" for symbol in method.symbols]
    if method.row_lengths:
        row_lengths, tokens = escape(method.row_lengths), escape(method.advance)
        said = f"of {tokens} tokens {row_lengths} says how many count in each row"
        if tokens == "1":
            said = f"{row_lengths} says which rows take part"
        lines.append(f"      {said}; left out: all")
    if method.advance == ANY_ADVANCE:
        lines.append("      its loops decide how many tokens it adds to the position")
    text = instructions_text(method.computing, method.instructions)
    for backend in dict.fromkeys(method.backends):
        calls = plural(method.backends.count(backend), "call")
        text += f", {calls} of the backend {escape(backend)}"
    lines.append(f"      {text}; {_states_text(method)}")
    if method.backends:
        text = left_text(method.left)
        if method.lists:
            text += f"; {plural(method.lists, 'bound list')}"
        lines.append(f"      {text}")
    return lines


def instructions_text(computing: int, all_of_them: int) -> str:
    """Say how many instructions compute, and how many instructions there are in all.

    Args:
        computing: number of instructions that compute.
        all_of_them: number of all instructions, including views, calls and moves of
            elements.
    """
    text = plural(computing, "instruction")
    return text + f" ({all_of_them:,} with views)" * (all_of_them > computing)


def left_text(left: Mapping[str, int]) -> str:
    """Say how many instructions no backend runs, and name the most frequent ops."""
    if not left:
        return "none left to PyTorch"
    return f"{sum(left.values())} left to PyTorch ({ops_text(left)})"


def _states_text(method: MethodReport) -> str:
    reads, writes = set(method.reads), set(method.writes)
    if reads == writes:
        return (
            f"reads and writes {plural(len(reads), 'state')}" if reads else "no state"
        )
    if not reads or not writes:
        verb = "reads" if reads else "writes"
        return f"{verb} {plural(len(reads | writes), 'state')}"
    return f"reads {plural(len(reads), 'state')}, writes {plural(len(writes), 'state')}"


def _state_section(report: DumpReport) -> list[str]:
    if not report.states:
        return ["  none; every call stands alone"]
    rows = []
    for pattern, group in state_families(report.states):
        one, nbytes = group[0], size(group[0].nbytes)
        many = "" if len(group) == 1 else f"{len(group)} x "
        window = "" if one.window is None else f", window {one.window}"
        kind = f"{one.kind}{window}"
        row = (escape(pattern), one.type, kind, f"{many}{nbytes}", state_users(one))
        rows.append(row)
    told = (position_line(report.position), copy_summary(report.updates))
    return [*columns(rows, "<<<>"), *told]


def state_families(
    states: Sequence[StateReport], apart: bool = False
) -> list[tuple[str, list[StateReport]]]:
    """Group states whose names differ only in a number; `apart`: do not group."""
    return families(
        states,
        name=lambda s: s.name,
        like=lambda s: (
            s.type,
            s.kind,
            s.window,
            s.axis,
            s.reads,
            s.writes,
            NUMBER.sub("#", s.initial),
        ),
        apart=apart,
    )


def state_users(state: StateReport) -> str:
    """Name the methods that read (r) and write (w) a state."""
    used = ", ".join(
        f"{escape(user)} {'r' * (user in state.reads)}{'w' * (user in state.writes)}"
        for user in dict.fromkeys((*state.reads, *state.writes))
    )
    return used or "nobody"


def position_line(position: PositionReport | None) -> str:
    """Say in one line where the position comes from."""
    if position is None:
        return "  position: none; nothing in this program counts tokens"
    source = {
        "state": f"counted by the state {escape(position.source)}",
        "input": f"the input {escape(position.source)}, filled by the session",
        "length": "the common length of the states that grow",
    }[position.kind]
    capacity = position.capacity
    if capacity is None:
        return f"  position: {source}; no limit"
    chosen = f" ({escape(position.chosen)})" if position.chosen else ""
    return f"  position: {source}; at most {plural(capacity, 'token')}{chosen}"


def copy_summary(updates: Sequence[UpdateReport]) -> str:
    """Say in one line whether writing the states copies them."""
    copies = [u for u in updates if u.verdict == "COPY"]
    if not copies:
        return f"  {plural(len(updates), 'update')} of states, all in place"
    worst = sum(u.bytes_per_call for u in copies)
    return (
        f"  {plural(len(updates), 'update')} of states, {len(copies)} by copy: "
        f"{size(worst)} if each method is called once (kvc dump --copies)"
    )


def packed_text(form: str) -> str:
    """Name the format of a packed weight; return "" for a plain weight."""
    return "" if form == PLAIN else f" ({escape(form)})"


def sharing_lines(sharing: Sequence[SharingReport], adapters: str) -> list[str]:
    """Say which blobs methods share, and the bytes if each method kept its own.

    `adapters` are the words for the slots of adapters, "" for none.
    """
    rows = [
        (_users_of(group), size(group.nbytes), plural(group.blobs, "blob"))
        for group in sharing
    ]
    lines = columns(rows, "<>>")
    plain = [group for group in sharing if group.format == PLAIN]
    once = sum(group.nbytes for group in plain)
    apart = sum(group.nbytes * max(1, len(group.methods)) for group in plain)
    if apart > once:
        lines.append(
            f"  {size(once)} stored once; {size(apart)} if methods kept their own"
        )
    if adapters:
        lines.append(f"  slots for {adapters}; no bytes here")
    return lines


def _users_of(group: SharingReport) -> str:
    if group.format == FILE and not group.methods:
        return "files that go along"
    names = " + ".join(map(escape, group.methods))
    users = f"{names}, shared" if len(group.methods) > 1 else f"{names} only"
    return (users if names else "initial values of states") + packed_text(group.format)


def delegate_summary_lines(delegates: Sequence[DelegateReport]) -> list[str]:
    """Lay out a line for the delegates of each method and backend."""
    laid_out = {
        "planned": "memory, laid out by kvc:",
        "opaque": "memory of its own, at most",
    }
    groups: dict[tuple[str, str, str], list[DelegateReport]] = {}
    for one in delegates:
        groups.setdefault((one.method, one.backend, one.memory), []).append(one)
    rows = [
        (
            escape(method),
            escape(backend),
            plural(len(group), "delegate"),
            instructions_text(
                sum(d.computing for d in group), sum(d.instructions for d in group)
            ),
            f"{plural(sum(d.names for d in group), 'weight')}",
            f"{laid_out.get(memory, f'memory ({memory}):')} "
            f"{size(max(d.workspace_nbytes for d in group))}",
        )
        for (method, backend, memory), group in groups.items()
    ]
    return columns(rows, "<<>>>")


def plan_text(planned: int, peak_live: int) -> str:
    """Say how much larger the planned arena is than the peak of memory in use."""
    if planned <= peak_live:
        return "as small as it can be: all of it is in use at one moment"
    over = share(planned - peak_live, peak_live)
    return f"{over} more than is ever in use at one moment"


def _memory_section(memory: MemoryReport) -> list[str]:
    rows = [
        (escape(m.method), size(m.planned), plan_text(m.planned, m.peak_live))
        for m in memory.methods
    ]
    bounds = [
        f"  planned at {escape(name)} = {upper}"
        for name, (_, upper) in memory.symbols.items()
    ]
    return [*columns(rows, "<>"), *bounds]


def data_file_title(file: DataFileReport) -> list[str]:
    """Return the title of a data file, and whether the file was found."""
    known = f"DATA FILE {escape(file.name)} (digest {file.digest[:16]}), "
    if not file.problem:
        return [known + size(file.nbytes)]
    return [f"{known}NOT USABLE", f"  {escape(file.problem)}", "  it should hold:"]


def size_summary_lines(parts: Sequence[PartReport], nbytes: int) -> list[str]:
    """Return lines of parts in three digits, most bytes first, without tiny parts."""
    shown = sorted(parts, key=lambda part: -part.nbytes)
    kept = [part for part in shown if part.nbytes * 1000 >= nbytes]
    rows = [
        (
            size(p.nbytes),
            share(p.nbytes, nbytes),
            f"{p.category} {part_text(p)}".rstrip(),
        )
        for p in kept
    ]
    rest = sum(part.nbytes for part in shown) - sum(part.nbytes for part in kept)
    if rest:
        rows.append((size(rest), share(rest, nbytes), "the rest (kvc dump --size)"))
    return columns(rows, ">>")


def part_text(part: PartReport) -> str:
    """Name a part of a file, and the number of its blobs."""
    if part.category == "blobs":
        return f"{escape(part.what)} ({plural(part.count, 'blob')})"
    return escape(part.what)
