"""`kvc eval`: measure how well bundles predict a text."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from kvc.tools.json_text import report_text
from kvc.tools.loading import Loading, loading_options, open_program

if TYPE_CHECKING:
    from kvc.tools.evaluation import Evaluation
    from kvc.tools.progress import Stages


@click.command("eval")
@click.argument("bundles", metavar="BUNDLE...", nargs=-1, required=True)
@click.argument("file", metavar="FILE")
@click.option(
    "--window",
    type=click.IntRange(min=2),
    metavar="N",
    help="Length of the sliding window, in tokens.  [default: 1024, or the cache's "
    "capacity if that is less]",
)
@click.option(
    "--stride",
    type=click.IntRange(min=1),
    metavar="N",
    help="By how many tokens the window moves; each token is scored once.  [default: "
    "half a window]",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Read only the first N bytes of FILE.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@loading_options
def eval_command(
    bundles: tuple[str, ...],
    file: str,
    window: int | None,
    stride: int | None,
    max_bytes: int | None,
    as_json: bool,
    loading: Loading,
) -> None:
    """Measure how well each BUNDLE predicts the text in FILE.

    Prints bits per byte and perplexity per token; lower is better. Bits per byte can be
    compared between models with different tokenizers, perplexity cannot. A bundle with
    a method of the role prefill_all is evaluated in chunks, any other token by token.
    Speed is measured after a first call, and without loading.

    Example: kvc eval fp32.kvc q8.kvc text.txt
    """
    from kvc.tools.evaluation import table
    from kvc.tools.progress import Stages

    raw = _read(file, max_bytes)
    with Stages(quiet=False) as stages:
        found = [
            _evaluate(bundle, raw, window, stride, loading, stages)
            for bundle in bundles
        ]
    if as_json:
        report = {"file": file, "bundles": [asdict(one) for one in found]}
        click.echo(report_text("eval", report))
    else:
        click.echo("\n".join(table(found)))


def _read(file: str, most: int | None) -> bytes:
    """Return the beginning of a text.

    Raises:
        FileProblem: it cannot be read.
    """
    from kvc.schema.errors import FileProblem, reason_of

    try:
        with open(file, "rb") as text:  # noqa: PTH123  "" would be "."
            return text.read(-1 if most is None else most)
    except (OSError, ValueError) as error:
        raise FileProblem(path=file, reason=reason_of(error)) from error


def _evaluate(
    bundle: str,
    raw: bytes,
    window: int | None,
    stride: int | None,
    loading: Loading,
    stages: "Stages",
) -> "Evaluation":
    from kvc.tools.evaluation import evaluate

    def show(done: int, total: int) -> None:
        stages.show(bundle, done, total)

    with open_program(bundle, loading) as program:
        return evaluate(bundle, program, raw, window, stride, show)
