"""Anything that may be done with a session, in any order, for every kind of state."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from made_once import MadeOnce
from session_kinds import KINDS
from session_machine import SETTINGS, Conversations
from state_backends import examples

from kvc.compiler import compile_program
from kvc.runtime import Program, load
from kvc.runtime.memory import forking
from kvc.runtime.memory.arenas import PAGE_NBYTES
from kvc.schema.errors import InputMismatch


@pytest.fixture(scope="module")
def programs(backend: str) -> Iterator[dict[str, Program]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def made(name: str) -> Program:
            kind, path = KINDS[name], folder / f"{list(KINDS).index(name)}.kvc"
            options = {"states": kind.states, "recipe": kind.recipe}
            compile_program(kind.model(), kind.methods, **options).save(path)
            return stack.enter_context(load(path))

        yield MadeOnce(made)


@pytest.fixture
def sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let forks share single pages too: caches as small as these are copied."""
    monkeypatch.setattr(forking, "LEAST_MAPPED", PAGE_NBYTES)


@pytest.mark.usefixtures("sharing")
@pytest.mark.parametrize("name", KINDS)
def test_a_session_is_what_its_tokens_are(
    programs: dict[str, Program], tmp_path: Path, name: str
) -> None:
    _run(programs, tmp_path, name, SETTINGS)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("sharing")
@pytest.mark.parametrize("name", KINDS)
def test_a_session_is_what_its_tokens_are_at_length(
    programs: dict[str, Program], tmp_path: Path, name: str, backend: str
) -> None:
    many = settings(SETTINGS, max_examples=examples(1000, backend))
    _run(programs, tmp_path, name, many)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", KINDS)
def test_so_it_is_where_forks_copy(
    programs: dict[str, Program], tmp_path: Path, name: str, backend: str
) -> None:
    many = settings(SETTINGS, max_examples=examples(200, backend))
    _run(programs, tmp_path, name, many)


def _run(programs: dict[str, Program], folder: Path, name: str, how: settings) -> None:
    class Here(Conversations):
        kind, program = KINDS[name], programs[name]
        other = programs[next(key for key in KINDS if key != name)]

    Here.name, Here.folder = name, folder
    run_state_machine_as_test(Here, settings=how)


def test_a_wrong_input_is_told_before_anything_runs(
    programs: dict[str, Program],
) -> None:
    with programs["linear"].session() as session:
        with pytest.raises(InputMismatch):
            session.prefill(np.array([[1.0]]))
        assert session.position.tolist() == [0]
