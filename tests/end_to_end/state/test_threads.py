"""Sessions in many threads, one session in two threads, and sessions after a fork."""

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from cached_models import VOCAB, Append, Linear, append_methods, simple_methods
from state_runs import opened, snapshot

from kvc.runtime import Busy, Forked, Program, Session
from kvc.runtime.execution.executor import Frame

THREADS, ROUNDS = 8, 3


@pytest.fixture(scope="module", params=["linear", "append"])
def program(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    backend: str,
) -> Iterator[Program]:
    made = {
        "linear": (Linear(), simple_methods()),
        "append": (Append(), append_methods()),
    }
    with opened(*made[request.param], tmp_path_factory.mktemp("t")) as program:
        yield program


def talk(program: Program, seed: int) -> list[np.ndarray]:
    """Return everything that one conversation gives."""
    random = np.random.default_rng(seed)
    found = []
    with program.session() as session:
        for _ in range(ROUNDS):
            tokens = random.integers(0, VOCAB, (1, random.integers(2, 7)))
            found.append(session.prefill(tokens))
            found += [session.decode(tokens[:, i : i + 1]) for i in range(2)]
            session.rewind(1)
        found += snapshot(session).values()
    return [x["logits"] if isinstance(x, dict) else x for x in found]


def test_sessions_in_many_threads_agree_with_serial_ones_bit_for_bit(
    program: Program,
) -> None:
    seeds = range(3 * THREADS)
    serial = [talk(program, seed) for seed in seeds]
    with ThreadPoolExecutor(THREADS) as pool:
        threaded = list(pool.map(lambda seed: talk(program, seed), seeds))
    for alone, together in zip(serial, threaded, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(*serial[:2], strict=False))


def test_threads_that_open_and_close_sessions_disturb_nobody(program: Program) -> None:
    expected = talk(program, 1)
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            with program.session() as session:
                session.prefill(np.array([[1, 2, 3]]))

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        found = [talk(program, 1) for _ in range(5)]
    finally:
        stop.set()
        thread.join()
    for one in found:
        assert all(np.array_equal(a, b) for a, b in zip(one, expected, strict=True))


ACTIONS: dict[str, Callable[[Session, Path], object]] = {
    "decode": lambda s, _: s.call("decode", np.array([[1]])),
    "fork": lambda s, _: s.fork(),
    "residency": lambda s, _: s.residency(),
    "reset": lambda s, _: s.reset(),
    "rewind": lambda s, _: s.rewind(1),
    "trim": lambda s, _: s.trim(),
    "save": lambda s, folder: s.save(folder / "never-written.kvcs"),
    "position": lambda s, _: s.position,
    "close": lambda s, _: s.close(),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_a_session_in_two_threads_is_busy_and_keeps_its_state(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, action: str
) -> None:
    expected = talk(program, 2)
    inside, go_on = threading.Event(), threading.Event()
    run = Frame.run

    def slow(self: Frame, *args: object) -> None:
        inside.set()
        assert go_on.wait(60)
        run(self, *args)

    with program.session() as session:
        session.prefill(np.array([[1, 2, 3]]))
        with ThreadPoolExecutor(1) as pool:
            monkeypatch.setattr(Frame, "run", slow)
            first = pool.submit(session.call, "decode", np.array([[4]]))
            try:
                assert inside.wait(60)
                with pytest.raises(Busy, match="running decode in another thread"):
                    ACTIONS[action](session, tmp_path)
            finally:
                go_on.set()
            monkeypatch.undo()
            first.result()
        assert session.position.tolist() == [4]
        twin = program.session()
        twin.prefill(np.array([[1, 2, 3]]))
        twin.decode(np.array([[4]]))
        states = snapshot(session)
        assert states.keys() == snapshot(twin).keys()
        for name, state in snapshot(twin).items():
            assert np.array_equal(states[name], state)
        twin.close()
    assert not any(tmp_path.iterdir())
    found = talk(program, 2)
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


IN_CHILD: dict[str, Callable[[Program, Session, Path], object]] = {
    **{name: lambda _, s, folder, do=do: do(s, folder) for name, do in ACTIONS.items()},
    "state": lambda _, s, __: dict(s.state),
    "session": lambda p, _, __: p.session(),
    "prefix": lambda p, _, __: p.prefix([1]),
    "restore": lambda p, _, folder: p.restore(folder / "never-written.kvcs"),
    "call": lambda p, _, __: p.call("decode", np.array([[1]])),
}
FINE = ("close",)  # it leaves the parent's memory alone


@pytest.mark.parametrize("action", IN_CHILD)
def test_a_child_is_told_that_session_and_program_are_its_parents(
    program: Program, tmp_path: Path, action: str
) -> None:
    with program.session() as session:
        session.prefill(np.array([[1, 2, 3]]))
        before = snapshot(session)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads
            child = os.fork()
        if child == 0:
            os._exit(_code_of(lambda: IN_CHILD[action](program, session, tmp_path)))
        assert _wait(child) == (0 if action in FINE else 1)
        assert not any(tmp_path.iterdir())
        assert session.position.tolist() == [3]
        after = snapshot(session)
        assert all(np.array_equal(before[name], after[name]) for name in before)
        session.decode(np.array([[4]]))


def _code_of(action: Callable[[], object]) -> int:
    """Return 1 if an action says that it is forked, 0 if it works, 2 otherwise."""
    signal.alarm(60)  # a child that hangs is killed
    try:
        action()
    except Forked:
        return 1
    except BaseException:
        return 2
    return 0


def _wait(child: int) -> int:
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
