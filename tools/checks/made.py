"""Make the sample calls of a new bundle: `kvc compile --check`."""

import tempfile
from dataclasses import replace
from pathlib import Path

from kvc.compiler import Bundle
from kvc.runtime import load
from kvc.schema.container import Progress
from kvc.schema.errors import NoCheck
from kvc.tools.checks.calls import Result, sample_results
from kvc.tools.checks.expected import FILE, Expected, compare, expected_file
from kvc.tools.checks.readings import read
from kvc.tools.checks.rounding import (
    SHORT_CALLS,
    Moves,
    Source,
    choose_calls,
    measure_moves,
)


def with_results(bundle: Bundle, progress: Progress) -> Bundle:
    """Return a bundle that also holds what sample calls of each recipe give.

    They are made twice, by the libraries of the backends that are here, and by the
    reference implementation of their arithmetic: a bundle in which these do not agree
    is wrong already.

    Args:
        bundle: which is written to a temporary folder for this.
        progress: told of each stage.

    Raises:
        NoCheck: no method can be called with made-up arguments.
        CheckFailed: libraries and reference do not agree.
        KvcError: it cannot be written there, or no session can be opened.
    """
    bodies = bundle.program.bodies
    with tempfile.TemporaryDirectory(prefix="kvc-check-") as folder:
        path = Path(folder) / "bundle.kvc"
        bundle.save(path, progress=progress)
        progress("sample calls", 0, 0)
        recipes = {
            body.provenance.recipe: _checked(
                Source(path, body.backends[0] if len(bodies) > 1 else None, None)
            )
            for body in bodies
        }
    return bundle.with_files({FILE: expected_file(recipes)})


def _checked(source: Source) -> Expected:
    """Return what a recipe gives, by its reference; its library agrees.

    Raises:
        NoCheck, CheckFailed, KvcError: as `with_results`.
    """
    calls, moves = _measured(source)
    reference = load(source.path, reference=True, backend=source.backend)
    with reference as program:
        results = list(sample_results(program, calls))
    _check_some(results)
    expected = Expected(calls, read(results), moves)
    with load(source.path, backend=source.backend) as program:
        compare(expected, sample_results(program, calls))
    return expected


def _measured(source: Source) -> tuple[tuple[int, ...], tuple[Moves, ...]]:
    """Return short calls, and how far rounding moves each result.

    By the library, which is the quicker one; by the reference where it reads weights
    from the file, and does not see that they are changed in memory.
    """
    calls = choose_calls(source)
    moves = measure_moves(source, calls)
    if any(one.coarse for one in moves):
        return calls, moves
    calls = tuple(range(min(len(calls), SHORT_CALLS)))
    return calls, measure_moves(replace(source, reference=True), calls)


def _check_some(results: list[Result]) -> None:
    """Check that some methods take made-up arguments.

    Raises:
        NoCheck: none does.
    """
    called = [one for one in results if not one.held]
    if all(isinstance(one.given, str) for one in called):
        told = ", ".join(f"{one.name}: {one.given}" for one in called)
        reason = f"no method takes made-up arguments ({told}); leave --check out"
        raise NoCheck(reason=reason)
