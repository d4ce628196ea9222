"""Data used in any order, in every mode, by two threads: a model of what must be true.

One thread runs the rules; now and then a companion is sent off, which does the same
things to the same program meanwhile, and tells what was wrong. In the end no map and no
descriptor of it is left.
"""

import gc
import threading
from pathlib import Path

import numpy as np
import pytest
from data_programs import table_of, table_program, write_data_bundle
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)
from resident_memory import LINUX, count_descriptors, count_maps, map_field

from kvc.runtime import BufferFreed, Closed, FreeableBuffer, Program, load

ROWS = 600  # above 2 MiB: one huge page, and a rest
OTHERS = {f"w{i}": np.full(60 + 500 * i, i + 1, np.float32) for i in range(6)}
CONTENT = {"table": table_of(ROWS), "twin": OTHERS["w3"], **OTHERS}
NAMES = st.sampled_from(sorted(CONTENT))
ACTIONS = ("look", "keep", "free", "row", "total", "release", "report")
SETTINGS = settings(
    max_examples=4,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def check_content(name: str, array: np.ndarray) -> None:
    assert np.array_equal(array, CONTENT[name]), name


class Companion:
    """Does things to a program in a thread of its own, and keeps what went wrong."""

    def __init__(self, program: Program, todo: list[tuple[str, str]]) -> None:
        self.error: BaseException | None = None
        self._program, self._todo = program, todo
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        kept: list[tuple[str, FreeableBuffer]] = []
        try:
            for action, name in self._todo:
                self._do(action, name, kept)
        except Closed:
            pass
        except BaseException as error:  # for the thread that joins
            self.error = error

    def _do(
        self, action: str, name: str, kept: list[tuple[str, FreeableBuffer]]
    ) -> None:
        match action:
            case "look":
                check_content(name, self._program.data[name].array())
            case "keep":
                kept.append((name, self._program.data[name]))
                check_content(name, kept[-1][1].array())
            case "free" if kept:
                kept.pop(0)[1].free()
            case "row":
                assert self._program.row(np.array([ROWS - 1])).min() == ROWS - 1
            case "total":
                assert self._program.total()[0, 0] == ROWS * (ROWS - 1) / 2
            case "release":
                self._program.release()
            case "report":
                self._program.residency()


class Use(RuleBasedStateMachine):
    """A program or none, handles on its data, views of them."""

    paths: tuple[Path, ...]

    def __init__(self) -> None:
        super().__init__()
        self.program: Program | None = None
        self.mode = ""
        # (name, handle, whether it was freed, the program it is of)
        self.handles: list[tuple[str, FreeableBuffer, bool, Program]] = []
        self.views: list[tuple[str, np.ndarray]] = []
        self.companion: Companion | None = None

    @precondition(lambda self: self.program is None)
    @rule(mode=st.sampled_from(["map", "read", "huge"]), path=st.integers(0, 1))
    def load(self, mode: str, path: int) -> None:
        self.program, self.mode = load(self.paths[path], mode), mode

    @precondition(lambda self: self.program is not None)
    @rule(name=NAMES)
    def get(self, name: str) -> None:
        self.handles.append((name, self.program.data[name], False, self.program))

    @precondition(lambda self: self.handles)
    @rule(which=st.integers(0), keep=st.booleans())
    def view(self, which: int, keep: bool) -> None:
        name, handle, freed, program = self._handle(which)
        assert handle.freed == freed
        if freed:
            with pytest.raises(BufferFreed):
                handle.array()
        elif program is not self.program:
            with pytest.raises(Closed):
                handle.array()
        else:
            array = handle.array()
            check_content(name, array)
            if keep:
                self.views.append((name, array))

    @precondition(lambda self: self.handles)
    @rule(which=st.integers(0))
    def free(self, which: int) -> None:
        name, handle, _, program = self._handle(which)
        handle.free()
        self.handles[which % len(self.handles)] = (name, handle, True, program)

    @precondition(lambda self: self.handles)
    @rule(which=st.integers(0))
    def drop(self, which: int) -> None:
        self.handles.pop(which % len(self.handles))

    @precondition(lambda self: self.views)
    @rule(which=st.integers(0), drop=st.booleans())
    def look_again(self, which: int, drop: bool) -> None:
        index = which % len(self.views)
        check_content(*self.views[index])
        if drop:
            self.views.pop(index)

    @precondition(lambda self: self.program is not None)
    @rule(row=st.integers(0, ROWS - 1))
    def run(self, row: int) -> None:
        assert self.program.row(np.array([row])).max() == row

    @precondition(lambda self: self.program is not None)
    @rule()
    def release(self) -> None:
        self.program.release()

    @precondition(lambda self: self.program is not None and self.companion is None)
    @rule()
    def report(self) -> None:
        """Without a companion it is known what is held, and that the rest is gone."""
        self.program.release()
        held: dict[str, int] = {}
        for name, _, freed, program in self.handles:
            if program is self.program and not freed:
                held[name] = held.get(name, 0) + 1
        for blob in self.program.residency().blobs:
            handles = sum(held.get(name, 0) for name in blob.names)
            assert blob.handles == handles, blob.names
            if not handles and self.mode != "map":
                assert blob.touched == 0, blob.names

    @precondition(lambda self: self.program is not None)
    @rule(todo=st.lists(st.tuples(st.sampled_from(ACTIONS), NAMES), max_size=12))
    def send_companion(self, todo: list[tuple[str, str]]) -> None:
        self._join()
        self.companion = Companion(self.program, todo)

    @precondition(lambda self: self.companion is not None)
    @rule()
    def wait_for_companion(self) -> None:
        self._join()

    @precondition(lambda self: self.program is not None)
    @rule()
    def close(self) -> None:
        self.program.close()
        self.program.close()
        with pytest.raises(Closed):
            self.program.row(np.array([0]))
        self.program = None

    def teardown(self) -> None:
        for name, array in self.views:
            check_content(name, array)
        if self.program is not None:
            self.program.close()
        for name, array in self.views:
            check_content(name, array)
        self._join()
        self.program, self.handles, self.views = None, [], []

    def _handle(self, which: int) -> tuple[str, FreeableBuffer, bool, Program]:
        return self.handles[which % len(self.handles)]

    def _join(self) -> None:
        companion, self.companion = self.companion, None
        if companion is not None:
            companion.join()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    folder = tmp_path_factory.mktemp("use")
    built = table_program(ROWS, twin=OTHERS["w3"], **OTHERS)
    return (
        write_data_bundle(folder / "one.kvc", built),
        write_data_bundle(folder / "two.kvc", built, external=True),
    )


@LINUX
@pytest.mark.parametrize("cases", [1, 2])
def test_whatever_is_done_nothing_is_wrong_and_nothing_left(
    paths: tuple[Path, ...], cases: int
) -> None:
    _use(paths, SETTINGS, cases)


@LINUX
@pytest.mark.exhaustive
def test_whatever_is_done_nothing_is_wrong_and_nothing_left_at_length(
    paths: tuple[Path, ...],
) -> None:
    _use(paths, settings(SETTINGS, max_examples=300, stateful_step_count=60))


def _use(paths: tuple[Path, ...], how: settings, cases: int | None = None) -> None:
    """Run the machine; numbered cases are the same each time."""

    class Here(Use):
        pass

    Here.paths = paths
    if cases is not None:
        seed(cases)(Here)
    run_state_machine_as_test(Here, settings=settings(how, max_examples=1))
    maps, descriptors = _left(paths)
    run_state_machine_as_test(Here, settings=how)
    assert _left(paths)[1] == descriptors
    # Heaps and stacks of threads come and go; a leak has a map each time.
    assert _left(paths)[0] <= maps + 12


def _left(paths: tuple[Path, ...]) -> tuple[int, int]:
    gc.collect()
    for path in (*paths, *paths[1].parent.glob("*.kvd")):
        assert map_field("Size", path=path) == 0
    return count_maps(), count_descriptors()
