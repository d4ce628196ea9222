"""Every kind of state with the recipes of the native backends that quantize.

What they compute is what the reference of the same bundle computes. The numbers of fp32
are those of eager, and native recipes run all other tests here (`state_backends.py`).
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from plain_recipes import PLAIN_RECIPES, runs_here
from session_kinds import KINDS, RINGS, behaviour
from session_machine import SETTINGS, Conversations

from kvc.compiler import compile_program
from kvc.recipes import load_recipe
from kvc.runtime import Program, load
from kvc.runtime.execution.executor import Frame

RECIPES = [name for name in PLAIN_RECIPES if load_recipe(name).backend]
QUANTIZING = [name for name in RECIPES if load_recipe(name).linear != "float32"]
_KINDS = KINDS | RINGS
_RUN = Frame._run


@pytest.fixture(scope="module")
def path_of() -> Iterator[object]:
    """Return what gives the bundle of a kind and a recipe, compiled once."""
    with tempfile.TemporaryDirectory() as folder:

        @cache
        def made(name: str, recipe: str) -> Path:
            kind = _KINDS[name]
            chosen = load_recipe(recipe, load_recipe(kind.recipe).cache)
            if not runs_here(chosen):
                pytest.skip(f"what runs {recipe} is not here")
            path = Path(folder) / f"{recipe} {name}.kvc"
            bundle = compile_program(
                kind.model(), kind.methods, chosen, states=kind.states
            )
            bundle.save(path)
            return path

        yield made


def _daily(number: int, name: str, recipe: str) -> object:
    """Return a case that one run of so many takes every day."""
    rare = crc32(f"{name} {recipe}".encode()) % number
    marks = [pytest.mark.exhaustive] if rare else []
    return pytest.param(name, recipe, marks=marks)


CASES = [(name, recipe) for name in _KINDS for recipe in RECIPES]


@pytest.mark.parametrize(("name", "recipe"), [_daily(24, *case) for case in CASES])
def test_a_session_is_as_by_the_reference(
    name: str, recipe: str, path_of: object, tmp_path: Path
) -> None:
    told = []
    for reference in (True, False):
        with load(path_of(name, recipe), reference=reference) as program:
            told.append(behaviour(program, _KINDS[name], tmp_path))
    results = [each.pop("results") for each in told]
    assert told[0] == told[1]
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


class AsByTheReference(Conversations):
    """The model of a session is one of the reference that is fed its tokens anew."""

    by_reference: Program
    # Where an activation is a tie, the order of a sum decides which step it becomes:
    # one made 8e-3. Of the tokens that were tried, another one made 9e-2 or more.
    near = 2e-2

    def expected(self, count: int) -> np.ndarray:
        return _fed(self.by_reference, self.name, tuple(self.talk.tokens))[:, -count:]


@cache
def _fed(program: Program, name: str, tokens: tuple[int, ...]) -> np.ndarray:
    """Return logits of all tokens; ~token is one that is lost."""
    kind, found = KINDS[name], []
    with program.session() as session, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Frame, "_run", _RUN)  # another session's steps may fail here
        for held, run in _runs(tokens):
            kept = run[0] >= 0
            given = np.array([[token if kept else ~token for token in run]])
            arguments = kind.arguments(given, held, kept)
            result = session.call(kind.methods[0].name, *arguments)
            found.append(result["logits"] if isinstance(result, dict) else result)
    return np.concatenate(found, 1)


def _runs(tokens: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield where each run of tokens begins that are all kept, or all lost."""
    start = 0
    for end in range(1, len(tokens) + 1):
        if end == len(tokens) or (tokens[end] < 0) != (tokens[start] < 0):
            yield start, tokens[start:end]
            start = end


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("recipe", QUANTIZING)
def test_whatever_is_done_it_is_what_its_tokens_are(
    name: str, recipe: str, path_of: object, tmp_path: Path
) -> None:
    other = next(key for key in KINDS if key != name)
    with ExitStack() as stack:
        programs = [
            stack.enter_context(load(path_of(each, recipe), reference=reference))
            for each, reference in ((name, False), (other, False), (name, True))
        ]

        class Here(AsByTheReference):
            kind, folder = KINDS[name], tmp_path
            program, other, by_reference = programs

        Here.name = name
        run_state_machine_as_test(Here, settings=settings(SETTINGS, max_examples=60))
        _fed.cache_clear()
