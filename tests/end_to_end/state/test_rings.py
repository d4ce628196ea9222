"""Sessions over rings: going back, failing, long prefills, forks, files, memory."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from broken_steps import broken_run
from daily import every
from made_once import MadeOnce
from resident_memory import LINUX
from ring_models import RingDecoder, Shape, ring_methods, ring_states, text
from state_runs import opened, snapshot

from kvc.recipes import load_recipe
from kvc.runtime import (
    CacheOverflow,
    CallTooLong,
    InputMismatch,
    KernelFailed,
    NotRewindable,
    Program,
    Session,
)
from kvc.schema.rings import Window
from kvc.tools.reports.memory import describe_copies

SHAPE = Shape((5, 4), 12)  # the longest call has 8 tokens
MIXED = Shape((5, None, 4), 12, length=96)
ROWS = Shape((5, 4), 12, rows=3)
LONGEST = 8
KEPT = Shape((5, 4), 16, keep=4)
KINDS = {"rings": SHAPE, "mixed": MIXED, "rows": ROWS, "kept": KEPT}
LENGTH = 90


class Opened:
    """A program, its model, and what it has to give."""

    def __init__(self, program: Program, shape: Shape) -> None:
        self.program, self.shape = program, shape
        self.model = RingDecoder(shape)
        self.tokens = text(LENGTH, shape.rows)
        self.expected = self.model.reference(self.tokens)
        self.sizes = {"batch": shape.rows} if shape.rows > 1 else {}

    def session(self, **options: object) -> Session:
        return self.program.session(**options, **self.sizes)

    def go_on(self, session: Session, count: int, name: str = "prefill") -> None:
        """Feed the next tokens of the text, the same for all rows, and check."""
        start = session.position.tolist()[0]
        found = session.call(name, self.tokens[:, start : start + count])
        wanted = self.expected[:, start + count - 1]
        assert near(found, wanted)

    def check(self, session: Session, steps: int = 14) -> None:
        """Decode far enough that each slot of each ring has been seen."""
        for _ in range(steps):
            self.go_on(session, 1, "decode")


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, backend: str
) -> Iterator[dict[str, Opened]]:
    with ExitStack() as stack:

        def make(kind: str) -> Opened:
            shape, folder = KINDS[kind], tmp_path_factory.mktemp(kind)
            model, methods = RingDecoder(shape), ring_methods(LONGEST, shape.rows)
            if kind != "rings":  # one with a method that has no role is enough
                del methods[2:]
            opening = opened(model, methods, folder, states=ring_states(shape))
            return Opened(stack.enter_context(opening), shape)

        yield MadeOnce(make)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def near(found: np.ndarray, expected: np.ndarray) -> bool:
    return np.allclose(found, expected, 0, 1e-5 * expected.std())


@every(4, "kind", "start")
@pytest.mark.parametrize("start", [0, 3, 8, 11, 12, 13, 30, 41])
def test_rows_go_back_as_far_as_they_say_and_no_further(made, kind, start):
    here = made[kind]
    with here.session() as session:
        if start:
            session.prefill(here.tokens[:, :start])
        most = session.rewindable.tolist()
        assert most == [start if start <= here.shape.slots else LONGEST] * len(most)
        for count in range(most[0] + 1):
            twin = session.fork()
            twin.rewind(count)
            assert twin.position.tolist() == [start - count] * len(most)
            here.check(twin)
            twin.close()
        if most[0] < start - 1:
            before = snapshot(session)
            with pytest.raises(NotRewindable, match=r"layers.0.keys.*cannot be forg"):
                session.rewind(most[0] + 1)
            after = snapshot(session)
            assert all(np.array_equal(before[n], after[n]) for n in before)
            here.check(session, 3)


@pytest.mark.parametrize("end", range(7))
def test_rows_go_back_to_what_is_kept_from_anywhere(made, end):
    here = made["kept"]
    with here.session() as session, here.session() as other:
        session.prefill(here.tokens[:, :40])
        if end > KEPT.keep:
            with pytest.raises(
                NotRewindable, match=r"5 and the first 4,.*be forgotten"
            ):
                session.rewind(40 - end)
            return
        session.rewind(40 - end)
        here.go_on(other, LONGEST)
        other.rewind(LONGEST - end)
        before, after = snapshot(other), snapshot(session)
        assert all(np.array_equal(before[n], after[n]) for n in before)
        assert session.rewindable.tolist() == [end]
        here.check(session, 40)


def test_what_was_ever_written_counts_and_not_the_position(made, kind):
    here = made[kind]
    with here.session() as session:
        session.prefill(here.tokens[:, :40])
        session.rewind(5)
        assert set(session.rewindable.tolist()) == {LONGEST - 5}
        here.go_on(session, 2)
        assert set(session.rewindable.tolist()) == {LONGEST - 3}
        session.rewind(LONGEST - 3)
        assert set(session.rewindable.tolist()) == {0}
        with pytest.raises(NotRewindable):
            session.rewind(1)
        here.go_on(session, LONGEST)
        here.check(session)
        assert set(session.rewindable.tolist()) == {LONGEST}


def test_a_row_that_forgets_all_is_as_new(made, kind):
    here = made[kind]
    with here.session() as session:
        session.prefill(here.tokens[:, :40])
        session.rewind(40)
        assert not any(state.any() for state in session.state.values())
        assert set(session.rewindable.tolist()) == {0}
        here.go_on(session, 11)
        assert set(session.rewindable.tolist()) == {11}
        session.rewind(9)
        here.check(session, 30)


def test_a_ring_that_has_not_gone_round_is_put_back_byte_for_byte(made, kind):
    here = made[kind]
    with here.session() as session, here.session() as other:
        for one in (session, other):
            here.go_on(one, 4)
        here.go_on(session, 8)
        session.rewind(8)
        before, after = snapshot(other), snapshot(session)
        assert all(np.array_equal(before[n], after[n]) for n in before)


def test_rows_go_back_by_different_counts(made):
    here = made["rows"]
    with here.session() as session:
        session.prefill(here.tokens[:, :30])
        session.rewind(np.array([0, 3, 8]))
        assert session.rewindable.tolist() == [8, 5, 0]
        with pytest.raises(NotRewindable, match="in row 2"):
            session.rewind(np.array([1, 1, 1]))
        session.rewind(np.array([2, 0, 22]))
        assert session.position.tolist() == [28, 27, 0]
        assert session.rewindable.tolist() == [6, 5, 0]
        for step in range(20):
            at = [start + step for start in (28, 27, 0)]
            tokens = np.stack([here.tokens[r, p : p + 1] for r, p in enumerate(at)])
            wanted = np.stack([here.expected[r, p] for r, p in enumerate(at)])
            assert near(session.decode(tokens), wanted), step


@every(4, "kind", "start", "transactional")
@pytest.mark.parametrize("start", [0, 3, 10, 31])
@pytest.mark.parametrize("transactional", [False, True])
def test_a_failure_anywhere_leaves_a_session_that_goes_on(
    made, kind, start, transactional
):
    here = made[kind]
    with here.session(transactional=transactional) as session:
        if start:
            session.prefill(here.tokens[:, :start])
        here.go_on(session, 1, "decode")
        session.rewind(1)
        for place in range(12):
            with broken_run(0, place / 12), pytest.raises(KernelFailed):
                session.prefill(here.tokens[:, start : start + 7])
            assert session.position.tolist()[0] == start
            twin = session.fork()
            here.go_on(twin, 7)
            here.check(twin)
            twin.close()


def test_what_a_failed_call_wrote_round_the_end_counts_as_written(made, kind):
    here = made[kind]
    with here.session() as session:
        session.prefill(here.tokens[:, :30])
        with broken_run(0, 0.95), pytest.raises(KernelFailed):
            session.prefill(here.tokens[:, 30:37])
        assert set(session.rewindable.tolist()) == {LONGEST - 7}
        with pytest.raises(NotRewindable):
            session.rewind(LONGEST - 6)
        session.rewind(LONGEST - 7)
        here.check(session)


@every(3, "kind", "start", "piece")
@pytest.mark.parametrize("start", [0, 3, 31])
@pytest.mark.parametrize("piece", [0, 1, 2])
def test_a_prefill_in_pieces_is_all_or_nothing(made, kind, start, piece):
    here = made[kind]
    with here.session() as session:
        if start:
            session.prefill(here.tokens[:, :start])
        before, most = snapshot(session), session.rewindable.tolist()
        with broken_run(piece, 0.7), pytest.raises(KernelFailed):
            session.prefill(here.tokens[:, start : start + 22])
        after = snapshot(session)
        assert all(np.array_equal(before[n], after[n]) for n in before)
        assert session.rewindable.tolist() == most
        here.go_on(session, 22)
        here.check(session)


def test_a_prefill_in_pieces_is_checked_as_a_whole_first(made):
    here = made["mixed"]
    with here.session(capacity=40) as session:
        with pytest.raises(CacheOverflow) as caught:
            session.prefill(here.tokens[:, :41])
        assert (caught.value.count, caught.value.capacity) == (41, 40)
        wrong = here.tokens[:, :30].copy()
        wrong[0, 29] = 1000
        with pytest.raises(InputMismatch, match="token 1000"):
            session.prefill(wrong)
        assert session.position.tolist() == [0]


def test_what_has_no_role_is_not_parted(made):
    here = made["rings"]
    with here.session() as session:
        session.prefill(here.tokens[:, :20])
        # Nine are more than it was compiled for; so are they for the ring.
        with pytest.raises(InputMismatch, match=r"1\.\.8"):
            session.score(here.tokens[:, 20:29])
        here.check(session)


def test_the_error_of_a_call_that_is_too_long_has_the_facts(tmp_path):
    shape = Shape((5,), 12)
    methods = ring_methods(10)[2:]
    with (
        opened(RingDecoder(shape), methods, tmp_path) as program,
        program.session() as session,
        pytest.raises(CallTooLong, match=r"9 tokens.*at most.*window of 5") as caught,
    ):
        session.score(text(9))
    found = caught.value
    facts = (found.method, found.count, found.longest, found.state)
    assert facts == ("score", 9, 8, "layers.0.keys")
    assert (found.slots, found.window) == (12, "5")


def test_forks_go_their_own_ways(made, kind):
    here = made[kind]
    with here.session() as session:
        session.prefill(here.tokens[:, :25])
        session.rewind(3)
        twins = [session.fork() for _ in range(2)]
        assert twins[0].rewindable.tolist() == session.rewindable.tolist()
        twins[0].rewind(LONGEST - 3)
        here.go_on(session, 8)
        for one in (*twins, session):
            here.check(one)
            one.close()


@every(2, "kind", "start", always=[7])
@pytest.mark.parametrize("start", [0, 7, 12, 30])
def test_a_file_holds_all_that_is_needed_and_no_more(made, kind, start, tmp_path):
    here, path = made[kind], tmp_path / "session.kvcs"
    with here.session() as session:
        if start:
            session.prefill(here.tokens[:, :start])
            session.rewind(2)
        session.save(path)
        most = session.rewindable.tolist()
    with here.program.restore(path) as restored:
        assert restored.rewindable.tolist() == most
        if most[0]:
            restored.rewind(most[0])
        here.check(restored)
    if start == 7 and kind == "rings":
        small = path.stat().st_size
        with here.session() as session:
            session.prefill(here.tokens[:, :30])
            session.save(path)
        assert path.stat().st_size > small + 1000


def test_reset_and_trim(made, kind):
    here = made[kind]
    with here.session() as session:
        for count in (30, 9, 3):
            session.prefill(here.tokens[:, :count])
            session.trim()
            here.check(session)
            session.reset()
            assert set(session.rewindable.tolist()) == {0}
            assert not any(state.any() for state in session.state.values())


def test_nothing_is_copied_to_write_them(made, kind):
    program = made[kind].program._engine.program
    assert not any(update.bytes_per_call for update in describe_copies(program))


def _int8(folder: Path, shape: Shape) -> Callable[[], Program]:
    recipe = load_recipe("fp32", cache="int8")
    methods = ring_methods(LONGEST)[:2]
    return opened(RingDecoder(shape), methods, folder, recipe=recipe)


@pytest.mark.parametrize("shape", [SHAPE, KEPT], ids=str)
def test_int8_rings_equal_the_model_over_rounded_rows(tmp_path, shape):
    with _int8(tmp_path, shape) as program, program.session() as session:
        state = program.states["layers.0.keys.scale"]
        assert state.window == Window(5, shape.keep)
        assert state.type.dims == (1, 2, shape.slots)
        tokens = text(60)
        expected = RingDecoder(shape).reference(tokens, rounded=True)
        plain = RingDecoder(shape).reference(tokens)
        # A row that rounds the other way by a hair changes more than a sum's order.
        far = np.abs(expected - plain).max() / expected.std()
        found = session.prefill(tokens[:, :40])
        assert np.abs(found - expected[:, 39]).max() < far / 5 * expected.std()
        session.rewind(6)
        for place in range(34, 60):
            found = session.decode(tokens[:, place : place + 1])
            wanted = expected[:, place]
            assert np.abs(found - wanted).max() < far / 5 * expected.std(), place


@pytest.mark.parametrize("shape", [SHAPE, KEPT], ids=str)
def test_rings_go_with_delegates(tmp_path, shape):
    model, methods = RingDecoder(shape), ring_methods(LONGEST)[:2]
    with opened(model, methods, tmp_path, recipe="xnnpack_fp32") as program:
        here = Opened(program, shape)
        with here.session() as session:
            here.go_on(session, 33)
            session.rewind(7)
            here.go_on(session, 8)
            here.check(session, 30)


@LINUX
def test_a_session_far_past_its_window_holds_no_more_memory(made):
    with made["rings"].session() as session:
        tokens = text(2000)
        session.prefill(tokens[:, : SHAPE.slots])
        held = session.residency().own
        session.prefill(tokens)
        assert session.position.tolist() == [2000 + SHAPE.slots]
        assert session.residency().own == held
