"""`kvc bench`: measure how fast bundles read prompts and make tokens."""

import sys
from dataclasses import asdict

import click

from kvc.tools.options import Loading, loading_options
from kvc.tools.printing import report_text, show

COUNT = click.IntRange(min=0)


@click.command()
@click.argument("bundles", metavar="BUNDLE...", nargs=-1, required=True)
@click.option(
    "-p",
    "--n-prompt",
    "prompts",
    type=COUNT,
    metavar="N",
    multiple=True,
    help="Read a prompt of N tokens; 0 for none. Repeatable.  [default: 128, 512, "
    "as far as they fit]",
)
@click.option(
    "-n",
    "--n-gen",
    "steps",
    type=COUNT,
    metavar="N",
    multiple=True,
    help="Make N tokens, one by one; 0 for none. Repeatable.  [default: 32, or as many "
    "as fit]",
)
@click.option(
    "-d",
    "--n-depth",
    "depths",
    type=COUNT,
    metavar="N",
    multiple=True,
    help="Do so after N tokens. Repeatable.  [default: 0]",
)
@click.option(
    "-r",
    "--rounds",
    type=click.IntRange(min=1),
    metavar="N",
    default=3,
    show_default=True,
    help="How often each bundle is measured.",
)
@click.option(
    "-b",
    "--batch",
    "rows",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Run N rows at once.",
)
@click.option(
    "--against",
    "peers",
    metavar="MODEL",
    multiple=True,
    help="Measure in the same rounds llama.cpp with this .gguf file, or ONNX Runtime "
    "with this .onnx file. Repeatable.",
)
@click.option(
    "--llama-bench",
    "program",
    metavar="PATH",
    default="llama-bench",
    show_default=True,
    help="llama.cpp's program for --against.",
)
@click.option(
    "--onnx-python",
    "python",
    metavar="PATH",
    default=sys.executable,
    help="A Python that has onnxruntime, for --against.  [default: this one]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all rounds.")
@loading_options
def bench(
    bundles: tuple[str, ...],
    prompts: tuple[int, ...],
    steps: tuple[int, ...],
    depths: tuple[int, ...],
    rounds: int,
    rows: int,
    peers: tuple[str, ...],
    program: str,
    python: str,
    as_json: bool,
    loading: Loading,
) -> None:
    """Measure how fast each BUNDLE reads prompts and makes tokens.

    Tests are named as llama-bench names them: pp512 reads a prompt of 512 tokens, and
    tg32 @ d1024 makes 32 tokens after 1,024. Each bundle runs in a process of its own
    in every round, and bundles take turns. Before a test is timed, its prompt or one of
    its tokens runs once in an empty session. Tokens are random. Prints medians of the
    rounds, with the least and the most; of several bundles also their speed as a
    multiple of the first one's, the median of the rounds.

    Of bundles that generate no text, times calls of each method instead, with made-up
    arguments as kvc profile makes them, and prints milliseconds.

    load is the load call; first token, all from the start of the process to the logits
    of one token.

    Example: kvc bench q8.kvc q4.kvc -p 128 -n 32 -d 0 -d 1024
    """
    from kvc.tools.bench.method_tests import reads_tokens
    from kvc.tools.bench.peers import find_peer
    from kvc.tools.bench.plan import fitting, most_tokens, plan_tests
    from kvc.tools.bench.rounds import describe_bench, run_rounds, tables
    from kvc.tools.progress import Stages

    if not all(map(reads_tokens, bundles)):
        _check_plain(bundles, bool(prompts or steps or depths or peers) or rows > 1)
        _bench_methods(bundles, rounds, as_json, loading)
        return
    depths = depths or (0,)
    if not prompts or not steps:
        most = most_tokens(bundles, max(depths))
        prompts = prompts or tuple(fitting((128, 512), most))
        steps = steps or tuple(fitting((32,), most))
    tests = plan_tests(prompts, steps, depths)
    if not tests:
        raise click.UsageError("nothing to measure: -p and -n are both 0")
    if peers and rows > 1:
        raise click.UsageError("peers run one row: no --batch with --against")
    found_peers = [find_peer(path, program, python) for path in peers]
    with Stages(quiet=False) as stages:
        found = run_rounds(
            bundles,
            tests,
            rows,
            rounds,
            loading,
            found_peers,
            lambda what, done, total: stages.show("measuring", done, total, what),
        )
    if as_json:
        reports = [asdict(one) for one in describe_bench(found)]
        click.echo(report_text("bench", {"bundles": reports}))
    else:
        show(tables(found))


def _check_plain(bundles: tuple[str, ...], has_options: bool) -> None:
    """Check that all bundles generate no text, and no option is given for text."""
    from kvc.tools.bench.method_tests import reads_tokens

    made = [path for path in bundles if reads_tokens(path)]
    if made:
        other = next(path for path in bundles if path not in made)
        raise click.UsageError(
            f"{made[0]} generates text and {other} does not; measure them apart"
        )
    if has_options:
        raise click.UsageError(
            "-p, -n, -d, --batch and --against are of bundles that generate text, and "
            f"{bundles[0]} has no methods of the roles prefill and decode; leave them "
            "out to time its methods"
        )


def _bench_methods(
    bundles: tuple[str, ...], rounds: int, as_json: bool, loading: Loading
) -> None:
    from kvc.tools.bench.method_speeds import measure_methods, method_table
    from kvc.tools.progress import Stages

    with Stages(quiet=False) as stages:
        found = measure_methods(
            bundles,
            rounds,
            loading,
            lambda what, done, total: stages.show("measuring", done, total, what),
        )
    if as_json:
        reports = [asdict(one) for one in found]
        click.echo(report_text("bench", {"methods": reports}))
    else:
        show(method_table(found))
