"""`kvc embed` and `kvc classify`: results of a model without a cache for inputs.

Results go to stdout as a line of JSON for each input, or to a `.npy` file. Inputs can
be the lines of a file, or of stdin, "-": each line is a text, also an empty line, so
that row n of the results is for line n. A line ends with a line feed, or with a
carriage return and a line feed, as on Windows; other separators are part of the line.
What follows the last line feed is a line unless it is empty. A byte order mark at the
beginning is not part of the text.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Final, TypeVar

import click

from kvc.schema.errors import BadSetting, FileProblem, TextTooLong, reason_of
from kvc.tools.options import Loading, loading_options, open_program
from kvc.tools.printing import json_text

F = TypeVar("F", bound=Callable[..., object])
_DIGITS = 8  # of a float32
_MARK: Final = "\ufeff"


def _input_options(command: F) -> F:
    """Add the inputs to a command: texts, a file with a text on each line, pictures."""
    for option in (
        click.option(
            "--image",
            "images",
            multiple=True,
            metavar="FILE",
            help="A picture, in the place of a text. Repeatable.",
        ),
        click.option(
            "--file",
            metavar="FILE",
            help="Also take each line of FILE, a text of UTF-8, empty ones too; - is "
            "stdin.",
        ),
        click.argument("texts", metavar="[TEXT]...", nargs=-1),
        click.argument("bundle", metavar="BUNDLE"),
    ):
        command = option(command)
    return command


@click.command()
@_input_options
@click.option(
    "--prompt",
    metavar="NAME",
    help="The bundle's text to put before each text, such as query.  [default: as the "
    "model's folder says]",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE.npy",
    help="Write the embeddings there, float32 [inputs, n], and print none.",
)
@click.option(
    "--similarity",
    is_flag=True,
    help="Print how alike the inputs are: for each, the cosines with all of them.",
)
@loading_options
def embed(
    bundle: str,
    texts: tuple[str, ...],
    file: str | None,
    images: tuple[str, ...],
    prompt: str | None,
    output: str | None,
    similarity: bool,
    loading: Loading,
) -> None:
    """Print the embedding of each TEXT, line of a file, or picture, by BUNDLE's model.

    One line of JSON each, in their order, texts first: {"text": ..., "embedding":
    [...]}, or with --similarity {"text": ..., "similarity": [...]}. A number that is
    none (NaN, infinite) is null.

    Example: kvc embed bert.kvc "a cat" "a dog" --similarity
    """
    import numpy as np

    from kvc.runtime.embedding import embed, embed_images
    from kvc.runtime.embedding import similarity as cosines
    from kvc.tools.outputs import check_plain_output, write_file

    listed = _listed(texts, file, images)
    if prompt and not listed:
        raise click.UsageError("--prompt is put before texts, and there are none")
    path = None if output is None else check_plain_output(output)
    with open_program(bundle, loading) as program:
        with naming_lines(file, len(texts)):
            parts = [embed(program, listed, prompt)] if listed else []
        parts += [embed_images(program, images)] if images else []
    lengths = sorted({part.shape[1] for part in parts})
    if len(lengths) > 1:
        expected = "vectors of texts and pictures of one length"
        raise BadSetting(name="the bundle", expected=expected, found=repr(lengths))
    vectors = np.concatenate(parts)
    if path is not None:
        made = BytesIO()
        np.save(made, vectors, allow_pickle=False)
        write_file(path, made.getbuffer())
    name, rows = "embedding", vectors
    if similarity:
        name, rows = "similarity", cosines(vectors, vectors)
    if path is None or similarity:
        for given, row in zip(_named(listed, images), rows, strict=True):
            numbers = [float(f"{number:.{_DIGITS}g}") for number in row]
            click.echo(json_text({**given, name: numbers}, ensure_ascii=False))


@click.command()
@_input_options
@click.option(
    "--top",
    type=click.IntRange(min=1),
    metavar="N",
    help="Print the N likeliest labels of each.  [default: all]",
)
@loading_options
def classify(
    bundle: str,
    texts: tuple[str, ...],
    file: str | None,
    images: tuple[str, ...],
    top: int | None,
    loading: Loading,
) -> None:
    """Print how likely each label is for each TEXT, line of a file, or picture.

    One line of JSON each, in their order, texts first: {"text": ..., "labels": [[name,
    score], ...]}, the likeliest first.

    Example: kvc classify vit.kvc --image cat.png
    """
    from kvc.runtime.embedding import classify, classify_images

    listed = _listed(texts, file, images)
    with open_program(bundle, loading) as program:
        with naming_lines(file, len(texts)):
            found = classify(program, listed) if listed else []
        found += classify_images(program, images) if images else []
    for given, labels in zip(_named(listed, images), found, strict=True):
        named = [[label.name, round(label.score, _DIGITS)] for label in labels[:top]]
        click.echo(json_text({**given, "labels": named}, ensure_ascii=False))


def _listed(texts: Sequence[str], file: str | None, images: Sequence[str]) -> list[str]:
    """Return the texts of the command line, then the lines of the file.

    Raises:
        click.UsageError: there are neither texts nor a file nor pictures.
        FileProblem: the file cannot be read, or is no text.
    """
    listed = [*texts, *(read_lines(file) if file is not None else ())]
    if not listed and not images:
        raise click.UsageError("give a TEXT, --file or --image")
    return listed


def _named(texts: Sequence[str], images: Sequence[str]) -> Iterator[dict[str, str]]:
    yield from ({"text": text} for text in texts)
    yield from ({"image": image} for image in images)


def read_lines(file: str) -> list[str]:
    """Return the lines of a file.

    Raises:
        FileProblem: the file cannot be read, or is no text.
    """
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        text = raw.decode().removeprefix(_MARK)
    except UnicodeDecodeError as error:
        before = error.object[: error.start].count(b"\n")
        reason = f"line {before + 1}: it is no text of UTF-8"
        raise FileProblem(path=file, reason=reason) from error
    except (OSError, ValueError) as error:
        raise FileProblem(path=file, reason=reason_of(error)) from error
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


@contextmanager
def naming_lines(file: str | None, before: int) -> Iterator[None]:
    """Make errors about a text name the line of the file that the text comes from.

    Args:
        file: path of the file of texts, None if there is no file.
        before: number of texts before the first line.

    Raises:
        FileProblem: the model refuses a line.
    """
    try:
        yield
    except TextTooLong as error:
        raise _of_line(error, error.number, file, before) from error
    except BadSetting as error:
        number = error.name.removeprefix("texts[").removesuffix("]")
        if number == error.name or not number.isdecimal():
            raise
        raise _of_line(error, int(number), file, before) from error


def _of_line(
    error: TextTooLong | BadSetting, number: int, file: str | None, before: int
) -> TextTooLong | BadSetting | FileProblem:
    """Return an error about a text; name the line if the text is from the file."""
    if file is None or number < before:
        return error
    said = str(error).removeprefix(f"texts[{number}]").lstrip(": ")
    return FileProblem(path=file, reason=f"line {number - before + 1}: {said}")
