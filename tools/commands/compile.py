"""`kvc compile`: trace a model's methods and write them as one bundle."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from kvc.schema.checkpoints.gguf_header import SUFFIX
from kvc.schema.interrupts import keeping_interrupts
from kvc.schema.text import escape
from kvc.tools.checkpoints import check_checkpoint, check_name, is_checkpoint
from kvc.tools.compile_options import (
    FolderOptions,
    check_options,
    folder_options,
    print_what_if,
    refuse_options,
)
from kvc.tools.options import nbytes_of, sizes_of, whole_number

if TYPE_CHECKING:
    from kvc.compiler.emit.bundle import Placement, SaveReport
    from kvc.runtime.calibration import Samples
    from kvc.tools.budgets import Budgets


_FOLDERS_RECIPE = "cpu_q8"  # of a language model, where none is named


@click.command("compile")
@click.argument("model", metavar="MODEL")
@click.option(
    "--recipe",
    metavar="NAME|FILE",
    help="How numbers are stored and computed; see kvc recipes. Several, with commas "
    "between, make one bundle for several backends.  "
    f"[default: {_FOLDERS_RECIPE} for a Hugging Face folder and a .gguf file, else "
    "cpu_fp32]",
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
    metavar="BUILD:FEATURES|TARGET",
    help="Also store the weights as the backend's library packs them on this machine, "
    "or the file of a target. The error for a wrong name tells the right one.",
)
@click.option(
    "--calibrate",
    metavar="FILE|generated",
    help="Samples for a recipe of int4, whose weights are then rounded by what they "
    "multiply, or whose backend stores values as integers: a text, a sound "
    "(.wav), or arrays named as inputs (.npz, .npy, .safetensors); generated: the "
    "model makes texts itself.",
)
@click.option(
    "--fit",
    metavar="N",
    help="For a recipe of int4: store as int8 those weights that gain most by it, as "
    "many as a bundle of N bytes holds.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Keep results of sample calls in the bundle, which kvc check compares with.",
)
@click.option(
    "--what-if",
    metavar="recipe=NAME,cache=DTYPE",
    help="Print what the bundle MODEL would take with these settings, at --at; write "
    "nothing. Either may be left out.",
)
@click.option(
    "--bind/--no-bind",
    "bind",
    default=None,
    help="Also store methods as bound lists, which libkvc runs and which load in no "
    "time.  [default: for the backend cpu]",
)
@folder_options
@click.option(
    "-q", "--quiet", is_flag=True, help="Print neither progress nor the summary."
)
@keeping_interrupts
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
    calibrate: str | None,
    fit: str | None,
    check: bool,
    what_if: str | None,
    bind: bool | None,
    quiet: bool,
    **options: Unpack[FolderOptions],
) -> None:
    """Compile MODEL into a bundle.

    MODEL is the path of a Hugging Face folder (config.json, .safetensors files,
    tokenizer.json) or of a .gguf file; package.module:factory, a function without
    arguments that returns a kvc.compiler.ModelSpec (the current folder is on the import
    path); or the name of a built-in model (demo).

    An existing bundle is replaced only once the new one is complete. Data files, of
    --data external, --reuse and --pack, have to stay beside the bundle.

    With --what-if, MODEL is a bundle: nothing is compiled or traced again, and the file
    and memory are printed as they are and as they would be.

    --pack writes packed weights to a data file of their own, which saves packing at
    load with the same library on the same kind of processor. With any other, or
    without this file, weights are packed at load as usual. For a backend that makes
    files for targets, such as NPUs, --pack TARGET stores what kvc export would write.

    Example: kvc compile ./SmolLM2-135M --recipe cpu_q8 -o model.kvc
    """
    from kvc.recipes import DEFAULT, load_recipes
    from kvc.schema.container import check_reuse
    from kvc.tools.outputs import check_bundle_output

    if not model:
        raise click.UsageError("MODEL is empty; give a folder, a factory or a name")
    if what_if is not None:
        print_what_if(model, what_if, at)
        return
    start = time.perf_counter()  # what can be refused is, before the work
    allowed = dict(_budget(text) for text in copies)
    _check_countable(max_file, fit, pack, check)
    budgets = _budgets(max_file, max_ram, max_state, at)
    source = _source(model, options)
    check_options(options)
    usual = DEFAULT if source is None else _FOLDERS_RECIPE
    recipes = load_recipes(usual if recipe is None else recipe, cache_dtype)
    path = check_bundle_output(
        _default_output(model) if output is None else output, source
    )
    if reuse:
        check_reuse(reuse, path)
    packed_form = ""
    if pack is not None:
        from kvc.tools.packing import check_pack

        packed_form = check_pack([one.backend for one in recipes], pack)
    samples = None if calibrate is None else _samples(calibrate)
    most = None if fit is None else nbytes_of(fit, "--fit", least=1)
    check_name(model)

    from kvc.tools.progress import Stages

    with Stages(quiet=quiet) as stages:
        stages.show("importing torch", 0, 0)
        from kvc.tools.model_names import compile_folder, compile_model

        stages.show("loading the model", 0, 0)
        if source is not None:
            bundle = compile_folder(
                model, recipes, stages.show, allowed, options, samples, most
            )
        else:
            bundle = compile_model(model, recipes, stages.show, allowed, samples, most)
        if check:
            from kvc.tools.checks.expected import with_results

            bundle = with_results(bundle, stages.show)
        if bind is not False:
            from kvc.tools.bound_bundles import with_bounds

            bundle = with_bounds(bundle, stages.show, wanted=bind is not None)
        report = bundle.save(
            path,
            progress=stages.show,
            data=data,
            reuse=reuse,
            accept=budgets.check,
        )
        packed = None
        if packed_form:
            from kvc.tools.packing import pack_bundle

            stages.show("packing weights", 0, 0)
            packed = pack_bundle(path, packed_form, map(Path, reuse), stages.show)
            report = replace(report, file_nbytes=packed.nbytes)
    _warn_of_other_folders(path, reuse, report)
    _warn_of_idle_options(path, options)
    if not quiet:
        from kvc.tools.reports.summaries import compiled_lines

        seconds = time.perf_counter() - start
        lines = compiled_lines(path, bundle, report, packed, seconds, recipe is None)
        click.echo("\n".join(lines), err=True)


def _source(model: str, options: FolderOptions) -> Path | None:
    """Return the folder or file of a model, None for a built-in model or a factory.

    Raises:
        KvcError: the file, or the folder's configuration, is none that kvc reads.
        click.UsageError: the model is no folder, but options for folders were given.
    """
    if is_checkpoint(model):
        check_checkpoint(model)
        return Path(model)
    refuse_options(options, model)
    return None


def _samples(wanted: str) -> "Samples":
    """Read the samples of --calibrate.

    Raises:
        BadSamples: the samples cannot be read.
    """
    from kvc.runtime.calibration import Samples

    return Samples.generated() if wanted == "generated" else Samples(wanted)


def _default_output(model: str) -> str:
    """Return the name of a bundle: the model's own, in the current folder."""
    name = Path(model).resolve().name if Path(model).is_dir() else Path(model).name
    name = name.removesuffix(SUFFIX)
    return f"{name.rpartition(':')[2]}.kvc"


def _check_countable(
    max_file: str | None, fit: str | None, pack: str | None, check: bool
) -> None:
    """Check that `max_file` and `fit` are not given with options they cannot count.

    Raises:
        click.UsageError: a limit is given with such an option.
    """
    if max_file is not None and pack is not None:
        raise click.UsageError(
            "--max-file cannot count what --pack adds; leave one out"
        )
    if fit is not None and (check or pack is not None):
        raise click.UsageError(
            "--fit cannot count what --check and --pack add; leave it or them out"
        )


def _budget(text: str) -> tuple[str, int]:
    """Parse `METHOD=N` into the method's name and a number of bytes."""
    method, _, digits = text.rpartition("=")
    number = whole_number(digits)
    if not method or number is None:
        raise click.BadParameter(
            f"expected METHOD=N, a method and a number of bytes, found {text!r}",
            param_hint="--max-copy-bytes",
        )
    return method, number


def _budgets(
    file: str | None, ram: str | None, state: str | None, at: str | None
) -> "Budgets":
    """Return the limits that the options give."""
    from kvc.tools.budgets import Budgets

    if at is not None and ram is None and state is None:
        raise click.UsageError(
            "--at says at which sizes --max-ram and --max-state count"
        )
    return Budgets(
        file=None if file is None else nbytes_of(file, "--max-file"),
        ram=None if ram is None else nbytes_of(ram, "--max-ram"),
        state=None if state is None else nbytes_of(state, "--max-state"),
        sizes=sizes_of(at),
    )


def _warn_of_other_folders(
    output: Path, reuse: Sequence[str], report: "SaveReport"
) -> None:
    """Warn of reused data files in other folders than the bundle's."""
    home = output.resolve().parent
    for other in map(Path, dict.fromkeys(reuse)):
        file = other.resolve()
        if file.parent != home and file.name in report.reused:
            folder = escape(str(file.parent))
            click.echo(
                f"warning: {escape(str(other))} is not beside {escape(str(output))}, "
                f"which loads only with --data-folder {folder}, and kvc gc {folder} "
                "does not know of it; put the data file beside the bundle",
                err=True,
            )


def _warn_of_idle_options(path: Path, options: FolderOptions) -> None:
    """Warn if slack or a window was requested but changes no cache."""
    from kvc.schema.container import BundleFile
    from kvc.schema.rings import Window

    if not options["slack"] and options["window"] is None:
        return
    with BundleFile.open(path) as file:
        windows = {state.window for state in file.program.states}
    if options["slack"] and windows == {None}:
        click.echo(
            "warning: --slack changes nothing: every layer keeps all positions, so "
            "that a session can forget as many tokens as it holds",
            err=True,
        )
    if options["window"] is not None:
        asked = Window(options["window"], options["keep"] or 0)
        if asked not in windows:
            click.echo(
                f"warning: no layer keeps a window of {asked}: each sees fewer "
                "positions by itself, or no text has more",
                err=True,
            )
