"""A call that fails at any instruction: the session is as it was, or says it is not."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cached_models import (
    SLOTS,
    VOCAB,
    Append,
    IndexCopy,
    Linear,
    Recurrent,
    Shifting,
    append_methods,
    placed_methods,
    simple_methods,
)
from state_models import PlainAfterLinear
from state_runs import opened, snapshot
from torch.nn import functional

from kvc.compiler import Dim, Method
from kvc.runtime import KernelFailed, Program, Session
from kvc.runtime.execution.executor import Frame
from kvc.schema.errors import Poisoned

TEXT = np.random.default_rng(8).integers(0, VOCAB, (1, 16))
LAST_GOOD = {
    "linear": (Linear, simple_methods()),
    "index_copy": (IndexCopy, placed_methods()),
    "append": (Append, append_methods()),
}
SPOILT = {
    "shifting": (Shifting, simple_methods()),
    "recurrent": (Recurrent, simple_methods()),
}
PROGRAMS = LAST_GOOD | SPOILT


@pytest.fixture(scope="module")
def programs(
    tmp_path_factory: pytest.TempPathFactory, backend: str
) -> Iterator[dict[str, Program]]:
    made = {
        name: opened(model(), methods, tmp_path_factory.mktemp(name))
        for name, (model, methods) in PROGRAMS.items()
    }
    yield {name: opening.__enter__() for name, opening in made.items()}
    for opening in made.values():
        opening.__exit__(None, None, None)


class Broken(Exception):
    """What the injected failure is."""


@pytest.fixture
def broken_at(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[int, bool], list[int]]:
    """Make step i of the next runs fail, after it has worked or instead of it."""
    run = Frame.run

    def set_up(at: int, after: bool) -> list[int]:
        lengths: list[int] = []

        def broken(self: Frame, *args: object) -> None:
            lengths.append(len(self.steps))
            function, arguments = self.steps[at]

            def fail(*given: object) -> None:
                if after:
                    function(*given)
                raise Broken

            steps = (*self.steps[:at], (fail, arguments), *self.steps[at + 1 :])
            run(replace(self, steps=steps), *args)

        monkeypatch.setattr(Frame, "run", broken)
        return lengths

    return set_up


def count_steps(
    session: Session, monkeypatch: pytest.MonkeyPatch, *call: object
) -> int:
    """Return how many steps a call takes, without running any."""
    found: list[int] = []

    def counting(self: Frame, *args: object) -> None:
        found.append(len(self.steps))
        raise Broken

    with monkeypatch.context() as patch:
        patch.setattr(Frame, "run", counting)
        with pytest.raises(Broken):
            session.call(*call)
    assert found[0] > 5
    return found[0]


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def logits(result: object) -> np.ndarray:
    return result["logits"] if isinstance(result, dict) else result


CALLS = [("prefill", TEXT[:, 3:7]), ("decode", TEXT[:, 3:4])]


@pytest.mark.parametrize("call", CALLS, ids=["prefill", "decode"])
@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize("kind", LAST_GOOD)
def test_a_failure_anywhere_leaves_the_last_good_position(
    programs: dict[str, Program],
    broken_at: Callable[[int, bool], list[int]],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    after: bool,
    call: tuple[str, np.ndarray],
) -> None:
    with programs[kind].session() as session:
        session.prefill(TEXT[:, :3])
        before = snapshot(session)
        expected = logits(session.call(*call))
        session.rewind(call[1].shape[1])
        for step in range(count_steps(session, monkeypatch, *call)):
            broken_at(step, after)
            with pytest.raises(KernelFailed):
                session.call(*call)
            monkeypatch.undo()
            assert session.position.tolist() == [3], step
            assert equal(before, snapshot(session)), step
            assert np.array_equal(logits(session.call(*call)), expected), step
            session.rewind(call[1].shape[1])
            assert equal(before, snapshot(session)), step


@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize("kind", SPOILT)
def test_a_failure_poisons_states_that_cannot_go_back_until_a_reset(
    programs: dict[str, Program],
    broken_at: Callable[[int, bool], list[int]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: str,
    after: bool,
) -> None:
    call, poisoned = CALLS[1], []
    with programs[kind].session() as session:
        session.prefill(TEXT[:, :3])
        before = snapshot(session)
        expected = session.call(*call)
        session.reset()
        session.prefill(TEXT[:, :3])
        count = count_steps(session, monkeypatch, *call)
        for step in range(count):
            broken_at(step, after)
            with pytest.raises(KernelFailed):
                session.call(*call)
            monkeypatch.undo()
            try:
                found = session.call(*call)
            except Poisoned:
                poisoned.append(step)
                _check_all_refuse(session, tmp_path)
            else:
                assert np.array_equal(found, expected), step
            session.reset()
            session.prefill(TEXT[:, :3])
            assert equal(before, snapshot(session)), step
        assert poisoned == list(range(count))[-len(poisoned) :]
        assert 0 < len(poisoned) < count


def _check_all_refuse(session: Session, tmp_path: Path) -> None:
    for action in (
        lambda: session.decode(TEXT[:, :1]),
        lambda: session.rewind(1),
        lambda: session.save(tmp_path / "never-written.kvcs"),
    ):
        with pytest.raises(Poisoned, match="decode failed in the middle"):
            action()
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_transactional_session_survives_every_failure(
    programs: dict[str, Program],
    broken_at: Callable[[int, bool], list[int]],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    after: bool,
) -> None:
    call = CALLS[0]
    with (
        programs[kind].session(transactional=True) as session,
        programs[kind].session() as twin,
    ):
        for opened_session in (session, twin):
            opened_session.prefill(TEXT[:, :3])
        before = snapshot(session)
        for step in range(count_steps(session, monkeypatch, *call)):
            broken_at(step, after)
            with pytest.raises(KernelFailed):
                session.call(*call)
            monkeypatch.undo()
            assert equal(before, snapshot(session)), step
        assert np.array_equal(logits(session.call(*call)), logits(twin.call(*call)))
        assert equal(snapshot(session), snapshot(twin))


class Refilled(Linear):
    """A cache that each prefill makes anew, and that decode writes at its end."""

    def prefill(self, tokens: torch.Tensor) -> torch.Tensor:
        seq = tokens.shape[1]
        places = torch.arange(seq)
        q, k, v = self.project(self.embed(tokens, places))
        self.k.copy_(functional.pad(k, (0, 0, 0, SLOTS - seq)))
        self.v.copy_(functional.pad(v, (0, 0, 0, SLOTS - seq)))
        self.position.fill_(seq)
        return self.attend(q, k, v, places[:, None] >= places)

    def decode(self, token: torch.Tensor) -> torch.Tensor:
        return super().prefill(token)


REPLACING = {
    "a buffer": (Refilled, simple_methods(), "prefill"),
    "a carried past": (Append, append_methods(start=True), "start"),
}


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize("kind", REPLACING)
def test_a_prefill_that_replaces_the_past_never_leaves_half_of_it(
    tmp_path: Path,
    broken_at: Callable[[int, bool], list[int]],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    after: bool,
    transactional: bool,
) -> None:
    model, methods, begin = REPLACING[kind]
    first, second = TEXT[:, :5], TEXT[:, 7:10]
    poisoned = []
    with (
        opened(model(), methods, tmp_path) as program,
        program.session(transactional=transactional) as session,
    ):
        session.call(begin, first)
        before = snapshot(session)
        count = count_steps(session, monkeypatch, begin, second)
        for step in range(count):
            broken_at(step, after)
            with pytest.raises(KernelFailed):
                session.call(begin, second)
            monkeypatch.undo()
            left = snapshot(session)
            try:
                session.decode(TEXT[:, 5:6])
            except Poisoned:
                poisoned.append(step)
            else:
                assert equal(before, left), step
            session.reset()
            session.call(begin, first)
            assert equal(before, snapshot(session)), step
    assert poisoned == list(range(count))[count - len(poisoned) :]
    assert (len(poisoned) == 0) == transactional


ROWS = torch.arange(6.0).reshape(1, 1, 3, 2)


def test_a_linear_state_beside_a_plain_one(
    tmp_path: Path,
    broken_at: Callable[[int, bool], list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = Method("step", args=(ROWS,), dynamic={"rows": {2: Dim("seq", 1, 8)}})
    with (
        opened(PlainAfterLinear(), [method], tmp_path) as program,
        program.session() as session,
    ):
        session.step(ROWS)
        before = snapshot(session)
        expected = session.step(ROWS)
        session.reset()
        session.step(ROWS)
        poisoned, count = 0, count_steps(session, monkeypatch, "step", ROWS)
        for step in range(count):
            broken_at(step, True)
            with pytest.raises(KernelFailed):
                session.step(ROWS)
            monkeypatch.undo()
            try:
                found = session.step(ROWS)
            except Poisoned:
                poisoned += 1
            else:
                assert all(map(torch.equal, found, expected)), step
            session.reset()
            session.step(ROWS)
            assert equal(before, snapshot(session)), step
        assert 0 < poisoned < count


@pytest.mark.parametrize("kind", LAST_GOOD)
def test_an_interrupt_is_a_failure_too(
    programs: dict[str, Program], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    run = Frame.run

    def interrupted(self: Frame, *args: object) -> None:
        run(self, *args)
        raise KeyboardInterrupt

    with programs[kind].session() as session:
        session.prefill(TEXT[:, :3])
        before = snapshot(session)
        expected = logits(session.decode(TEXT[:, 3:4]))
        session.rewind(1)
        with monkeypatch.context() as patch:
            patch.setattr(Frame, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.decode(TEXT[:, 3:4])
        assert session.position.tolist() == [3]
        assert equal(before, snapshot(session))
        assert np.array_equal(logits(session.decode(TEXT[:, 3:4])), expected)
