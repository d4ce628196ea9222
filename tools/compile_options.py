"""Options of `kvc compile` that take more than a line: for folders, and `--what-if`.

`folder_options` adds the options that only apply to a Hugging Face folder to a command,
which passes the options on as keyword arguments of `export_hf`. `--what-if` prints what
a bundle would take with other settings; nothing is written.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypedDict, TypeVar

import click
from click.core import ParameterSource

from kvc.tools.options import sizes_of, whole_number

if TYPE_CHECKING:
    from kvc.compiler import AdapterSlots

F = TypeVar("F", bound=Callable[..., object])
_NUMBER: Final = click.IntRange(min=1)
_OPTIONS: Final = (
    click.option(
        "--task",
        type=click.Choice(
            ["generate", "embed", "classify", "classify_tokens", "fill_mask"]
        ),
        help="HF, GGUF: what the model is to do.  [default: as config.json says]",
    ),
    click.option(
        "--max-length",
        type=_NUMBER,
        metavar="N",
        help="HF, GGUF: the most tokens that a session's cache holds, or that a text "
        "has which is embedded or classified.  [default: as the folder says]",
    ),
    click.option(
        "--max-encoder-length",
        "encoder_length",
        type=_NUMBER,
        metavar="N",
        help="HF, GGUF: the most positions of the encoder, where there is one.  "
        "[default: as config.json says]",
    ),
    click.option(
        "--max-batch",
        "batch",
        type=_NUMBER,
        metavar="N",
        help="HF, GGUF: the most prompts in a batch.  "
        "[default: 1; of a model without a cache 64]",
    ),
    click.option(
        "--slack",
        type=click.IntRange(min=0),
        metavar="N",
        help="HF, GGUF: extra slots in the rings of sliding-window layers, so that a "
        "session can be rewound N tokens further.  [default: 0]",
    ),
    click.option(
        "--window",
        type=_NUMBER,
        metavar="N",
        help="HF, GGUF: the last positions a token sees, where it would see more. "
        "Caches keep no others, and texts have any length.  [default: as in the model]",
    ),
    click.option(
        "--keep",
        type=click.IntRange(min=0),
        metavar="N",
        help="HF, GGUF, with --window: the first positions that a token sees beside "
        "the window (attention sinks).  [default: 0]",
    ),
    click.option(
        "--prefill-chunk",
        type=_NUMBER,
        metavar="N",
        help="HF, GGUF: the most tokens in one call of prefill.  [default: 512]",
    ),
    click.option(
        "--prefill-size",
        "prefill_sizes",
        type=_NUMBER,
        multiple=True,
        metavar="N",
        help="HF, GGUF: add a method prefill_N for exactly N tokens. Repeatable.",
    ),
    click.option(
        "--all-logits",
        is_flag=True,
        help="HF, GGUF: add a method prefill_all, which returns the logits of every "
        "position.",
    ),
    click.option(
        "--inputs-embeds",
        is_flag=True,
        help="HF, GGUF: add a method prefill_embeds, which takes embeddings.",
    ),
    click.option(
        "--adapters",
        metavar="COUNT[,rank=R][,dora][,target=NAME]...[,whole=NAME]...",
        help="HF, GGUF: let the bundle hold COUNT adapters (LoRA) of up to rank R "
        "(16) at a time, of the linear layers NAME (all but the output layer). dora: "
        "of DoRA, and trained biases, too. whole: whose matrices adapters can replace.",
    ),
    click.option(
        "--no-pictures",
        is_flag=True,
        help="HF, GGUF: of a model that reads pictures, too, compile the text alone.",
    ),
)


class FolderOptions(TypedDict):
    """The values of the options; None, False and () stand for options not given."""

    task: str | None
    max_length: int | None
    encoder_length: int | None
    batch: int | None
    slack: int | None
    window: int | None
    keep: int | None
    prefill_chunk: int | None
    prefill_sizes: tuple[int, ...]
    all_logits: bool
    inputs_embeds: bool
    no_pictures: bool
    adapters: str | None


def folder_options(command: F) -> F:
    """Add the options for folders to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def check_options(options: FolderOptions) -> None:
    """Check that the options for folders fit each other.

    Raises:
        click.UsageError: --keep is given without --window.
    """
    if options["keep"] is not None and options["window"] is None:
        raise click.UsageError(
            "--keep says how many first positions a token sees beside the last ones: "
            "give --window N, how many last ones, too"
        )


def refuse_options(options: FolderOptions, model: str) -> None:
    """Refuse options for folders, for a model that is no folder.

    Raises:
        click.UsageError: an option for folders was given.
    """
    # By identity: a slack of 0 is equal to False, and was given.
    given = [
        name
        for name, value in options.items()
        if value is not None and value is not False and value != ()
    ]
    if given:
        names = {"prefill_sizes": "prefill_size", "batch": "max_batch"}
        shown = ", ".join(f"--{names.get(n, n).replace('_', '-')}" for n in given)
        go = "goes" if len(given) == 1 else "go"
        raise click.UsageError(
            f"{shown} {go} with the path of a Hugging Face folder; {model!r} is none"
        )


def adapter_slots(text: str) -> "AdapterSlots":
    """Parse the value of --adapters.

    Raises:
        click.BadParameter: a part is none of those that the option has.
        BadModelSetting: a number is not sensible.
    """
    from kvc.compiler import AdapterSlots

    count, *parts = text.split(",")
    found: dict[str, list[str]] = {"rank": [], "target": [], "whole": [], "dora": []}
    for part in parts:
        name, equals, value = part.partition("=")
        if name not in found or (name == "dora") == bool(equals):
            known = "COUNT, then rank=R, dora, target=NAME or whole=NAME"
            raise click.BadParameter(
                f"expected {known}, found {part!r}", param_hint="--adapters"
            )
        found[name].append(value)
    numbers = [whole_number(each) for each in (count, *found["rank"])]
    if None in numbers or len(numbers) > 2:
        expected = "COUNT and R are numbers, as in 4,rank=16"
        raise click.BadParameter(expected, param_hint="--adapters")
    return AdapterSlots(
        numbers[0] or 0,
        numbers[-1] or 0 if found["rank"] else 16,
        tuple(found["target"]),
        tuple(found["whole"]),
        bool(found["dora"]),
    )


def print_what_if(bundle: str, settings: str, at: str | None) -> None:
    """Print what a bundle would take with other settings.

    Raises:
        KvcError: a recipe or size does not exist, or the bundle cannot be read.
    """
    from kvc.schema.container import BundleFile
    from kvc.tools.printing import show
    from kvc.tools.reports.bundle import describe_file
    from kvc.tools.reports.footprint import describe_footprint
    from kvc.tools.reports.savings import describe_what_if, what_if_lines

    context = click.get_current_context()
    for param in context.command.params:
        name = param.name or ""
        source = context.get_parameter_source(name)
        given = source not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
        if given and name not in ("model", "what_if", "at"):  # nothing comes of it
            option = param.opts[-1]
            raise click.UsageError(f"--what-if writes nothing: leave {option} out")
    recipe, cache = _wish(settings)
    with BundleFile.open(bundle) as file:
        disk = describe_file(file, (), by_method=False).cost.disk
        found = describe_footprint(file.program, sizes_of(at))
        show(what_if_lines(describe_what_if(file.program, disk, found, recipe, cache)))


def _wish(text: str) -> tuple[str, str]:
    """Parse `recipe=NAME,cache=DTYPE` into the recipe and the dtype of caches."""
    parts = [part.strip().partition("=") for part in text.split(",")]
    found = {name: value for name, _, value in parts if value}
    if len(found) < len(parts) or not found.keys() <= {"recipe", "cache"}:
        raise click.BadParameter(
            f"expected recipe=NAME, cache=DTYPE or both, found {text!r}",
            param_hint="--what-if",
        )
    return found.get("recipe", ""), found.get("cache", "")
