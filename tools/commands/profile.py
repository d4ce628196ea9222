"""`kvc profile`: where the time of a bundle's calls goes."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from kvc.tools.options import Loading, loading_options, open_program, sizes_of
from kvc.tools.printing import report_text, show

if TYPE_CHECKING:
    from kvc.tools.bench.plan import SpeedTest
    from kvc.tools.bench.profiling import Profile

COUNT = click.IntRange(min=0)


@click.command("profile")
@click.argument("bundle", metavar="BUNDLE")
@click.option(
    "-p",
    "--n-prompt",
    "prompt",
    type=COUNT,
    metavar="N",
    help="Read a prompt of N tokens; 0 for none.  [default: 128, or as many as fit]",
)
@click.option(
    "-n",
    "--n-gen",
    "steps",
    type=COUNT,
    metavar="N",
    help="Make N tokens, one by one; 0 for none.  [default: 32, or as many as fit]",
)
@click.option(
    "-d",
    "--n-depth",
    "depth",
    type=COUNT,
    metavar="N",
    default=0,
    show_default=True,
    help="Do so after N tokens.",
)
@click.option(
    "-r",
    "--repeats",
    type=click.IntRange(min=1),
    metavar="N",
    default=3,
    show_default=True,
    help="How often to read the prompt, or to call a method.",
)
@click.option(
    "--at",
    metavar="NAME=N,...",
    help="For a bundle that generates no text, the sizes of arguments.  [default: 128 "
    "or as near as allowed]",
)
@click.option(
    "--by",
    type=click.Choice(["operator", "module", "line"]),
    default="operator",
    show_default=True,
    help="Add up the steps of an operator, a module, or a line of source.",
)
@click.option(
    "--trace",
    metavar="FILE",
    help="Also write every step to FILE, for ui.perfetto.dev or chrome://tracing.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@loading_options
def profile_command(
    bundle: str,
    prompt: int | None,
    steps: int | None,
    depth: int,
    repeats: int,
    at: str | None,
    by: str,
    trace: str | None,
    as_json: bool,
    loading: Loading,
) -> None:
    """Say where the time of BUNDLE's calls goes.

    Reads a prompt and makes tokens. For each of the two, prints the median time of a
    call with and without recording, and the mean time of the steps in a recorded call.
    Each call is made twice, once recorded and once not; the printed overhead of
    recording is the median over these pairs.

    Of a bundle that generates no text, calls each method instead, with random numbers
    and True for masks, in a session without content. Sizes of arguments are 128, or
    the allowed size next to it, rows as few as possible, and those of states as large;
    --at chooses others.

    Steps of the backend cpu are timed inside its native loop. In a partition of
    XNNPACK, the library's own operators are timed; each stands for several steps, and
    is printed with the module and line of one of them.

    Example: kvc profile q8.kvc -n 64 -d 512 --by module --trace trace.json
    """
    from kvc.tools.bench.method_tests import method_tests, reads_tokens
    from kvc.tools.bench.profiling import (
        GROUPINGS,
        TRACE_START,
        describe_profile,
        profile,
        profile_method,
        trace_of,
    )
    from kvc.tools.outputs import check_own_output, write_file

    sizes, of_tokens = sizes_of(at), reads_tokens(bundle)
    if of_tokens and at is not None:
        raise click.UsageError("--at is of bundles that generate no text; give -p, -n")
    if not of_tokens and (prompt is not None or steps is not None or depth):
        raise click.UsageError("-p, -n and -d are of bundles that generate text alone")
    tests = _token_tests(bundle, prompt, steps, depth) if of_tokens else ()
    path = None if trace is None else check_own_output(trace, TRACE_START)
    with open_program(bundle, loading) as program:
        calls = () if of_tokens else method_tests(program, sizes)
        found = [
            *(profile(program, test, repeats) for test in tests),
            *(profile_method(program, test, repeats) for test in calls),
        ]
    if path is not None:
        write_file(path, json.dumps(trace_of(found)).encode())
    if as_json:
        reports = [asdict(describe_profile(one, GROUPINGS[by])) for one in found]
        click.echo(report_text("profile", {"tests": reports}))
    else:
        show(_lines(found, by))


def _token_tests(
    bundle: str, prompt: int | None, steps: int | None, depth: int
) -> tuple["SpeedTest", ...]:
    """Return the tests of a prompt and of tokens; None for as many tokens as fit."""
    from kvc.tools.bench.plan import fitting, most_tokens, plan_tests

    if prompt is None or steps is None:
        most = most_tokens((bundle,), depth)
        (prompt,) = fitting((128,), most) if prompt is None else (prompt,)
        (steps,) = fitting((32,), most) if steps is None else (steps,)
    tests = plan_tests((prompt,), (steps,), (depth,))
    if not tests:
        raise click.UsageError("nothing to run: -p and -n are both 0")
    return tests


def _lines(found: Sequence["Profile"], by: str) -> list[str]:
    from kvc.schema.text import columns, escape, plural
    from kvc.tools.bench.profiling import (
        GROUPINGS,
        mean_ms,
        median_ms,
        overhead_of,
        rows_of,
    )

    lines: list[str] = []
    for one in found:
        lines += [
            "",
            f"{escape(one.test.name)}: {plural(len(one.calls), 'call')}; median "
            f"{median_ms(one.calls):.2f} ms; {median_ms(one.plain):.2f} ms without "
            f"recording, {100 * overhead_of(one):+.1f}% in pairs; mean "
            f"{mean_ms(one.calls):.2f} ms",
        ]
        rows = [("ms", "share", "steps", by, "run by")]
        rows += [
            (
                f"{row.milliseconds:.3f}",
                f"{100 * row.share:.1f}%",
                f"{row.count:.6g}",
                escape(row.what),
                ", ".join(escape(name) or "the runtime" for name in row.backends),
            )
            for row in rows_of(one.calls, GROUPINGS[by])
        ]
        lines += columns(rows, ">>>")
    return lines[1:]
