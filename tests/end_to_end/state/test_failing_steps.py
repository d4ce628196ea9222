"""A partition that fails: it says that it has written nothing, or counts as half done.

Then all that its instruction may write counts as begun. What knowing the position puts
back is as it was, whoever owns it; what cannot be put back leaves the session poisoned.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, dropwhile
from pathlib import Path

import numpy as np
import pytest
import torch
from broken_steps import Broken, broken_step
from cached_models import VOCAB
from made_once import MadeOnce
from session_kinds import KINDS
from state_runs import opened, snapshot
from torch import Tensor, nn

from kvc.compiler import Method
from kvc.runtime import KernelFailed, Program, Session
from kvc.schema.errors import IndexOutOfRange, Poisoned

TOKENS = np.random.default_rng(8).integers(0, VOCAB, (1, 16))
RAISED = {Broken: KernelFailed, KeyboardInterrupt: KeyboardInterrupt}
GOES_BACK = ["linear", "append", "int8", "append in a branch"]
SPOILT = ["shifting", "told"]


@pytest.fixture(scope="module")
def programs(
    tmp_path_factory: pytest.TempPathFactory, backend: str
) -> Iterator[MadeOnce[Program]]:
    with ExitStack() as stack:

        def program(name: str) -> Program:
            kind, folder = KINDS[name], tmp_path_factory.mktemp("failing")
            options = {"states": kind.states, "recipe": kind.recipe}
            found = opened(kind.model(), kind.methods, folder, **options)
            return stack.enter_context(found)

        yield MadeOnce(program)


def feed(session: Session, name: str, first: int, end: int) -> dict[str, np.ndarray]:
    """Run the method that takes many tokens; return its results and the states."""
    kind = KINDS[name]
    arguments = kind.arguments(TOKENS[:, first:end], first, True)
    result = session.call(kind.methods[0].name, *arguments)
    results = result if isinstance(result, dict) else {"result": result}
    return snapshot(session) | {key: np.array(one) for key, one in results.items()}


def fails(session: Session, name: str, error: type[BaseException]) -> Iterator[int]:
    """Break the second call at each step, before and after it; yield its number."""
    for number in count():
        for after in (False, True):
            with broken_step(number, after, error):
                try:
                    feed(session, name, 3, 6)
                except RAISED[error]:
                    yield number
                else:
                    assert number > 0
                    return


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize("error", RAISED)
@pytest.mark.parametrize("name", GOES_BACK)
def test_states_that_go_back_are_as_before_the_call(
    programs: MadeOnce[Program], name: str, error: type[BaseException]
) -> None:
    with programs[name].session() as session:
        feed(session, name, 0, 3)
        before = snapshot(session)
        with session.fork() as twin:
            expected = feed(twin, name, 3, 6)
        for step in fails(session, name, error):
            assert same(snapshot(session), before), step
            assert set(session.position.tolist()) == {3}, step
        assert same(snapshot(session), {n: expected[n] for n in session.state})


@pytest.mark.parametrize("error", RAISED)
@pytest.mark.parametrize("name", SPOILT)
def test_others_are_poisoned_from_the_first_instruction_that_writes(
    programs: MadeOnce[Program], name: str, error: type[BaseException], backend: str
) -> None:
    with programs[name].session() as session:
        feed(session, name, 0, 3)
        before, poisoned = snapshot(session), []
        for _ in fails(session, name, error):
            poisoned.append(_is_poisoned(session))
            assert poisoned[-1] or same(snapshot(session), before)
            session.reset()
            feed(session, name, 0, 3)
            assert same(snapshot(session), before)
        # The first steps are whole partitions, those after them what a partition runs.
        inner = list(dropwhile(bool, poisoned)) if backend else poisoned
        assert inner == sorted(inner)
        assert poisoned[-1]
        assert poisoned[0] or backend in ("", "partitions"), (
            "all of it is one partition"
        )


@pytest.mark.parametrize("error", RAISED)
@pytest.mark.parametrize("name", SPOILT)
def test_a_transactional_session_has_copies_of_them(
    programs: MadeOnce[Program], name: str, error: type[BaseException]
) -> None:
    with programs[name].session(transactional=True) as session:
        feed(session, name, 0, 3)
        before = snapshot(session)
        for step in fails(session, name, error):
            assert same(snapshot(session), before), step


class Placed(nn.Module):
    """A state that is written at places which integers, or floats, say."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(4, 2))

    def put(self, x: Tensor, places: Tensor) -> Tensor:
        self.held[places] = x
        return self.held.sum()

    def put_by_floats(self, x: Tensor) -> Tensor:
        self.held[x[:, 0].long()] = x
        return self.held.sum()

    def copy(self, x: Tensor, places: Tensor) -> Tensor:
        self.held.index_copy_(0, places, x)
        return self.held.sum()


@pytest.mark.parametrize("name", ["put", "put_by_floats", "copy"])
def test_an_index_outside_is_refused_before_anything_is_written(
    name: str, tmp_path: Path
) -> None:
    x, places = torch.ones(2, 2), torch.tensor([0, 1])
    arguments = (x,) if name == "put_by_floats" else (x, places)
    outside = (x + 3,) if name == "put_by_floats" else (x, places + 3)
    with (
        opened(Placed(), [Method(name, arguments)], tmp_path) as program,
        program.session() as session,
    ):
        session.call(name, *arguments)
        before = snapshot(session)
        with pytest.raises(IndexOutOfRange, match="index 4 "):
            session.call(name, *outside)
        assert same(snapshot(session), before)
        session.call(name, *arguments)


def _is_poisoned(session: Session) -> bool:
    try:
        session.check_usable()
    except Poisoned:
        return True
    return False
