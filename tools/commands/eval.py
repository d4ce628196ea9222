"""`kvc eval`: measure how well bundles predict a text.

`kvc.runtime.scoring` measures, here or on actors of a cluster; `table` prints.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from kvc.schema.errors import FileProblem, reason_of
from kvc.schema.text import columns, escape, size
from kvc.tools.cluster import Cluster, cluster_options, connected
from kvc.tools.options import Loading, loading_options, open_program
from kvc.tools.printing import report_text

if TYPE_CHECKING:
    from kvc.runtime.scoring import Evaluation
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
@click.option(
    "--against",
    metavar="BUNDLE",
    help="Compare what each BUNDLE expects of every token with what this one does, "
    "such as the same model by cpu_fp32.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_options
@loading_options
def eval_command(
    bundles: tuple[str, ...],
    file: str,
    window: int | None,
    stride: int | None,
    max_bytes: int | None,
    against: str | None,
    as_json: bool,
    cluster: Cluster | None,
    loading: Loading,
) -> None:
    """Measure how well each BUNDLE predicts the text in FILE.

    Prints bits per byte and perplexity per token; lower is better. Bits per byte can be
    compared between models with different tokenizers, perplexity cannot. A bundle with
    a method of the role prefill_all is evaluated in chunks, any other token by token.
    Speed is measured after a first call, and without loading.

    With --against, two more figures compare each BUNDLE with that bundle: the
    Kullback-Leibler divergence in nats per token, with its standard error, and how
    often both find the same token likeliest. These tell recipes apart even on a short
    text.

    With --ray, windows of the text are scored by actors of a cluster; the figures are
    the same.

    Example: kvc eval --against fp32.kvc q8.kvc q4.kvc text.txt
    """
    from kvc.tools.progress import Stages

    wanted = Wanted(bundles, _read(file, max_bytes), window, stride, against)
    with Stages(quiet=False) as stages:
        if cluster is None:
            found = _measured_here(wanted, loading, stages)
        else:
            found = _measured_on(cluster, wanted, loading, stages)
    if as_json:
        report = {"file": file, "bundles": [asdict(one) for one in found]}
        click.echo(report_text("eval", report))
    else:
        click.echo("\n".join(table(found)))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be measured.

    Attributes:
        bundles: the paths of the bundles.
        raw: the bytes of the text.
        window, stride, against: the values of the options.
    """

    bundles: tuple[str, ...]
    raw: bytes
    window: int | None
    stride: int | None
    against: str | None


def _measured_here(
    wanted: Wanted, loading: Loading, stages: "Stages"
) -> "list[Evaluation]":
    """Measure bundles one after the other, in this process."""
    from kvc.runtime.scoring import evaluate

    found, sizes = [], (wanted.window, wanted.stride)
    with ExitStack() as opened:
        other = None
        if wanted.against:
            other = opened.enter_context(open_program(wanted.against, loading))
        for bundle in wanted.bundles:
            show = partial(stages.show, bundle)
            with open_program(bundle, loading) as program:
                found.append(evaluate(bundle, program, wanted.raw, *sizes, show, other))
    return found


def _measured_on(
    cluster: Cluster, wanted: Wanted, loading: Loading, stages: "Stages"
) -> "list[Evaluation]":
    """Measure bundles by actors of a cluster.

    Raises:
        click.UsageError: --residency is given, which tells of this process.
    """
    if loading.residency:
        raise click.UsageError("--residency is of one process: leave it or --ray out")
    stages.show("connecting to the cluster", 0, 0)
    with connected(cluster, loading.threads) as actors:
        from kvc.ray import EvaluationConfig, evaluate

        config = EvaluationConfig(
            window=wanted.window,
            stride=wanted.stride,
            against=wanted.against,
            concurrency=actors.count,
            num_cpus=actors.threads,
            mode=loading.mode,
            data_folders=loading.data_folders,
            reference=loading.reference,
            device=loading.device,
            backend=loading.backend,
            adapter=loading.adapter,
        )
        return evaluate(wanted.bundles, wanted.raw, config, stages.show)


def _read(file: str, most: int | None) -> bytes:
    """Return the first `most` bytes of a file, the whole file for None.

    Raises:
        FileProblem: the file cannot be read.
    """
    try:
        with open(file, "rb") as text:  # noqa: PTH123  "" would be "."
            return text.read(-1 if most is None else most)
    except (OSError, ValueError) as error:
        raise FileProblem(path=file, reason=reason_of(error)) from error


def table(found: "Sequence[Evaluation]") -> list[str]:
    """Return the lines of a table of evaluations; the first line has the titles."""
    titles = ("bundle", "recipe", "weights", "bits per byte", "perplexity", "tokens/s")
    compared = any(one.divergence is not None for one in found)
    rows = [(*titles, *("divergence", "same tokens") * compared)]
    for one in found:
        bits = "-" if one.bits_per_byte is None else f"{one.bits_per_byte:.4f}"
        rows.append(
            (
                escape(one.bundle),
                escape(one.recipe),
                size(one.weights_nbytes),
                bits,
                f"{one.perplexity:.3f}",
                f"{one.tokens_per_second:.0f}",
                *_comparison(one),
            )
        )
    return columns(rows, "<<>>>>>>"[: len(rows[0])])


def _comparison(one: "Evaluation") -> tuple[str, ...]:
    if one.divergence is None:
        return ()
    divergence = f"{one.divergence:.5f} ± {one.divergence_error:.5f}"
    return divergence, f"{one.same_tokens:.1%}"
