"""`Sweeper`: an actor that compiles a model by a recipe and measures the bundle.

In: jobs, a model and a recipe each. Out: rows. `kvc compile` and `kvc eval` run in
processes of their own, so that whatever ends them is a row and not the end of a sweep.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from kvc.schema.errors import BadSetting

_MOST_LINES: Final = 20  # of what a command that failed has told
_OURS: Final = ("-o", "--output", "--recipe", "--what-if")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """How a sweep compiles and measures.

    Attributes:
        compile_options: further options of `kvc compile`, for all models.
        eval_options: further options of `kvc eval`, such as `--window`, `256`.
        folder: where bundles are kept, on the node that made them; None to remove each
            when it has been measured.
        concurrency: how many actors there are. Each does one model and recipe at a
            time.
        num_cpus: the processors of an actor, and the threads that measure.
        retry: whether what has failed in an earlier run is done again.
        ray_remote_args: further arguments of the actors, such as `resources`.
    """

    compile_options: Sequence[str] = ()
    eval_options: Sequence[str] = ()
    folder: str | None = None
    concurrency: int = 1
    num_cpus: int = 1
    retry: bool = False
    ray_remote_args: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check numbers and options.

        Raises:
            BadSetting: a number is not a whole number from 1, or an option of
                `kvc compile` is one that the sweep gives.
        """
        for name in ("concurrency", "num_cpus"):
            count = getattr(self, name)
            if type(count) is not int or count < 1:
                expected = "a whole number of 1 or more"
                raise BadSetting(name=name, expected=expected, found=count)
        for option in self.compile_options:
            if option.partition("=")[0] in _OURS:
                expected = f"options other than {', '.join(_OURS)}"
                raise BadSetting(
                    name="compile_options", expected=expected, found=option
                )


@dataclass(frozen=True, slots=True)
class SweepRow:
    """A model by a recipe, and how well it predicts the text.

    Attributes:
        model: the model, as `kvc compile` takes it.
        recipe: the recipe.
        error: why there are no figures; empty where there are.
        bundle: the bundle, if it was kept.
        nbytes: the size of the bundle's file; null if it was not compiled.
        compile_seconds: the time that compiling took.
        figures: what `kvc eval --json` tells of the bundle; null if it failed.
    """

    model: str
    recipe: str
    error: str = ""
    bundle: str | None = None
    nbytes: int | None = None
    compile_seconds: float | None = None
    figures: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class SweepJob:
    """A model that is to be compiled by a recipe.

    Attributes:
        model: the model.
        recipe: the recipe.
        name: the name of the bundle's file.
    """

    model: str
    recipe: str
    name: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What an actor needs for all jobs.

    Attributes:
        config: the settings of the sweep.
        raw: the bytes of the text.
        home: the folder of the driver, for relative paths.
    """

    config: SweepConfig
    raw: bytes
    home: str


class _Failed(Exception):
    """A command has failed, with this message."""


class Sweeper:
    """Compiles and measures; Ray makes an actor of it."""

    def __init__(self, measured: Measured) -> None:
        """Remember the settings."""
        self._measured, self._config = measured, measured.config

    def ready(self) -> None:
        """Tell that the actor has started."""

    def do(self, job: SweepJob) -> SweepRow:
        """Compile a model and measure it; return what came of it."""
        row = SweepRow(job.model, job.recipe)
        with TemporaryDirectory(prefix="kvc-sweep-") as folder:
            text = Path(folder) / "text"
            text.write_bytes(self._measured.raw)
            kept = self._config.folder
            bundle = Path(self._measured.home, kept or folder, job.name)
            began = time.monotonic()
            try:
                bundle.parent.mkdir(parents=True, exist_ok=True)
                said = ("--recipe", job.recipe, "-o", str(bundle), "-q")
                self._run("compile", job.model, *said, *self._config.compile_options)
                row = replace(
                    row,
                    bundle=str(bundle) if kept else None,
                    nbytes=bundle.stat().st_size,
                    compile_seconds=round(time.monotonic() - began, 3),
                )
                return replace(row, figures=self._figures(bundle, text))
            except (_Failed, OSError) as error:
                return replace(row, error=str(error))

    def _figures(self, bundle: Path, text: Path) -> Mapping[str, Any]:
        """Return what `kvc eval` tells of a bundle.

        Raises:
            _Failed: it has failed.
        """
        threads = ("--threads", str(self._config.num_cpus))
        paths = (str(bundle), str(text), "--json")
        told = self._run("eval", *paths, *threads, *self._config.eval_options)
        figures: Mapping[str, Any] = json.loads(told)["bundles"][0]
        return {name: each for name, each in figures.items() if name != "bundle"}

    def _run(self, *words: str) -> str:
        """Run a command of kvc; return what it prints.

        Raises:
            _Failed: it has failed.
        """
        home = self._measured.home
        done = subprocess.run(
            [sys.executable, "-m", "kvc.tools", *words],
            cwd=home if Path(home).is_dir() else None,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            raise _Failed(_reason(words[0], done.returncode, done.stderr))
        return done.stdout


def _reason(command: str, code: int, told: str) -> str:
    """Return why a command has failed: its error, or the end of what it has told."""
    _, found, error = ("\n" + told).rpartition("\nError: ")
    lines = (error if found else told).strip().splitlines()[-_MOST_LINES:]
    said = "\n".join(lines) or f"it ended with the exit code {code}"
    return f"kvc {command}: {said}"
