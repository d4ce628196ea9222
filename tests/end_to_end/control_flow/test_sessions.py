"""Sessions whose caches are written in branches: in place, and as without branches."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from branching_caches import (
    HEARD,
    InBranch,
    Merged,
    MergedPair,
    branch_method,
    merged_method,
    pair_method,
)
from cached_models import DIM, PAST, SEQ, SLOTS, TOKENS, VOCAB, WIDTH, OneLayer
from resident_memory import LINUX, is_resident
from state_runs import opened
from torch import Tensor, nn

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import BranchMismatch, CacheOverflow, NotRewindable, Program, Session
from kvc.schema.errors import CaptureError, CompileError, UnsupportedOps
from kvc.schema.model import CursorKind, StateKind
from kvc.tools.reports.memory import describe_copies

TEXT = np.random.default_rng(6).integers(0, VOCAB, (1, SLOTS))
YES, NO = np.array(True), np.array(False)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("branch")
    with opened(InBranch(), [branch_method()], folder) as program:
        yield program


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("merged")
    with opened(Merged(), [merged_method()], folder) as program:
        yield program


def reference(count: int, last: int) -> np.ndarray:
    with torch.no_grad():
        logits = OneLayer().reference(torch.from_numpy(TEXT[:, :count]))
    return logits[:, -last:].numpy()


def near(found: np.ndarray, wanted: np.ndarray) -> None:
    """Assert that logits agree; attention adds in another order than the reference."""
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_branch_writes_in_place_and_the_other_copies_nothing(
    program: Program,
) -> None:
    writes = describe_copies(program._engine.program)
    assert {(w.state, w.verdict, w.bytes_per_call) for w in writes} == {
        (name, "SAFE", 0) for name in ("k", "v", "position")
    }
    kinds = {name: state.kind for name, state in program.states.items()}
    assert kinds["k"] is kinds["v"] is StateKind.LINEAR
    assert kinds["position"] is StateKind.COUNTER
    assert all(program.states[name].at_position for name in "kv")


def feed(program: Program, name: str, first: int) -> None:
    """Feed all tokens, `first` of them at once, and compare each step."""
    with program.session() as session:
        for begin, end in [(0, first), *((i, i + 1) for i in range(first, SLOTS))]:
            tokens = TEXT[:, begin:end]
            if name == "merged":
                found = session.step(tokens, np.array(begin > 0))["logits"]
            else:
                found = session.step(tokens, YES)
            near(found, reference(end, end - begin))


EVERY = [
    i if i in (1, 5, SLOTS - 1) else pytest.param(i, marks=pytest.mark.exhaustive)
    for i in range(1, SLOTS)
]


@pytest.mark.parametrize("first", EVERY)
def test_prefill_and_decode_in_branches(
    program: Program, merged: Program, first: int
) -> None:
    feed(program, "branch", first)
    feed(merged, "merged", first)


def test_the_branch_that_writes_nothing_leaves_the_cache(program: Program) -> None:
    with program.session() as session:
        session.step(TEXT[:, :4], YES)
        before = {name: np.array(kept) for name, kept in session.state.items()}
        session.step(TEXT[:, :3], NO)
        for name in "kv":
            np.testing.assert_array_equal(session.state[name], before[name])
        assert session.position.tolist() == [7]


def test_a_call_that_fails_in_a_branch_leaves_the_session(program: Program) -> None:
    with program.session(capacity=6) as session:
        session.step(TEXT[:, :5], YES)
        with pytest.raises(CacheOverflow):
            session.step(TEXT[:, 5:8], YES)
        assert session.position.tolist() == [5]
        near(session.step(TEXT[:, 5:6], YES), reference(6, 1))


def test_sessions_go_back_over_branches(program: Program, merged: Program) -> None:
    with program.session() as session:
        session.step(TEXT[:, :6], YES)
        session.rewind(3)
        near(session.step(TEXT[:, 3:7], YES), reference(7, 4))
    with merged.session() as session:
        session.step(TEXT[:, :6], NO)
        session.rewind(3)
        near(session.step(TEXT[:, 3:7], YES)["logits"], reference(7, 4))


def test_a_merged_decoder_appends_in_reserved_memory(merged: Program) -> None:
    writes = describe_copies(merged._engine.program)
    assert [(w.state, w.verdict, w.bytes_per_call) for w in writes] == [
        ("past", "SAFE", 0),
        ("past", "SAFE", 0),
    ]
    assert merged.states["past"].kind is StateKind.APPEND
    with merged.session() as session:
        session.step(TEXT[:, :4], NO)
        where = session.state["past"].ctypes.data
        for i in range(4, SLOTS):
            session.step(TEXT[:, i : i + 1], YES)
            assert session.state["past"].ctypes.data == where
        with pytest.raises(CacheOverflow):
            session.step(TEXT[:, :1], YES)


def test_a_branch_without_a_past_is_for_an_empty_one(merged: Program) -> None:
    with merged.session() as session:
        session.step(TEXT[:, :4], NO)
        with pytest.raises(BranchMismatch) as caught:
            session.step(TEXT[:, 4:5], NO)
        assert caught.value.facts["size"] == 4
        near(session.step(TEXT[:, 4:5], YES)["logits"], reference(5, 1))
        session.reset()
        near(session.step(TEXT[:, :2], NO)["logits"], reference(2, 2))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("pair")
    with opened(MergedPair(), [pair_method()], folder) as program:
        yield program


ENCODED = np.random.default_rng(9).normal(size=(1, HEARD, DIM)).astype(np.float32)


def pair_logits(heard: int, count: int) -> np.ndarray:
    """Return the logits of `count` tokens after `heard` positions of an encoder."""
    given = torch.from_numpy(TEXT[:, :count]), torch.from_numpy(ENCODED[:, :heard])
    with torch.no_grad():
        return MergedPair().reference_pair(*given).numpy()


def step(session: Session, place: int) -> np.ndarray:
    """Return the logits of one more token, which keep what was encoded."""
    made = session.step(TEXT[:, place : place + 1], ENCODED[:, :0], YES)
    found: np.ndarray = made["logits"]
    return found


def test_a_merged_decoder_keeps_its_cross_cache_in_place(pair: Program) -> None:
    writes = describe_copies(pair._engine.program)
    assert {(w.state, w.verdict, w.bytes_per_call) for w in writes} == {
        ("past", "SAFE", 0),
        ("cross", "SAFE", 0),
    }
    for heard in (1, 5, HEARD):
        with pair.session() as session:
            found = session.step(TEXT[:, :4], ENCODED[:, :heard], NO)["logits"]
            near(found, pair_logits(heard, 4))
            where = [session.state[name].ctypes.data for name in ("past", "cross")]
            cross = np.array(session.state["cross"])
            assert cross.shape[2] == heard
            for i in range(4, 24):
                near(step(session, i), pair_logits(heard, i + 1)[:, -1:])
            at = [session.state[name].ctypes.data for name in ("past", "cross")]
            assert at == where
            np.testing.assert_array_equal(session.state["cross"], cross)


def test_another_encoding_gives_other_logits(pair: Program) -> None:
    """The comparison with the model would notice a wrong cross cache."""
    far = np.abs(pair_logits(5, 8) - pair_logits(4, 8))[:, -1:].max()
    assert far > 1e-3


def test_a_cross_cache_is_made_once(pair: Program) -> None:
    with pair.session() as session:
        session.step(TEXT[:, :4], ENCODED[:, :5], NO)
        for given, flag in ((ENCODED[:, :5], YES), (ENCODED[:, :0], NO)):
            with pytest.raises(BranchMismatch):
                session.step(TEXT[:, 4:5], given, flag)
        near(step(session, 4), pair_logits(5, 5)[:, -1:])
        with pytest.raises(NotRewindable, match="which the same calls advance"):
            session.rewind(2)
        near(step(session, 5), pair_logits(5, 6)[:, -1:])


def test_what_must_be_passed_again_cannot_be_kept() -> None:
    with pytest.raises(CaptureError, match="need a Dim from 0 on"):
        compile_program(MergedPair(), [pair_method(least=1)])


class Lost(OneLayer):
    """Leaves new keys out of its past in one branch."""

    def step(self, tokens: Tensor, past: Tensor, begun: Tensor) -> dict[str, Tensor]:
        _, k, _ = self.project(self.embed(tokens, torch.arange(tokens.shape[1])))
        whole = torch.cond(
            begun,
            lambda past, k: torch.cat([past, k], 2),
            lambda past, _: past.clone(),
            (past, k.clone()),
        )
        return {"logits": whole.sum(2), "present": whole}


def test_a_branch_that_no_call_could_take_is_refused() -> None:
    past = torch.zeros(1, 1, 3, WIDTH)
    method = Method(
        "step", args=(TOKENS, past, torch.tensor(True)), carry={"past": "present"},
        dynamic={"tokens": {1: SEQ}, "past": {2: PAST}},
    )  # fmt: skip
    with pytest.raises(CaptureError, match="never empty"):
        compile_program(Lost(), [method])


class Wide(nn.Module):
    """A cache whose rows are a page each, written in a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("c", torch.zeros(64, 2048))

    def step(self, p: Tensor, x: Tensor, at: Tensor) -> Tensor:
        c = torch.cond(
            p, lambda c: c.index_copy(0, at, x), lambda c: c.clone(), (self.c,)
        )
        self.c.copy_(c)
        return x.sum()


@LINUX
def test_a_step_in_a_branch_touches_the_page_that_it_writes(tmp_path: Path) -> None:
    """A copy of the cache, in either branch, would touch all of it."""
    row, at = torch.ones(1, 2048), torch.tensor([17])
    step = Method("step", args=(torch.tensor(True), row, at))
    with opened(Wide(), [step], tmp_path) as program, program.session() as session:
        address = session.state["c"].ctypes.data

        def touched() -> list[int]:
            return [i for i in range(63) if is_resident(address + i * 8192)]

        session.step(torch.tensor(False), row, at)
        assert touched() == []
        session.step(torch.tensor(True), row, at)
        assert set(touched()) <= {16, 17}
        assert 17 in touched()
        session.step(torch.tensor(False), row, at)
        assert set(touched()) <= {16, 17}


class Refused(nn.Module):
    """What is not taken."""

    def sizes(self, p: Tensor, x: Tensor) -> Tensor:
        return torch.cond(p, lambda x: x[:1].clone(), lambda x: x.clone(), (x,))

    def by_size(self, x: Tensor) -> Tensor:
        return torch.cond(x.shape[0] > 3, lambda x: x + 1, lambda x: x - 1, (x,))


def test_branches_of_other_sizes_are_refused(tmp_path: Path) -> None:
    method = Method(
        "sizes",
        args=(torch.tensor(True), torch.ones(3, 2)),
        dynamic={"x": {0: Dim("n", 1, 8)}},
    )
    with pytest.raises((UnsupportedOps, CaptureError)):
        compile_program(Refused(), [method])


def test_a_condition_on_sizes_is_refused(tmp_path: Path) -> None:
    method = Method(
        "by_size", args=(torch.ones(5, 2),), dynamic={"x": {0: Dim("n", 1, 8)}}
    )
    with pytest.raises(
        CompileError, match=r"its condition is a size|takes another way"
    ):
        compile_program(Refused(), [method])


def test_a_position_is_found_in_branches(program: Program, merged: Program) -> None:
    kinds = [one._engine.program.position.kind for one in (program, merged)]
    assert kinds == [CursorKind.STATE, CursorKind.LENGTH]
