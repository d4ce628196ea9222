"""`kvc batch`: answer all prompts of a file.

Answers go into a journal beside the output as they end, and into the output, in the
order of the input, when all have ended.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from kvc.schema.errors import KvcError
from kvc.schema.text import plural
from kvc.tools.batch_cluster import Shared, on_cluster
from kvc.tools.batch_files import (
    Again,
    check_paths,
    digest_of,
    failed_before,
    opened_input,
    opened_journal,
    surveyed,
)
from kvc.tools.batch_progress import ProgressLine
from kvc.tools.cluster import Cluster, cluster_options
from kvc.tools.generation_options import form_options, generation_options
from kvc.tools.numbers import WholeNumber
from kvc.tools.options import Loading, loading_options, nbytes_of, open_program
from kvc.tools.printing import BAD, end_in_trouble

if TYPE_CHECKING:
    from kvc.ray import RayAnswering
    from kvc.runtime import Program
    from kvc.runtime.generation import Arguments
    from kvc.serving.batch import AdapterChoice, Answerer, Job, Journal, Progress
    from kvc.serving.scheduling import Limits


@click.command("batch")
@click.argument(
    "prompts", metavar="PROMPTS.jsonl", callback=lambda _ctx, _param, found: (found,)
)
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="OUT.jsonl",
    help="The file of the answers; - for stdout.",
)
@click.option(
    "--bundle",
    required=True,
    metavar="BUNDLE",
    help="The model that answers.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with a run that was interrupted: what OUT.jsonl.journal has stays.",
)
@click.option(
    "--resume-anyway",
    is_flag=True,
    help="Go on though the bundle, settings or prompts have changed: answers to lines "
    "that are the same stay.",
)
@click.option("--force", is_flag=True, help="Begin anew; replace what is there.")
@form_options
@generation_options
@click.option(
    "--max-rows",
    type=WholeNumber(min=1),
    metavar="N",
    help="The greatest number of answers at once.  [default: as many as the bundle "
    "and --max-ram allow, at most 16]",
)
@click.option(
    "--max-ram",
    metavar="BYTES",
    help="The greatest size of the caches of all answers, as 2G.  [default: no limit]",
)
@click.option(
    "--capacity",
    type=WholeNumber(min=1),
    metavar="N",
    help="The greatest number of tokens of a prompt and its answer.  [default: the "
    "most the bundle allows]",
)
@click.option(
    "--row-adapter",
    "row_adapters",
    multiple=True,
    metavar="[NAME=]FILE.kva",
    help='Load an adapter that rows can name: "adapter": NAME. Repeatable.',
)
@cluster_options
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@loading_options
def batch(
    prompts: tuple[str],
    output: str,
    bundle: str,
    resume: bool,
    resume_anyway: bool,
    force: bool,
    settings: "Arguments",
    max_rows: int | None,
    max_ram: str | None,
    capacity: int | None,
    row_adapters: tuple[str, ...],
    cluster: "Cluster | None",
    quiet: bool,
    loading: Loading,
) -> None:
    """Answer each prompt in PROMPTS.jsonl with the model in BUNDLE.

    A line of PROMPTS.jsonl is an object with a "prompt", which is a text or a list of
    token ids, or with "messages", and if you like an "id", "sampling_params" and an
    "adapter"; or a request in the form of OpenAI's batches. - reads stdin. OUT.jsonl
    gets a line for each, in the same order, with the answer or the error. Options of
    generation are for rows that say nothing else; with --seed S, line N samples with
    the seed S + N - 1.

    Answers are kept in OUT.jsonl.journal until all are there, so that --resume goes on
    where a run was interrupted. The exit code is 1 if rows have failed, and 2 if the
    batch could not be run.

    Example: kvc batch prompts.jsonl -o answers.jsonl --bundle model.kvc -n 100
    """
    given = Given(
        prompts=prompts[0],
        output=output,
        again=Again(resume, resume_anyway, force),
        settings=settings,
        limits=Caps(max_rows, _nbytes(max_ram), capacity),
        adapters=row_adapters,
        cluster=cluster,
        quiet=quiet,
    )
    try:
        failed = answer_all(given, bundle, loading)
    except KvcError as error:
        end_in_trouble(error)
    if failed:
        raise click.exceptions.Exit(BAD)


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits of a batch: rows at once, bytes of their caches, tokens of a row."""

    rows: int | None
    nbytes: int | None
    capacity: int | None


@dataclass(frozen=True, slots=True)
class Given:
    """What the user gives a batch beside the bundle.

    Attributes:
        prompts, output: the paths of the files; - for stdin and stdout.
        again: what becomes of an earlier run.
        settings: the settings of rows that say nothing else.
        limits: the limits of the scheduler.
        adapters: files of adapters that rows can name, as `NAME=FILE` or `FILE`.
        cluster: where actors answer; None for this process.
        quiet: whether to tell nothing on stderr.
    """

    prompts: str
    output: str
    again: Again
    settings: "Arguments"
    limits: Caps
    adapters: tuple[str, ...]
    cluster: "Cluster | None"
    quiet: bool


def answer_all(given: Given, bundle: str, loading: Loading) -> int:
    """Run a batch; return how many rows have failed.

    Raises:
        KvcError: the batch cannot be run.
    """
    from kvc.serving.batch import Answering, Identity, Prompts

    check_paths(given.prompts, given.output, given.again)
    known = surveyed(given.prompts)
    before = failed_before(given.output, given.again, known)
    if before is not None:
        click.echo(f"{given.output} has all answers; --force begins anew", err=True)
        return before
    with ExitStack() as opened:
        file = opened.enter_context(opened_input(given.prompts))
        program = opened.enter_context(open_program(bundle, loading))
        files = adapter_files(given.adapters)
        loaded = {
            name: program.adapters.load(file, name).digest
            for name, file in files.items()
        }
        prompts = Prompts(program, given.settings, _default_adapter(program))
        digest = digest_of(_of_all_rows(given, loaded, loading))
        identity = Identity(program.digest, digest, known.digest if known else "")
        journal = opened.enter_context(
            opened_journal(given.output, identity, given.again)
        )
        line = ProgressLine(known.count if known else None, given.quiet)
        if journal.index.count and not given.quiet:
            kept = plural(journal.index.count, "row")
            click.echo(f"{kept} done before stay", err=True)
        limits = limits_of(given.limits)
        answerer: Answering | RayAnswering
        if given.cluster is None:
            answerer = opened.enter_context(Answering(program, prompts, limits))
        else:
            shared = Shared(bundle, given.settings, limits, files, loading)
            answerer = opened.enter_context(
                on_cluster(given.cluster, shared, program.digest)
            )
        return finish(_job(given, file, journal, line.show), answerer, given, line)


def finish(job: "Job", answerer: "Answerer", given: Given, line: ProgressLine) -> int:
    """Run a job to its end, write the output; return how many rows have failed.

    Raises:
        KvcError: as `Job.run` and `write_output`.
    """
    from kvc.serving.batch import write_output

    try:
        job.run(answerer)
    except (KeyboardInterrupt, KvcError):
        line.end(job.progress)
        if given.output != "-" and not given.quiet:
            click.echo(f"{job.journal.path} has them; --resume goes on", err=True)
        raise
    if given.output != "-":
        write_output(job.journal, given.output)
        job.journal.remove()
    line.end(job.progress)
    return job.progress.failed


def _job(
    given: Given,
    file: BinaryIO,
    journal: "Journal",
    watch: "Callable[[Progress], None]",
) -> "Job":
    """Return the job; one for stdout writes rows as soon as they can be."""
    from kvc.serving.batch import Job, StreamingJob

    if given.output == "-":
        return StreamingJob(file, journal, watch, sys.stdout.buffer)
    return Job(file, journal, watch)


def limits_of(caps: Caps) -> "Limits":
    """Return the limits of a scheduler."""
    from kvc.serving.scheduling import Limits

    return Limits(rows=caps.rows, nbytes=caps.nbytes, capacity=caps.capacity)


def _nbytes(text: str | None) -> int | None:
    return None if text is None else nbytes_of(text, "--max-ram", least=1)


def adapter_files(given: tuple[str, ...]) -> Mapping[str, str]:
    """Return files of adapters by name, from `NAME=FILE` or `FILE`.

    Raises:
        click.UsageError: a name occurs twice.
    """
    found = dict[str, str]()
    for text in given:
        name, sign, file = text.partition("=")
        if not sign:
            name, file = Path(text).stem, text
        if name in found:
            raise click.UsageError(f"--row-adapter: two files for the name {name!r}")
        found[name] = file
    return found


def _default_adapter(program: "Program") -> "AdapterChoice":
    """Return the adapter that `--adapter` gives rows that name none."""
    from kvc.serving.batch import AdapterChoice

    adapter, scale = program.adapters.default
    return AdapterChoice() if adapter is None else AdapterChoice(adapter.name, scale)


def _of_all_rows(
    given: Given, adapters: Mapping[str, str], loading: Loading
) -> Mapping[str, object]:
    """Return what all rows have, which must not change between runs."""
    said = {k: v for k, v in given.settings.items() if v is not None}
    return {
        "settings": said,
        "capacity": given.limits.capacity,
        "adapters": dict(adapters),
        "adapter": loading.adapter,
    }
