"""Time the methods of bundles that generate no text, for `kvc bench`.

In: bundles and how to load them. Out: the milliseconds of each method's calls, as
reports and as a table. Bundles take turns in every round, so that a machine that
becomes slower affects all of them alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvc.schema.text import columns, escape
from kvc.tools.bench.method_tests import MethodTest, method_tests
from kvc.tools.bench.profiling import median_ms, time_method
from kvc.tools.bench.rounds import Progress, Spread
from kvc.tools.options import Loading, open_program

_CALLS: Final = 10  # of a method in a round


@dataclass(frozen=True, slots=True)
class MethodSpeed:
    """The time of a method's calls with made-up arguments.

    Attributes:
        path: path of the bundle.
        recipe: name of the bundle's recipe.
        method: name of the method.
        sizes: sizes of the arguments, by name.
        rounds: for each round, the median milliseconds of its calls.
        milliseconds: the median, the least and the most of the rounds.
    """

    path: str
    recipe: str
    method: str
    sizes: Mapping[str, int]
    rounds: tuple[float, ...]
    milliseconds: Spread


def measure_methods(
    bundles: Sequence[str], rounds: int, loading: Loading, progress: Progress
) -> list[MethodSpeed]:
    """Time each method of each bundle in every round.

    Raises:
        KvcError: as `load`, `Program.session` and `Session.call`.
    """
    times: dict[tuple[int, str], list[float]] = {}  # bundle, method
    told: dict[tuple[int, str], tuple[str, MethodTest]] = {}
    for number in range(rounds):
        for place, path in enumerate(bundles):
            progress(path, number * len(bundles) + place, rounds * len(bundles))
            with open_program(path, loading) as program:
                for test in method_tests(program, {}):
                    took = median_ms(time_method(program, test, _CALLS))
                    times.setdefault((place, test.method), []).append(took)
                    told[place, test.method] = program.provenance.recipe, test
    return [
        MethodSpeed(
            bundles[place],
            told[place, method][0],
            method,
            told[place, method][1].sizes,
            tuple(rounds_ms),
            Spread.over(rounds_ms),
        )
        for (place, method), rounds_ms in sorted(times.items())
    ]


def method_table(found: Sequence[MethodSpeed]) -> list[str]:
    """Return a table of milliseconds: median (minimum to maximum)."""
    rows: list[tuple[str, ...]] = [("model", "recipe", "method", "ms", "")]
    for one in found:
        took = one.milliseconds
        rows.append(
            (
                escape(one.path),
                escape(one.recipe),
                escape(MethodTest(one.method, one.sizes).name),
                f"{took.median:.2f}",
                f"({took.least:.2f} to {took.most:.2f})",
            )
        )
    return columns(rows, "<<<><")
