"""The table that ends `kvc compile`: what was written, and what it will take."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvc.schema.container import BundleFile, SavedBundle
from kvc.schema.dtypes import DType
from kvc.schema.model import Program
from kvc.schema.ops.products import QB4_BYTES, QB4_ROWS
from kvc.schema.text import columns, escape, plural, size
from kvc.schema.uses import PLAIN
from kvc.tools.reports.blobs import describe_sharing
from kvc.tools.reports.memory import describe_memory
from kvc.tools.reports.methods import describe_methods, left_text

if TYPE_CHECKING:
    from kvc.compiler.emit.bundle import SaveReport

_WHY: Final = ", as no --recipe was given"


def compiled_lines(
    path: Path,
    model_nbytes: int,
    report: "SaveReport",
    packed: SavedBundle | None,
    seconds: float,
    chosen: bool,
) -> list[str]:
    """Return the table.

    Args:
        path: of the bundle.
        model_nbytes: of the model's weights.
        report: on what was written.
        packed: on the packed weights, None where there are none.
        seconds: that it took.
        chosen: whether kvc chose the recipe.
    """
    with BundleFile.open(path) as file:
        program = file.program
    rows = [
        ("methods", ", ".join(escape(method.name) for method in program.methods)),
        *_recipe_rows(program, chosen),
        *_weight_rows(program, model_nbytes),
        *_file_rows(report),
        *_packed_rows(packed),
        *_memory_rows(program),
        ("time", f"{seconds:.1f} s"),
    ]
    return [escape(str(path)), *columns(rows)]


def _recipe_rows(program: Program, chosen: bool) -> list[tuple[str, str]]:
    rows = []
    for body in program.bodies:
        rows.append(("recipe", escape(body.provenance.recipe) + _WHY * chosen))
        rows += _backend_rows(body)
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


def _bit_rows(program: Program) -> list[tuple[str, str]]:
    """Say how many matrices are int4, and how many int8, where some are."""
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
    """Say what calls take between partitions, and what the largest of these take."""
    memory = describe_memory(program)
    planned = [(one.method, one.planned) for one in memory.methods]
    texts = [f"{size(memory.scratch)} of scratch, planned ({_each(planned)})"]
    if memory.workspace:
        inside = [(one.method, one.workspace) for one in memory.methods]
        texts.append(f"{size(memory.workspace)} inside partitions ({_each(inside)})")
    return texts


def _each(methods: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{escape(name)} {size(nbytes)}" for name, nbytes in methods)
