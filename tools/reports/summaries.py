"""What `kvc compile` and `kvc diff` print, as text.

In: a new bundle; the differences of two. Out: lines.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvc.schema.adapters import slots_text
from kvc.schema.container import BundleFile, SavedBundle
from kvc.schema.dtypes import DType
from kvc.schema.model import Program
from kvc.schema.ops.products import QB4_BYTES, QB4_ROWS
from kvc.schema.text import columns, escape, families, plural, size
from kvc.schema.uses import PLAIN
from kvc.tools.reports.blobs import describe_sharing
from kvc.tools.reports.differences import Change, DifferenceReport, Item, OperatorChange
from kvc.tools.reports.memory import describe_memory
from kvc.tools.reports.methods import describe_methods
from kvc.tools.reports.needs import describe_needs, needs_text
from kvc.tools.reports.overview import left_text

if TYPE_CHECKING:
    from kvc.compiler.emit.bundle import Bundle, SaveReport

_WHY: Final = ", as no --recipe was given"


def compiled_lines(
    path: Path,
    bundle: "Bundle",
    report: "SaveReport",
    packed: SavedBundle | None,
    seconds: float,
    chosen: bool,
) -> list[str]:
    """Return the table that `kvc compile` prints.

    Args:
        path: path of the bundle.
        bundle: the compiled bundle.
        report: report on the written bundle.
        packed: report on the packed weights, None if no weights were packed.
        seconds: seconds that the command took.
        chosen: whether kvc chose the recipe.
    """
    with BundleFile.open(path) as file:
        program = file.program
    rows = [
        ("methods", ", ".join(escape(method.name) for method in program.methods)),
        *_recipe_rows(program, chosen),
        *_weight_rows(program, bundle.model_nbytes),
        *_form_rows(bundle.stored_forms),
        *_file_rows(report),
        *_packed_rows(packed),
        *([("adapters", slots_text(program))] if slots_text(program) else []),
        *_memory_rows(program),
        ("time", f"{seconds:.1f} s"),
    ]
    return [escape(str(path)), *columns(rows)]


def _recipe_rows(program: Program, chosen: bool) -> list[tuple[str, str]]:
    rows = []
    for body in program.bodies:
        rows.append(("recipe", escape(body.provenance.recipe) + _WHY * chosen))
        rows += _backend_rows(body)
        rows.append(("needs", needs_text(describe_needs(body))))
    return rows


def _backend_rows(program: Program) -> list[tuple[str, str]]:
    if not program.delegates:
        return []
    backends = dict.fromkeys(
        escape(partition.backend) for partition in program.delegates
    )
    rows = []
    for method in describe_methods(program):
        partitions = plural(len(method.backends), "partition")
        rows.append(f"{escape(method.name)}: {partitions}, {left_text(method.left)}")
    return [*zip((", ".join(backends), *("",) * len(rows)), rows, strict=False)]


def _weight_rows(program: Program, model_nbytes: int) -> list[tuple[str, str]]:
    sharing = [one for one in describe_sharing(program) if one.format == PLAIN]
    once, blobs = (
        sum(one.nbytes for one in sharing),
        sum(one.blobs for one in sharing),
    )
    apart = sum(group.nbytes * max(1, len(group.methods)) for group in sharing)
    return [
        ("weights", f"{size(model_nbytes)} in the model"),
        ("", f"{size(apart)} by this recipe, if each method kept its own"),
        ("", f"{size(once)} stored, each once ({plural(blobs, 'blob')})"),
        *_bit_rows(program),
    ]


def _form_rows(forms: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return what became of the matrices that a checkpoint has quantized."""
    told = [f"{plural(count, 'matrix')} of {form}" for form, count in forms.items()]
    names = ("checkpoint", *("",) * len(told))
    return [*zip(names, told, strict=False)]


def _bit_rows(program: Program) -> list[tuple[str, str]]:
    """Return the numbers of int4 and of int8 matrices, no row if both are 0."""
    plain = (named.type for named in program.names if named.format == PLAIN)
    kinds = [kind for kind in plain if len(kind.dims) > 1]
    by_eights = (QB4_ROWS, QB4_BYTES)
    counts = {
        "int4": sum(k.dtype is DType.UINT8 and k.dims[2:] == by_eights for k in kinds),
        "int8": sum(k.dtype is DType.INT8 for k in kinds),
    }
    told = ", ".join(f"{count:,} of {bits}" for bits, count in counts.items() if count)
    return [("", f"matrices: {told}")] if told else []


def _file_rows(report: "SaveReport") -> list[tuple[str, str]]:
    rows = [("file", f"{size(report.file_nbytes)} ({report.file_nbytes:,} bytes)")]
    if report.data_path is not None:
        name, nbytes = Path(report.data_path).name, report.data_nbytes
        rows.append(("data", f"{escape(name)}, {size(nbytes)} ({nbytes:,} bytes)"))
    for name, nbytes in report.reused.items():
        rows.append(("reused", f"{size(nbytes)} of weights in {escape(name)}"))
    return rows


def _packed_rows(packed: SavedBundle | None) -> list[tuple[str, str]]:
    if packed is None:
        return []
    if packed.packed_path is None:
        return [("packed", "nothing that is not there already")]
    name, nbytes = Path(packed.packed_path).name, packed.packed_nbytes
    return [("packed", f"{escape(name)}, {size(nbytes)} ({nbytes:,} bytes)")]


def _memory_rows(program: Program) -> list[tuple[str, str]]:
    rows = []
    for body in program.bodies:
        by = f" by {escape(body.provenance.recipe)}" * bool(program.variants)
        rows += [f"{text}{by}" for text in _scratch_texts(body)]
    states = size(describe_memory(program).states)
    rows.append(f"{states} of state at most for each session, taken as it is used")
    return [*zip(("memory", *("",) * len(rows)), rows, strict=False)]


def _scratch_texts(program: Program) -> list[str]:
    """Return the planned scratch and the partitions' workspaces, with each method's."""
    memory = describe_memory(program)
    planned = [(one.method, one.planned) for one in memory.methods]
    texts = [f"{size(memory.scratch)} of scratch, planned ({_each(planned)})"]
    if memory.workspace:
        inside = [(one.method, one.workspace) for one in memory.methods]
        texts.append(f"{size(memory.workspace)} inside partitions ({_each(inside)})")
    return texts


def _each(methods: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{escape(name)} {size(nbytes)}" for name, nbytes in methods)


def difference_lines(report: DifferenceReport, code: bool) -> list[str]:
    """Return the lines of the differences between two bundles.

    Args:
        report: the differences.
        code: whether to show the diffs of the methods' listings.
    """
    if report.equal:
        return ["equal: the same content, with the same digest"]
    sections: list[tuple[str, list[str]]] = [
        ("FILE", _change_lines(report.file, _shortened)),
        ("METHODS", _item_lines(report.methods)),
        ("OPERATORS, how often", _operator_lines(report.operators)),
        ("CODE", _code_lines(report.code, code)),
        ("STATES", _item_lines(report.states)),
        ("WEIGHTS", _weight_lines(report)),
        ("MEMORY, in bytes", _change_lines(report.memory, _counted)),
        ("SIZE OF PARTS, in bytes", _change_lines(report.size, _counted)),
        ("METADATA", _change_lines(report.metadata, _shortened)),
    ]
    shown = [(title, lines) for title, lines in sections if lines]
    return [line for title, lines in shown for line in ("", title, *lines)][1:]


def _change_lines(
    changes: Sequence[Change], text: Callable[[str], str] = str, indent: int = 2
) -> list[str]:
    rows = [
        (escape(one.what), *(escape(text(v)) or "-" for v in (one.old, one.new)))
        for one in changes
    ]
    return columns([(what, old, "->", new) for what, old, new in rows], indent=indent)


def _operator_lines(operators: Sequence[OperatorChange]) -> list[str]:
    rows = [
        (
            escape(one.op),
            escape(one.backend or "PyTorch"),
            str(one.old),
            "->",
            str(one.new),
            ", ".join(map(escape, one.methods)),
        )
        for one in operators
    ]
    return columns(rows, "<<><>")


def _counted(number: str) -> str:
    return f"{int(number):,}" if number.isdecimal() else number


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def _item_lines(items: Sequence[Item]) -> list[str]:
    """Return lines of items; items whose names differ only in numbers share a line."""
    found = families(items, lambda one: one.name, lambda one: (one.kind, _alike(one)))
    lines = []
    for pattern, group in found:
        many = f" ({len(group)})" if len(group) > 1 else ""
        lines.append(f"  {escape(pattern)}{many}: {group[0].kind}{_sizes(group)}")
        lines += _change_lines(group[0].changes, indent=6)
    return lines


def _alike(item: Item) -> tuple[object, ...]:
    """Return the key that is equal for items on one line; it leaves out digests."""
    differing = {"digest", "name"}
    return tuple(
        change.what if change.what in differing else change for change in item.changes
    )


def _sizes(group: Sequence[Item]) -> str:
    old = sum(item.old_nbytes for item in group)
    new = sum(item.new_nbytes for item in group)
    if not old and not new:
        return ""
    return f", {size(old)}" if old == new else f", {size(old)} -> {size(new)}"


def _weight_lines(report: DifferenceReport) -> list[str]:
    if not report.weights:
        return []
    same = plural(report.same_weights, "weight")
    lines = _item_lines(report.weights)
    return [*lines, f"  {same} the same, {size(report.same_nbytes)}"]


def _code_lines(code: Mapping[str, Sequence[str]], whole: bool) -> list[str]:
    lines = []
    for name, changed in code.items():
        if not changed:
            lines.append(f"  {escape(name)}: the same instructions, other values")
            continue
        removed = sum(line.startswith("-") for line in changed)
        added = sum(line.startswith("+") for line in changed)
        said = f"{plural(removed, 'line')} less, {plural(added, 'line')} more"
        lines.append(f"  {escape(name)}: {said}")
        if whole:
            lines += [f"      {escape(line)}" for line in changed]
    if any(code.values()) and not whole:
        lines.append("  kvc diff --code shows them")
    return lines
