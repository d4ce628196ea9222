"""`kvc eval`: measure how well bundles predict a text."""

from contextlib import ExitStack
from dataclasses import asdict
from functools import partial

import click

from kvc.tools.json_text import report_text
from kvc.tools.loading import Loading, loading_options, open_program


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
@click.option(
    "--against",
    metavar="BUNDLE",
    help="Compare what each BUNDLE expects of every token with what this one does, "
    "such as the same model by cpu_fp32.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@loading_options
def eval_command(
    bundles: tuple[str, ...],
    file: str,
    window: int | None,
    stride: int | None,
    max_bytes: int | None,
    against: str | None,
    as_json: bool,
    loading: Loading,
) -> None:
    """Measure how well each BUNDLE predicts the text in FILE.

    Prints bits per byte and perplexity per token; lower is better. Bits per byte can be
    compared between models with different tokenizers, perplexity cannot. A bundle with
    a method of the role prefill_all is evaluated in chunks, any other token by token.
    Speed is measured after a first call, and without loading. With --against also the
    Kullback-Leibler divergence from it, in nats of a token with its standard error, and
    how often the likeliest token is the same: these tell recipes apart on a short text.

    Example: kvc eval --against fp32.kvc q8.kvc q4.kvc text.txt
    """
    from kvc.tools.evaluation import evaluate, table
    from kvc.tools.progress import Stages

    raw = _read(file, max_bytes)
    found = []
    with Stages(quiet=False) as stages, ExitStack() as opened:
        other = against and opened.enter_context(open_program(against, loading))
        for bundle in bundles:
            show = partial(stages.show, bundle)
            with open_program(bundle, loading) as program:
                found.append(
                    evaluate(bundle, program, raw, window, stride, show, other or None)
                )
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
