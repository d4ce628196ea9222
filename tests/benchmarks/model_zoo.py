# ruff: noqa: E501  texts and tables read best unbroken
"""Other people's models: what compiles of torchvision and timm, and is equal to eager.

`python tests/benchmarks/model_zoo.py [NAMES] [--groups timm] [--results FILE] [--page]`
needs `pip install torchvision timm`. Every classification, segmentation, video and
detection model of `torchvision.models` and one of each family of timm, with random
weights and small inputs, is compiled by `fp32`, saved, loaded, run and compared with
eager, each in a process of its own. `--results` keeps the rows, one line of JSON each,
and models that have one there are not run again; `--page` writes them as
compiler/VISION_MODELS.md. The exit code tells whether no model was wrong, failed otherwise
than in a `KvcError`, or was planned with more than 5% above the lower bound.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from model_zoo_models import GROUPS, VERSIONS, Zoo, zoo
from torch import Tensor
from torch.utils._pytree import tree_leaves

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.schema.errors import KvcError

PAGE = Path(__file__).parents[2] / "compiler" / "VISION_MODELS.md"
MOST_ERROR, MOST_OVER, MOST_SECONDS = 1e-4, 0.05, 180

OUTCOMES = ("right", "refused", "wrong", "error", "slow", "skipped")


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a model.

    Attributes:
        outcome: right, wrong, refused (with a `KvcError`), error (any other), slow (no
            answer in time), skipped (eager refuses it).
        error: the largest difference over the spread of eager's results.
        planned: bytes of scratch memory.
        peak: the most bytes alive at one time; no plan can be smaller.
    """

    group: str
    name: str
    outcome: str
    reason: str = ""
    shape: str = ""
    parameters: int = 0
    instructions: int = 0
    error: float = 0.0
    planned: int = 0
    peak: int = 0
    seconds: float = 0.0

    @property
    def over(self) -> float:
        """Return how far planned memory is above the bound."""
        return self.planned / self.peak - 1 if self.peak else 0.0

    @property
    def good(self) -> bool:
        """Tell whether nothing speaks against it."""
        return self.outcome not in ("wrong", "error") and self.over <= MOST_OVER


def measure(case: Zoo, path: Path) -> Row:
    """Compile a model, run it, and compare."""
    start = time.perf_counter()
    torch.manual_seed(0)
    row = {"group": case.group, "name": case.name}
    try:
        model, x = case.make()
        with torch.no_grad():
            expected = _tensors(model(x))
    except Exception as error:
        return Row(**row, outcome="skipped", reason=_words(error))
    row |= {"shape": "x".join(map(str, x.shape)), "parameters": _size(model)}
    try:
        bundle = compile_program(model, [Method("forward", args=(x,))], "fp32")
        graph = bundle.program.methods[0].graph
        row |= {"planned": graph.scratch_nbytes, "peak": graph.peak_nbytes}
        row |= {"instructions": len(graph.instructions)}
        bundle.save(path)
        with load(path) as program, program.session() as session:
            found = _tensors(session.call("forward", x))
    except KvcError as error:
        return Row(**row, outcome="refused", reason=_words(error))
    except Exception as error:
        return Row(**row, outcome="error", reason=_words(error))
    worst = max(map(difference, found, expected)) if len(found) == len(expected) else 9
    outcome = "right" if worst <= MOST_ERROR else "wrong"
    seconds = time.perf_counter() - start
    return Row(**row, outcome=outcome, error=worst, seconds=round(seconds, 1))


def _size(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _tensors(results: object) -> list[Tensor]:
    leaves = (torch.as_tensor(each) for each in tree_leaves(results))
    return [each.float() for each in leaves]


def difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference over the spread; infinite where nothing fits."""
    if found.shape != expected.shape or not bool(expected.isfinite().all()):
        return float("inf")
    if not expected.numel():
        return 0.0
    spread = float(expected.max() - expected.min()) or 1.0
    worst = float((found - expected).abs().max()) / spread
    return worst if worst == worst else float("inf")


def _words(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)}"[:400]


def _child(case: Zoo, answers: Connection) -> None:
    """Run in a process of its own: a crash or a leak is that model's."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as folder:
        answers.send(measure(case, Path(folder) / "model.kvc"))


def alone(case: Zoo) -> Row:
    """Measure a model in a forked process, and bear that it may end early."""
    answers, other = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_child, args=(case, other)
    )
    process.start()
    other.close()
    try:
        if answers.poll(MOST_SECONDS):
            return answers.recv()
        outcome, why = "slow", f"no answer after {MOST_SECONDS} s"
    except EOFError:
        process.join()
        outcome, why = "error", f"the process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()
    return Row(case.group, case.name, outcome, why)


def run(cases: Iterable[Zoo], results: Path | None) -> list[Row]:
    """Measure what has no row yet, and return all rows."""
    rows = {}
    if results and results.exists():
        for line in results.read_text().splitlines():
            row = Row(**json.loads(line))
            rows[row.group, row.name] = row
    for case in cases:
        if (case.group, case.name) in rows:
            continue
        row = alone(case)
        rows[case.group, case.name] = row
        sys.stdout.write(_line(row) + "\n")
        sys.stdout.flush()
        if results:
            with results.open("a") as out:
                out.write(json.dumps(asdict(row)) + "\n")
    return list(rows.values())


def _line(row: Row) -> str:
    if row.outcome in ("right", "wrong"):
        return (
            f"{row.outcome} {row.group}/{row.name} {row.shape} error {row.error:.1e} "
            f"over {row.over:.1%} {row.seconds:.0f} s"
        )
    return f"{row.outcome} {row.group}/{row.name} {row.reason}"


def counts(rows: Iterable[Row]) -> dict[str, dict[str, int]]:
    """Return how many of each group came out how."""
    table: dict[str, dict[str, int]] = {}
    for row in rows:
        group = table.setdefault(row.group, {})
        group[row.outcome] = group.get(row.outcome, 0) + 1
    return table


HEAD = """\
# Models that nobody here wrote

Written by `python tests/benchmarks/model_zoo.py --page` with torchvision {torchvision}
and timm {timm}; do not edit.

The command tries every classification, segmentation, video and detection model of
`torchvision.models` ({vision} of them) and one of each of {families} families of timm,
with random weights and small inputs, compiled by `fp32` and compared with eager; it may be
stopped, and goes on where it was. Those listed here are {tried}. Scales and statistics are moved away from 0 and 1, so that no layer is idle.

- *error*: the largest difference over the spread of eager's results; right is up to
  {error:g}.
- *too slow*: no answer within {seconds} s on the machine that wrote this; *skipped*: eager
  itself refuses the model or its input.
- *scratch*: planned bytes; the least is the most bytes alive at one time, which no plan can do
  without.

Each model's figures are in the rows that `--results FILE` keeps.

"""


def page(rows: list[Row]) -> str:
    """Return the page of all rows."""
    known = [case.group for case in zoo()]
    families = known.count("timm")
    text = HEAD.format(
        **VERSIONS,
        error=MOST_ERROR,
        seconds=MOST_SECONDS,
        vision=len(known) - families,
        families=families,
        tried=len(rows),
    )
    text += "| group | right | refused | wrong | other errors | too slow | skipped |\n"
    text += "| --- | --- | --- | --- | --- | --- | --- |\n"
    for group, found in counts(rows).items():
        numbers = [found.get(kind, 0) for kind in OUTCOMES]
        text += f"| {group} | {' | '.join(map(str, numbers))} |\n"
    for group in [*GROUPS, "timm"]:
        some = [row for row in rows if row.group == group]
        text += f"\n## {group.capitalize()}\n\n" if some else ""
        right = [row for row in some if row.outcome == "right"]
        other = [row for row in some if row.outcome != "right"]
        text += _summary(right) if right else ""
        text += "\n" if right and other else ""
        text += _others(other)
    return text


def _others(rows: list[Row]) -> str:
    """Return a line for each outcome and reason, with the models that have it."""
    names: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        why = row.reason.partition("; ")[0] or f"error {row.error:.0e}"
        names.setdefault((row.outcome, why), []).append(f"`{row.name}`")
    return "".join(
        f"- {', '.join(models)}, {outcome}: {why}\n"
        for (outcome, why), models in names.items()
    )


def _summary(right: list[Row]) -> str:
    """Return the names of models that are right, and the worst of their figures."""
    names = ", ".join(row.name for row in right)
    worst = max(row.error for row in right)
    scratch = max(row.over for row in right)
    wrapped = textwrap.fill(names, 98, break_long_words=False, break_on_hyphens=False)
    return (
        f"{len(right)} are right; the largest *error* is {worst:.0e}, *scratch* is at "
        f"most {scratch:.1%} above the least:\n\n{wrapped}\n"
    )


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of models; all where none is given")
    parser.add_argument("--groups", nargs="*", default=[*GROUPS, "timm"])
    parser.add_argument("--results", type=Path)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    cases = [
        case
        for case in zoo()
        if case.group in options.groups
        and (not options.names or case.name in options.names)
    ]
    rows = run(cases, options.results)
    for group, found in counts(rows).items():
        print(group, found)
    if options.page:
        order = {(case.group, case.name): i for i, case in enumerate(zoo())}
        known = [row for row in rows if (row.group, row.name) in order]
        PAGE.write_text(page(sorted(known, key=lambda r: order[r.group, r.name])))
    sys.exit(0 if all(row.good for row in rows) else 1)


if __name__ == "__main__":
    main()
