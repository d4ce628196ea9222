"""Recurrent states go back by copies that a session was asked to keep."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from state_runs import opened
from torch import Tensor, nn

from kvc.compiler import Dim, Method
from kvc.runtime import BadSetting, CannotRewind, NotRewindable, Program, Session
from kvc.runtime.states.plain import Plain

ROWS, SLOTS, WIDTH, VOCAB, FADE = 3, 24, 4, 11, 0.5


class Hybrid(nn.Module):
    """A cache of all tokens beside a state that fades: h = FADE * h + x for each."""

    h: Tensor
    k: Tensor
    position: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(VOCAB, WIDTH)
        self.register_buffer("h", torch.zeros(ROWS, WIDTH))
        self.register_buffer("k", torch.zeros(ROWS, 1, SLOTS, WIDTH))
        self.register_buffer("position", torch.zeros(ROWS, dtype=torch.int64))

    def prefill(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """tokens int64 [rows, seq], lengths int64 [rows]; float32 [rows, width]."""
        start, x = self.position.clone(), self.table(tokens)
        after = lengths[:, None] - 1 - torch.arange(tokens.shape[1])
        weights = torch.where(after >= 0, FADE ** after.clamp(min=0), 0.0)
        self.h.copy_(
            self.h * FADE ** lengths[:, None] + (weights[:, :, None] * x).sum(1)
        )
        rows = x[:, None]
        self.k.copy_(
            torch.ops.kvc.cache_update(self.k, rows, start, row_lengths=lengths)
        )
        self.position.add_(lengths)
        end = start + lengths
        seen = torch.ops.kvc.attention(
            self.h[:, None, None] + 0 * rows, self.k, self.k, end, row_lengths=lengths
        )
        return self.h + seen.sum((1, 2)) * 0

    def decode(self, token: Tensor, active: Tensor) -> Tensor:
        return self.prefill(token, active.to(torch.int64))


def hybrid_methods() -> list[Method]:
    tokens, lengths = torch.ones(ROWS, 3, dtype=torch.int64), torch.ones(ROWS).long()
    dynamic = {"tokens": {1: Dim("seq", 1, 8)}}
    return [
        Method("prefill", (tokens, lengths), dynamic=dynamic, role="prefill"),
        Method("decode", (tokens[:, :1], lengths > 0), role="decode"),
    ]


@pytest.fixture(scope="module")
def program(
    tmp_path_factory: pytest.TempPathFactory, backend: str
) -> Iterator[Program]:
    with opened(Hybrid(), hybrid_methods(), tmp_path_factory.mktemp("hybrid")) as made:
        yield made


def feed(
    session: Session, texts: Sequence[list[int]], news: Sequence[list[int]]
) -> None:
    """Add tokens to rows, and to their texts."""
    seq = max(1, *map(len, news))
    tokens = np.zeros((ROWS, seq), np.int64)
    for row, new in enumerate(news):
        tokens[row, : len(new)] = new
        texts[row].extend(new)
    session.prefill(tokens, np.array([len(new) for new in news]))


def check(session: Session, texts: Sequence[list[int]]) -> None:
    """Assert that a session holds these texts and nothing else."""
    table = Hybrid().table.weight.detach().numpy()
    assert session.position.tolist() == [len(text) for text in texts]
    for row, text in enumerate(texts):
        h = np.zeros(WIDTH, np.float32)
        for token in text:
            h = FADE * h + table[token]
        np.testing.assert_allclose(session.state["h"][row], h, atol=1e-6)
        held = session.state["k"][row, 0]
        # Equal, but where a recipe rounds what it writes.
        np.testing.assert_allclose(held[: len(text)], table[text], rtol=0)
        assert not held[len(text) :].any()


def test_without_snapshots_a_recurrent_state_does_not_go_back(program: Program) -> None:
    with program.session() as session:
        feed(session, [[], [], []], [[1], [2], [3]])
        with pytest.raises(NotRewindable, match="a session with `snapshots`"):
            session.rewind(1)


def test_rows_go_back_to_where_a_call_began(program: Program) -> None:
    texts: list[list[int]] = [[], [], []]
    with program.session(snapshots=2) as session:
        for news in ([[1, 2], [3], []], [[4], [5, 6], [7]], [[8], [9], [10, 1]]):
            feed(session, texts, news)
        assert session.rewindable.tolist() == [2, 3, 3]
        session.rewind(np.array([1, 3, 0]))
        texts = [texts[0][:-1], texts[1][:-3], texts[2]]
        check(session, texts)
        feed(session, texts, [[5], [], [6]])
        check(session, texts)
        with pytest.raises(NotRewindable, match="of row 2 were kept at positions 1, 3"):
            session.rewind(np.array([0, 0, 2]))
        check(session, texts)
        session.rewind(np.array(list(map(len, texts))))  # all of it
        check(session, [[], [], []])


def test_only_so_many_calls_are_kept(program: Program) -> None:
    texts: list[list[int]] = [[], [], []]
    with program.session(snapshots=1) as session:
        for token in range(3):
            feed(session, texts, [[token]] * ROWS)
        session.rewind(1)
        check(session, [text[:-1] for text in texts])
        with pytest.raises(NotRewindable, match="at positions 2, but not at 1"):
            session.rewind(1)


def test_a_fork_goes_back_by_itself(program: Program) -> None:
    texts: list[list[int]] = [[], [], []]
    with program.session(snapshots=2) as session:
        feed(session, texts, [[1], [2], [3]])
        feed(session, texts, [[4, 5], [6], [7]])
        with session.fork() as fork:
            fork.rewind(np.array([2, 1, 1]))
            check(fork, [text[:1] for text in texts])
            check(session, texts)
            session.rewind(np.array([0, 1, 0]))
            check(session, [texts[0], texts[1][:1], texts[2]])
            check(fork, [text[:1] for text in texts])


def test_what_is_saved_begins_without_copies(program: Program, tmp_path: Path) -> None:
    texts: list[list[int]] = [[], [], []]
    with program.session(snapshots=2) as session:
        feed(session, texts, [[1], [2], [3]])
        session.save(tmp_path / "saved")
    with program.restore(tmp_path / "saved", snapshots=2) as again:
        feed(again, texts, [[4], [5], [6]])
        again.rewind(1)
        check(again, [text[:-1] for text in texts])


def test_rows_that_leave_take_their_copies_along(program: Program) -> None:
    texts: list[list[int]] = [[], [], []]
    with program.session(snapshots=3) as session:
        feed(session, texts, [[1, 2], [3, 4], [5, 6]])
        feed(session, texts, [[7], [8], [9]])
        session.copy_row(0, 2)
        session.reset_row(1)
        texts = [texts[0], [], list(texts[0])]
        check(session, texts)
        session.rewind(np.array([1, 0, 0]))
        texts[0].pop()
        check(session, texts)
        with pytest.raises(NotRewindable, match="of row 2 were kept nowhere"):
            session.rewind(np.array([0, 0, 1]))


def test_a_call_that_fails_leaves_no_copy(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[list[int]] = [[], [], []]
    with program.session(snapshots=2) as session:
        feed(session, texts, [[1], [2], [3]])
        (kind,) = (k for k in session._states.kinds if isinstance(k, Plain))
        before = kind.history

        def fails(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("kvc.runtime.calls.transactions.Transaction.commit", fails)
            with pytest.raises(KeyboardInterrupt):
                session.decode(np.full((ROWS, 1), 4), np.ones(ROWS, bool))
        check(session, texts)
        assert kind.history == before


@pytest.mark.parametrize("count", [-1, True, 1.5, "2", None])
def test_a_number_of_calls_is_wanted(program: Program, count: object) -> None:
    with pytest.raises(BadSetting, match="snapshots"):
        program.session(snapshots=count)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(6))
def test_any_calls_and_any_ways_back(program: Program, seed: int) -> None:
    """Each row goes back to any copy that was kept; texts say what must be there."""
    dice, texts = random.Random(seed), [[] for _ in range(ROWS)]
    kept: list[list[int]] = []  # where rows stood before the last calls, -1: forgotten
    with program.session(snapshots=4) as session:
        for _ in range(40):
            room = SLOTS - max(map(len, texts))
            if room and dice.random() < 0.6:
                kept = [*kept, list(map(len, texts))][-4:]
                lengths = [dice.randint(0, min(5, room)) for _ in texts]
                news = [[dice.randrange(VOCAB) for _ in range(n)] for n in lengths]
                feed(session, texts, news)
            else:
                ways = [{len(t), *(k[r] for k in kept)} for r, t in enumerate(texts)]
                ends = [dice.choice(sorted(way - {-1})) for way in ways]
                counts = [len(t) - end for t, end in zip(texts, ends, strict=True)]
                session.rewind(np.array(counts))
                texts = [t[:end] for t, end in zip(texts, ends, strict=True)]
                kept = [
                    [p if p <= end else -1 for p, end in zip(k, ends, strict=True)]
                    for k in kept
                ]
            check(session, texts)


class Shared(nn.Module):
    """One faded state of all rows."""

    h: Tensor
    position: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(WIDTH))
        self.register_buffer("position", torch.zeros(ROWS, dtype=torch.int64))

    def prefill(self, tokens: Tensor) -> Tensor:
        self.position.add_(tokens.shape[1])
        self.h.mul_(FADE).add_(tokens.to(torch.float32).sum())
        return self.h.expand(ROWS, WIDTH).clone()


def test_a_state_of_all_rows_goes_back_for_all(tmp_path: Path, backend: str) -> None:
    example = (torch.ones(ROWS, 3, dtype=torch.int64),)
    dynamic = {"tokens": {1: Dim("seq", 1, 8)}}
    method = Method("prefill", example, dynamic=dynamic, role="prefill")
    with (
        opened(Shared(), [method], tmp_path) as program,
        program.session(snapshots=3) as session,
    ):
        first = session.prefill(np.ones((ROWS, 2), np.int64))
        session.prefill(np.ones((ROWS, 1), np.int64))
        with pytest.raises(CannotRewind, match="h has no rows of its own"):
            session.rewind(np.array([1, 0, 0]))
        session.rewind(1)
        np.testing.assert_array_equal(session.state["h"], first[0])
