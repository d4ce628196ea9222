"""`sweep`: models by recipes, compiled and measured by actors; `sweep_table` prints.

In: models, recipes and a text. Out: a row for each model and recipe, in a file of rows
as they end, so that a sweep that was interrupted goes on.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import cast

from kvc.ray.evaluation import bytes_of
from kvc.ray.pool import Places, Pool
from kvc.ray.sweep_rows import RowFile
from kvc.ray.sweeper import Measured, SweepConfig, Sweeper, SweepJob, SweepRow
from kvc.schema.errors import ActorLost
from kvc.schema.text import columns, escape, size

SweepProgress = Callable[[SweepRow, int, int], None]  # row, rows done, in all


def sweep(
    models: Sequence[str],
    recipes: Sequence[str],
    text: str | bytes | os.PathLike[str],
    output: str | os.PathLike[str],
    config: SweepConfig | None = None,
    progress: SweepProgress | None = None,
) -> list[SweepRow]:
    """Compile each model by each recipe, and measure how well it predicts a text.

    Actors of the connected cluster do it; PyTorch is on their nodes. A model that
    cannot be compiled or measured is a row with the reason.

    Args:
        models: models as `kvc compile` takes them: folders, factories, names.
        recipes: names or files of recipes.
        text: the text; a path is that of its file.
        output: the file of rows, lines of JSON. What it has of this text and these
            options is not done again.
        config: how to compile and measure, and on how many actors.
        progress: called with each new row, the number of rows that are done, and of
            all.

    Returns:
        The rows of all models and recipes: each model with all recipes, then the next.

    Raises:
        BadSetting: the cluster has too few processors.
        ActorLost: no actor starts.
        FileProblem: the text or the output cannot be read.
        BatchRunning: another process writes the output.
        CannotWrite: a row cannot be written.
    """
    config, raw = config or SweepConfig(), bytes_of(text)
    report = progress or (lambda row, done, total: None)
    wanted = list(dict.fromkeys(product(models, recipes)))
    of = {
        "text": hashlib.sha256(raw).hexdigest(),
        "compile_options": list(config.compile_options),
        "eval_options": list(config.eval_options),
    }
    with RowFile.opened(output, of) as file:
        jobs = [
            SweepJob(model, recipe, _file_name(model, recipe))
            for model, recipe in wanted
            if _is_left(file.rows.get((model, recipe)), config)
        ]
        if jobs:
            done = len(wanted) - len(jobs)
            for row in _rows(jobs, Measured(config, raw, str(Path.cwd()))):
                file.add(row)
                done += 1
                report(row, done, len(wanted))
        return [file.rows[key] for key in wanted]


def _is_left(row: SweepRow | None, config: SweepConfig) -> bool:
    """Tell whether a row is still to be made."""
    return row is None or (config.retry and bool(row.error))


def _rows(jobs: Sequence[SweepJob], measured: Measured) -> Iterator[SweepRow]:
    """Yield the rows of jobs as they end.

    Raises:
        BadSetting, ActorLost: as `Pool`.
    """
    config = measured.config
    places = Places(config.concurrency, config.num_cpus, config.ray_remote_args)
    with Pool(Sweeper, measured, places) as pool:
        for number, found in pool.run(jobs):
            if isinstance(found, ActorLost):
                job = jobs[number]
                yield SweepRow(job.model, job.recipe, str(found))
            else:
                yield cast(SweepRow, found)


def _file_name(model: str, recipe: str) -> str:
    """Return a name of a bundle that no other model and recipe have."""
    digest = hashlib.sha256(f"{model}\0{recipe}".encode()).hexdigest()[:8]
    plain = f"{Path(model).name}-{Path(recipe).stem}".replace(":", "-")
    return f"{plain}-{digest}.kvc"


def sweep_table(rows: Sequence[SweepRow]) -> list[str]:
    """Return the lines of a table of rows; the first line has the titles.

    Of a row that failed, the first line of the reason stands below the table.
    """
    titles = ("model", "recipe", "file", "bits per byte", "perplexity", "tokens/s")
    compared = any((row.figures or {}).get("divergence") is not None for row in rows)
    cells = [(*titles, *("divergence",) * compared)]
    cells += [_cells(row)[: len(cells[0])] for row in rows]
    failed = [
        f"{escape(row.model)}, {escape(row.recipe)}: {escape(_first_line(row.error))}"
        for row in rows
        if row.error
    ]
    return columns(cells, "<<>>>>>"[: len(cells[0])]) + failed


def _cells(row: SweepRow) -> tuple[str, ...]:
    figures = row.figures or {}

    def shown(name: str, form: str) -> str:
        return "-" if figures.get(name) is None else format(figures[name], form)

    return (
        escape(row.model),
        escape(row.recipe),
        "-" if row.nbytes is None else size(row.nbytes),
        shown("bits_per_byte", ".4f"),
        shown("perplexity", ".3f"),
        shown("tokens_per_second", ".0f"),
        shown("divergence", ".5f"),
    )


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""
