"""A bundle at a glance: its methods, states, what is shared, where bytes go.

`DumpReport` holds every report on a bundle; it is what `kvc dump --json` prints.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvc.schema.model import Program
from kvc.tools.reports.blobs import (
    BlobReport,
    SharingReport,
    describe_blobs,
    describe_sharing,
    sharing_lines,
)
from kvc.tools.reports.copies import UpdateReport, copy_summary, describe_copies
from kvc.tools.reports.cost import CostReport, cost_line, describe_cost
from kvc.tools.reports.delegates import (
    DelegateReport,
    delegate_summary_lines,
    describe_delegates,
)
from kvc.tools.reports.memory import MemoryReport, MethodMemory, describe_memory
from kvc.tools.reports.methods import MethodReport, describe_methods, method_lines
from kvc.tools.reports.operators import OperatorReport, describe_operators
from kvc.tools.reports.recipes import (
    RecipeReport,
    describe_recipes,
    recipe_lines,
)
from kvc.tools.reports.sizes import SizeReport, data_file_title, size_summary_lines
from kvc.tools.reports.states import (
    PositionReport,
    StateReport,
    describe_position,
    describe_states,
    position_line,
    state_family_lines,
)
from kvc.tools.text import columns, escape, plural, share, size


@dataclass(frozen=True, slots=True)
class FileReport:
    """The file itself and where it comes from."""

    path: str
    nbytes: int
    digest: str
    kvc_version: str
    torch_version: str
    recipe: str
    source_digest: str


@dataclass(frozen=True, slots=True)
class DumpReport:
    """All that `kvc dump` knows about a bundle.

    Attributes:
        recipes: all that it has; methods, delegates, operators, writes and memory are
            those of one, which the file names.
    """

    file: FileReport
    cost: CostReport
    methods: tuple[MethodReport, ...]
    states: tuple[StateReport, ...]
    position: PositionReport | None
    updates: tuple[UpdateReport, ...]
    sharing: tuple[SharingReport, ...]
    blobs: tuple[BlobReport, ...]
    delegates: tuple[DelegateReport, ...]
    operators: tuple[OperatorReport, ...]
    memory: MemoryReport
    size: SizeReport
    metadata: Mapping[str, str]
    recipes: tuple[RecipeReport, ...]


def describe_bundle(
    path: str, program: Program, body: Program, digest: str, sizes: SizeReport
) -> DumpReport:
    """Put the reports on a bundle together.

    Args:
        path: of the bundle.
        program: all of it.
        body: the program by the recipe whose methods are described.
        digest: of the program.
        sizes: of its files.
    """
    origin = body.provenance
    file = FileReport(
        path=path,
        nbytes=sizes.nbytes,
        digest=digest,
        kvc_version=origin.kvc_version,
        torch_version=origin.torch_version,
        recipe=origin.recipe,
        source_digest=origin.source_digest,
    )
    operators = describe_operators(body)
    disk = sizes.nbytes + sum(other.nbytes for other in sizes.data_files)
    return DumpReport(
        file=file,
        cost=describe_cost(body, disk, operators),
        methods=describe_methods(body),
        states=describe_states(body),
        position=describe_position(body),
        updates=describe_copies(body),
        sharing=describe_sharing(program),
        blobs=describe_blobs(program),
        delegates=describe_delegates(body),
        operators=operators,
        memory=describe_memory(body),
        size=sizes,
        metadata=dict(sorted(program.metadata.items())),
        recipes=describe_recipes(program),
    )


def overview_lines(report: DumpReport) -> list[str]:
    """Lay out the answers to the first questions on one screen."""
    file, memory = report.file, report.memory
    lines = [
        cost_line(report.cost),
        f"{escape(file.path)}: {_sizes(report.size)}, recipe {escape(file.recipe)}, "
        f"made by kvc {escape(file.kvc_version)} (torch {escape(file.torch_version)})",
        f"digest {file.digest[:16]}: bundles of equal content have equal digests",
        *_recipes(report),
        *("", "METHODS", *method_lines(report.methods)),
        *("", _state_title(memory), *_states(report)),
        *("", "DATA, each blob stored once", *sharing_lines(report.sharing)),
    ]
    if report.delegates:
        title = "DELEGATES, partitions of a method that a backend runs"
        lines += ["", title, *delegate_summary_lines(report.delegates)]
    lines += [
        "",
        f"MEMORY, {size(memory.scratch)} of scratch while a method runs",
    ]
    lines += _memory(memory)
    lines += ["", f"FILE, {size(file.nbytes)}"]
    lines += size_summary_lines(report.size.parts, file.nbytes)
    for other in report.size.data_files:
        lines += ["", *data_file_title(other)]
        lines += size_summary_lines(other.parts, other.nbytes)
    if report.metadata:
        lines += ["", "METADATA"]
        rows = [(escape(k), escape(v)) for k, v in report.metadata.items()]
        lines += columns(rows)
    return lines


def _recipes(report: DumpReport) -> list[str]:
    """Say which recipes there are, where there is more than one."""
    if len(report.recipes) < 2:
        return []
    title = "RECIPES, of which load takes the first that can run, or that asked for"
    shown = f"  methods, delegates and memory below are those of {report.file.recipe}"
    return ["", title, *recipe_lines(report.recipes), escape(shown)]


def _sizes(sizes: SizeReport) -> str:
    if not sizes.data_files:
        return size(sizes.nbytes)
    beside = sum(file.nbytes for file in sizes.data_files)
    files = plural(len(sizes.data_files), "data file")
    return f"{size(sizes.nbytes)} and {size(beside)} in {files}"


def _state_title(memory: MemoryReport) -> str:
    return (
        f"STATE, {size(memory.states)} for each session, kept between calls "
        "(r: reads, w: writes)"
    )


def _states(report: DumpReport) -> list[str]:
    if not report.states:
        return ["  none; every call stands alone"]
    family = state_family_lines(report.states)
    return [*family, position_line(report.position), copy_summary(report.updates)]


def _over(method: MethodMemory) -> str:
    if method.planned <= method.peak_live:
        return "as small as it can be: all of it is in use at one moment"
    over = share(method.planned - method.peak_live, method.peak_live)
    return f"{over} more than is ever in use at one moment"


def _memory(memory: MemoryReport) -> list[str]:
    rows = [
        (
            escape(m.method),
            size(m.planned),
            _over(m),
        )
        for m in memory.methods
    ]
    bounds = [
        f"  planned at {escape(name)} = {upper}"
        for name, (_, upper) in memory.symbols.items()
    ]
    return [*columns(rows, "<>"), *bounds]
