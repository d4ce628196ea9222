"""`evaluate`: `kvc eval` by actors, which score windows of the text.

In: bundles and a text. Out: the figures of `kvc eval`, to the last bit: the windows are
the same, and their scores are added up here in the order of the text.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import cast

from kvc.ray.evaluator import (
    Bundle,
    EvaluationConfig,
    Evaluator,
    WindowJob,
    whole_path,
)
from kvc.ray.pool import Places, Pool
from kvc.runtime import Program
from kvc.runtime.scoring import (
    Evaluation,
    Subject,
    WindowScore,
    WindowScorer,
    cut_tokens,
    evaluation_of,
    score_of,
    subject_of,
)
from kvc.schema.errors import ActorLost, BadSetting, FileProblem, reason_of
from kvc.schema.frozen import frozen

EvaluationProgress = Callable[[str, int, int], None]  # bundle, tokens done, in all


@frozen
class _Task:
    """A bundle and its jobs.

    Attributes:
        subject: the bundle and the text.
        sizes: the length of a window and the stride.
        method: the method that computes the logits.
        jobs: a job for each window, in the order of the text.
    """

    subject: Subject
    sizes: tuple[int, int]
    method: str
    jobs: Sequence[WindowJob]


def evaluate(
    bundles: Sequence[str],
    text: str | bytes | os.PathLike[str],
    config: EvaluationConfig | None = None,
    progress: EvaluationProgress | None = None,
) -> list[Evaluation]:
    """Measure how well bundles predict a text, by actors of the connected cluster.

    Args:
        bundles: the paths of bundles, the same on all nodes.
        text: the text; a path is that of its file.
        config: how to measure, and on how many actors.
        progress: called with a bundle, and the number of its tokens that are done and
            of all.

    Raises:
        BadSetting: `window` or `stride` is impossible, the text is too short, or the
            cluster has too few processors.
        NodeDiffers: a node has another bundle.
        ActorLost: no actor starts, or actors are lost again and again with one window.
        KvcError: as `kvc.runtime.scoring.evaluate`.
    """
    config, raw = on_nodes(config or EvaluationConfig()), bytes_of(text)
    report = progress or (lambda bundle, done, total: None)
    tasks = [_task(bundle, raw, config) for bundle in bundles]
    places = Places(config.concurrency, config.num_cpus, config.ray_remote_args)
    with Pool(Evaluator, config, places) as pool:
        scores = _scores(pool, tasks, report)
    found = []
    for task in tasks:
        score = score_of([next(scores) for _ in task.jobs], *task.sizes, task.method)
        found.append(evaluation_of(task.subject, score))
    return found


def bytes_of(text: str | bytes | os.PathLike[str]) -> bytes:
    """Return the bytes of a text, or of the file that a path names.

    Raises:
        FileProblem: the file cannot be read.
    """
    if isinstance(text, bytes):
        return text
    if isinstance(text, str):
        return text.encode("utf-8", "surrogateescape")
    try:
        return Path(text).read_bytes()
    except (OSError, ValueError) as error:
        raise FileProblem(path=str(text), reason=reason_of(error)) from error


def on_nodes(config: EvaluationConfig) -> EvaluationConfig:
    """Return the same settings with whole paths: actors run in other folders."""
    adapter = config.adapter
    return replace(
        config,
        against=config.against and whole_path(config.against),
        data_folders=[whole_path(folder) for folder in config.data_folders],
        adapter=adapter and (whole_path(adapter[0]), adapter[1]),
    )


def _task(bundle: str, raw: bytes, config: EvaluationConfig) -> _Task:
    """Read the text as a bundle reads it, and cut it into windows.

    Raises:
        BadSetting: there is nothing to score, or windows cannot be so long.
        KvcError: as `load`, `subject_of` and `WindowScorer`.
    """
    with ExitStack() as opened:
        programs = list[Program]()
        names = [bundle] + ([config.against] if config.against else [])
        for name in names:
            programs.append(opened.enter_context(config.opened(name)))
        told = subject_of(bundle, programs[0], raw, *programs[1:])
        scorer = opened.enter_context(WindowScorer(*programs))
        sizes = scorer.sizes(config.window, config.stride, len(told.start))
        pair = tuple(
            Bundle(whole_path(name), program.digest)
            for name, program in zip(names, programs, strict=True)
        )
        jobs = [
            WindowJob(pair, window)
            for window in cut_tokens(told.tokens, told.start, *sizes)
        ]
        if not jobs:
            expected = "2 tokens or more"
            raise BadSetting(name="text", expected=expected, found=len(told.tokens))
        return _Task(told, sizes, scorer.method, jobs)


def _scores(
    pool: Pool, tasks: Sequence[_Task], report: EvaluationProgress
) -> Iterator[WindowScore]:
    """Return the scores of all windows, in the order of the bundles and of the text.

    Raises:
        ActorLost: actors are lost again and again with a window.
        KvcError: as `Pool.run`.
    """
    owners = [(at, job) for at, task in enumerate(tasks) for job in task.jobs]
    left = [len(task.jobs) for task in tasks]
    done, shown = [0] * len(tasks), 0
    scores = dict[int, WindowScore]()
    for number, found in pool.run([job for _, job in owners]):
        if isinstance(found, ActorLost):
            raise found
        scores[number] = cast(WindowScore, found)
        at, job = owners[number]
        done[at] += job.window.scored
        left[at] -= 1
        while not left[shown] and shown < len(tasks) - 1:
            shown += 1  # the last windows of a bundle run beside the next one's first
        told = tasks[shown].subject
        report(told.bundle, done[shown], len(told.tokens))
    return iter([scores[number] for number in range(len(owners))])
