"""`kvc compile`: trace a model's methods and write them as one bundle."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from kvc.tools.amounts import nbytes_of, sizes_of
from kvc.tools.folder_options import FolderOptions, folder_options, refuse_options

if TYPE_CHECKING:
    from kvc.compiler.bundle import Bundle, Placement, SaveReport
    from kvc.schema.container import SavedBundle
    from kvc.schema.model import Program
    from kvc.tools.progress import Stages


# Where none is named: of a language model the recipe with int8 weights that runs
# without PyTorch, of any other model the one that changes no number.
_FOLDERS_RECIPE, _RECIPE = "cpu_q8", "fp32"
_WHY = ", as no --recipe was given"


@click.command("compile")
@click.argument("model", metavar="MODEL")
@click.option(
    "--recipe",
    metavar="NAME|FILE",
    help="How numbers are stored and computed; see kvc recipes.  "
    f"[default: {_FOLDERS_RECIPE} for a Hugging Face folder, else {_RECIPE}]",
)
@click.option(
    "--cache-dtype",
    type=click.Choice(["float32", "float16", "int8"]),
    help="The dtype of caches.  [default: the recipe's]",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="The bundle to write.  [default: MODEL's name with .kvc]",
)
@click.option(
    "--max-copy-bytes",
    "copies",
    multiple=True,
    metavar="METHOD=N",
    help="Fail if a call of METHOD would copy more than N bytes of state. Repeatable.",
)
@click.option(
    "--max-file", metavar="N", help="Fail if the bundle takes more bytes, as 150M."
)
@click.option(
    "--max-ram",
    metavar="N",
    help="Fail if a process with one session takes more bytes of memory.",
)
@click.option(
    "--max-state", metavar="N", help="Fail if a session's states take more bytes."
)
@click.option(
    "--at",
    metavar="NAME=N,...",
    help="The sizes that --max-ram and --max-state count at, as capacity=4096,"
    "tokens=512.  [default: the greatest]",
)
@click.option(
    "--data",
    type=click.Choice(["internal", "external"]),
    default="internal",
    show_default=True,
    help="Store weights in the bundle, or in a data file NAME-DIGEST.kvd beside it.",
)
@click.option(
    "--reuse",
    multiple=True,
    metavar="OTHER.kvd",
    help="Refer to the weights in this data file, write only the others. Repeatable.",
)
@click.option(
    "--pack",
    metavar="BUILD:FEATURES",
    help="Also store the weights as the backend's library packs them on this machine. "
    "The error for a wrong name tells the right one.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Keep results of sample calls in the bundle, which kvc check compares with.",
)
@folder_options
@click.option(
    "-q", "--quiet", is_flag=True, help="Print neither progress nor the summary."
)
def compile_command(
    model: str,
    recipe: str | None,
    cache_dtype: str | None,
    output: str | None,
    copies: tuple[str, ...],
    max_file: str | None,
    max_ram: str | None,
    max_state: str | None,
    at: str | None,
    data: "Placement",
    reuse: tuple[str, ...],
    pack: str | None,
    check: bool,
    quiet: bool,
    **options: Unpack[FolderOptions],
) -> None:
    """Compile MODEL into a bundle.

    MODEL is the path of a Hugging Face folder (config.json, .safetensors files,
    tokenizer.json); package.module:factory, a function without arguments that returns
    a kvc.compiler.ModelSpec (the current folder is on the import path); or the name of
    a built-in model (demo).

    An existing bundle is replaced only once the new one is complete. Data files, of
    --data external, --reuse and --pack, have to stay beside the bundle.

    --pack writes packed weights to a data file of their own, which saves packing at
    load with the same library on the same kind of processor. With any other, or
    without this file, weights are packed at load as usual.
    """
    from kvc.recipes import load_recipe
    from kvc.tools.budgets import Budgets
    from kvc.tools.outputs import check_bundle_output

    if not model:
        raise click.UsageError("MODEL is empty; give a folder, a factory or a name")
    start = time.perf_counter()
    allowed = dict(_budget(text) for text in copies)
    budgets = Budgets(
        file=None if max_file is None else nbytes_of(max_file, "--max-file"),
        ram=None if max_ram is None else nbytes_of(max_ram, "--max-ram"),
        state=None if max_state is None else nbytes_of(max_state, "--max-state"),
        sizes=sizes_of(at),
    )
    source = Path(model) if Path(model).is_dir() else None
    default = _RECIPE if source is None else _FOLDERS_RECIPE
    loaded = load_recipe(recipe or default, cache_dtype)
    path = check_bundle_output(
        _default_output(model) if output is None else output, source
    )
    if reuse:
        _check_reuse(reuse, path)
    packed_form = "" if pack is None else _check_pack(loaded.backend, pack)

    from kvc.tools.progress import Stages

    with Stages(quiet=quiet) as stages:
        stages.show("importing torch", 0, 0)
        from kvc.tools.model_names import compile_folder, compile_model, is_folder

        stages.show("loading the model", 0, 0)
        if is_folder(model):
            bundle = compile_folder(model, loaded, stages.show, allowed, options)
        else:
            refuse_options(options, model)
            bundle = compile_model(model, loaded, stages.show, allowed)
        if check:
            bundle = _with_results(bundle, stages)
        report = bundle.save(
            path,
            progress=stages.show,
            data=data,
            reuse=reuse,
            accept=budgets.check,
        )
        packed = None
        if packed_form:
            stages.show("packing weights", 0, 0)
            packed = _pack(path, packed_form, reuse, stages)
            report = replace(report, file_nbytes=packed.nbytes)
    _warn_of_other_folders(path, reuse, report)
    if options["slack"]:
        _warn_of_idle_slack(path)
    if not quiet:
        seconds = time.perf_counter() - start
        _print_table(path, bundle.model_nbytes, report, packed, seconds, recipe is None)


def _with_results(bundle: "Bundle", stages: "Stages") -> "Bundle":
    """Return a bundle that holds results of sample calls.

    Raises:
        CheckFailed: a backend's library and its reference do not agree.
        KvcError: a session cannot be opened.
    """
    from kvc.tools.checks.made import with_results

    return with_results(bundle, stages.show)


def _default_output(model: str) -> str:
    """Return the name of a bundle: the model's own, in the current folder."""
    name = Path(model).resolve().name if Path(model).is_dir() else Path(model).name
    return f"{name.rpartition(':')[2]}.kvc"


def _budget(text: str) -> tuple[str, int]:
    """Return the method and the bytes of `METHOD=N`."""
    method, _, number = text.rpartition("=")
    if not method or not number.isdecimal():
        raise click.BadParameter(
            f"expected METHOD=N, a method and a number of bytes, found {text!r}",
            param_hint="--max-copy-bytes",
        )
    return method, int(number)


def _check_reuse(reuse: Sequence[str], output: Path) -> None:
    """Find out that files cannot be reused before the work, not after it.

    Raises:
        CannotWrite: a bundle cannot tell them by their names.
        FileProblem, FormatError: one cannot be read, or is no data file.
    """
    from kvc.schema.container import check_reuse

    check_reuse(reuse, output)


def _check_pack(backend: str, wanted: str) -> str:
    """Find out that weights cannot be packed before the work, not after it.

    Raises:
        CannotPack: they cannot, or not for what is wanted.
    """
    from kvc.tools.packing import check_pack

    return check_pack(backend, wanted)


def _pack(
    path: Path, packed_form: str, reuse: Sequence[str], stages: "Stages"
) -> "SavedBundle":
    from kvc.tools.packing import pack_bundle

    return pack_bundle(path, packed_form, map(Path, reuse), stages.show)


def _warn_of_other_folders(
    output: Path, reuse: Sequence[str], report: "SaveReport"
) -> None:
    """Say which reused files a reader of the bundle will not find by itself."""
    from kvc.tools.text import escape

    home = output.resolve().parent
    for other in map(Path, dict.fromkeys(reuse)):
        file = other.resolve()
        if file.parent != home and file.name in report.reused:
            folder = escape(str(file.parent))
            text = (
                f"warning: {escape(str(other))} is not beside {escape(str(output))}, "
                f"which loads only with --data-folder {folder}, and kvc gc {folder} "
                "does not know of it; put the data file beside the bundle"
            )
            click.echo(text, err=True)


def _warn_of_idle_slack(path: Path) -> None:
    """Say that room to go back was asked for, and that no cache needs any."""
    from kvc.schema.container import BundleFile

    with BundleFile.open(path) as file:
        states = file.program.states
    if all(state.window is None for state in states):
        text = (
            "warning: --slack changes nothing: every layer keeps all positions, so "
            "that a session can forget as many tokens as it holds"
        )
        click.echo(text, err=True)


def _print_table(
    path: Path,
    model_nbytes: int,
    report: "SaveReport",
    packed: "SavedBundle | None",
    seconds: float,
    chosen: bool,
) -> None:
    from kvc.schema.container import BundleFile
    from kvc.tools.text import columns, escape

    with BundleFile.open(path) as file:
        program = file.program
    rows = [
        ("methods", ", ".join(escape(method.name) for method in program.methods)),
        ("recipe", escape(program.provenance.recipe) + _WHY * chosen),
        *_backend_rows(program),
        *_weight_rows(program, model_nbytes),
        *_file_rows(report),
        *_packed_rows(packed),
        *_memory_rows(program),
        ("time", f"{seconds:.1f} s"),
    ]
    click.echo("\n".join([escape(str(path)), *columns(rows)]), err=True)


def _backend_rows(program: "Program") -> list[tuple[str, str]]:
    from kvc.tools.reports.methods import describe_methods, left_text
    from kvc.tools.text import escape, plural

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


def _weight_rows(program: "Program", model_nbytes: int) -> list[tuple[str, str]]:
    from kvc.schema.uses import PLAIN
    from kvc.tools.reports.blobs import describe_sharing
    from kvc.tools.text import plural, size

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
    ]


def _file_rows(report: "SaveReport") -> list[tuple[str, str]]:
    from kvc.tools.text import escape, size

    rows = [("file", f"{size(report.file_nbytes)} ({report.file_nbytes:,} bytes)")]
    if report.data_path is not None:
        name, nbytes = Path(report.data_path).name, report.data_nbytes
        rows.append(("data", f"{escape(name)}, {size(nbytes)} ({nbytes:,} bytes)"))
    for name, nbytes in report.reused.items():
        rows.append(("reused", f"{size(nbytes)} of weights in {escape(name)}"))
    return rows


def _packed_rows(packed: "SavedBundle | None") -> list[tuple[str, str]]:
    from kvc.tools.text import escape, size

    if packed is None:
        return []
    if packed.packed_path is None:
        return [("packed", "nothing that is not there already")]
    name, nbytes = Path(packed.packed_path).name, packed.packed_nbytes
    return [("packed", f"{escape(name)}, {size(nbytes)} ({nbytes:,} bytes)")]


def _memory_rows(program: "Program") -> list[tuple[str, str]]:
    from kvc.tools.reports.memory import describe_memory
    from kvc.tools.text import escape, size

    memory = describe_memory(program)
    scratch = ", ".join(f"{escape(m.method)} {size(m.planned)}" for m in memory.methods)
    return [
        ("memory", f"{size(memory.scratch)} of scratch, planned ({scratch})"),
        ("", f"{size(memory.states)} of state for each session"),
    ]
