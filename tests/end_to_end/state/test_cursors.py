"""Models in which more than one thing counts: the right position, and rewinding."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from state_runs import opened
from torch import Tensor, nn

from kvc.compiler import Dim, Method
from kvc.runtime import Program
from kvc.schema.errors import (
    CacheOverflow,
    CompileError,
    InputMismatch,
    NotEncoded,
    NotRewindable,
)
from kvc.schema.model import StateKind
from kvc.schema.rings import Window

VOCAB, DIM, SLOTS = 11, 4, 24
SEQ = Dim("seq", 1, 8)
TOKENS = torch.arange(3)[None]


class Translator(nn.Module):
    """An encoder with a cache and a position of its own, and a decoder that sees it.

    The decoder's logits are of the mean of what both caches hold up to where they are.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB)
        for name in ("heard", "said"):
            self.register_buffer(name, torch.zeros(1, 1, SLOTS, DIM))
            self.register_buffer(f"{name}_position", torch.zeros(1, dtype=torch.int64))

    def take(self, name: str, tokens: Tensor) -> Tensor:
        """Write tokens into a cache; return its rows, zeros where nothing is."""
        cache, position = getattr(self, name), getattr(self, f"{name}_position")
        rows = self.embed(tokens)[:, None]
        cache.copy_(torch.ops.kvc.cache_update(cache, rows, position.clone()))
        position.add_(tokens.shape[1])
        return cache

    def encode(self, tokens: Tensor) -> Tensor:
        return self.take("heard", tokens).sum((1, 2))

    def prefill(self, tokens: Tensor) -> Tensor:
        said = self.take("said", tokens).sum((1, 2))
        return self.head(said + 0.1 * self.heard.sum((1, 2)))

    def decode(self, token: Tensor) -> Tensor:
        return self.prefill(token)


class Crossing(Translator):
    """A decoder that sees a cache which is written whole, and by nobody else."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cross", torch.zeros(1, 3, DIM))

    def encode(self, tokens: Tensor) -> Tensor:
        self.cross.copy_(torch.tanh(self.embed(tokens)))
        return self.cross * 2

    def prefill(self, tokens: Tensor) -> Tensor:
        said = self.take("said", tokens).sum((1, 2))
        return self.head(said + self.cross.sum(1))


class TakingBoth(Crossing):
    """A decoder whose prefill writes the cross cache too."""

    def start(self, heard: Tensor, tokens: Tensor) -> Tensor:
        self.encode(heard)
        return Crossing.prefill(self, tokens)


class Growing(nn.Module):
    """The same with caches that grow by concatenation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB)

    def encode(self, tokens: Tensor, heard: Tensor) -> tuple[Tensor, Tensor]:
        heard = torch.cat([heard, self.embed(tokens)], 1)
        return heard.sum(1), heard

    def decode(
        self, token: Tensor, said: Tensor, heard: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        said = torch.cat([said, self.embed(token)], 1)
        return self.head(said.sum(1) + heard.sum(1)), said, heard


def of_tokens(name: str, role: str = "", count: int = 3) -> Method:
    args = (TOKENS[:, :count],)
    dynamic = {"tokens": {1: SEQ}} if count > 1 else {}
    return Method(name, args, dynamic=dynamic, role=role)


DECODER = [of_tokens("prefill", "prefill"), of_tokens("decode", "decode", 1)]
BOTH = [of_tokens("encode"), *DECODER]


class Pair(nn.Module):
    """Two caches that attention sees, each with a position of its own."""

    def __init__(self, batch: int = 1) -> None:
        super().__init__()
        for name in "ab":
            self.register_buffer(name, torch.zeros(batch, 1, 16, DIM))
            self.register_buffer(
                f"{name}_position", torch.zeros(batch, dtype=torch.int64)
            )

    def take(
        self, name: str, rows: Tensor, row_lengths: Tensor | None = None
    ) -> Tensor:
        cache, position = getattr(self, name), getattr(self, f"{name}_position")
        start = position.clone()
        added = rows.shape[2] if row_lengths is None else row_lengths
        cache.copy_(
            torch.ops.kvc.cache_update(cache, rows, start, 2, "linear", row_lengths)
        )
        position.add_(added)
        end = start + added
        return torch.ops.kvc.attention(rows, cache, cache, end, row_lengths=row_lengths)

    def both(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return self.take("a", a), self.take("b", b)

    def second(self, b: Tensor) -> Tensor:
        return self.take("b", b)

    def counted(
        self, a: Tensor, b: Tensor, m: Tensor, n: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.take("a", a, m), self.take("b", b, n)


class Slots(nn.Module):
    """Two caches that are written from positions which are passed."""

    def __init__(self) -> None:
        super().__init__()
        for name in "ab":
            self.register_buffer(name, torch.zeros(1, 1, 16, DIM))

    def first(self, rows: Tensor, here: Tensor) -> Tensor:
        self.a.copy_(torch.ops.kvc.cache_update(self.a, rows, here))
        return self.a * 1

    def second(self, rows: Tensor, there: Tensor) -> Tensor:
        self.b.copy_(torch.ops.kvc.cache_update(self.b, rows, there))
        return self.b + self.a.sum()


class Picking(nn.Module):
    """A ring that is given the position of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ring", torch.zeros(1, 1, 12, DIM))

    def step(self, rows: Tensor, slots: Tensor) -> Tensor:
        start, ends = self.ends(slots)
        self.ring.copy_(
            torch.ops.kvc.cache_update(self.ring, rows, start, 2, "circular")
        )
        return torch.ops.kvc.attention(
            rows, self.ring, self.ring, ends, layout="circular", window_left=3
        )

    def ends(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the tokens begin, and where they end."""
        return slots[0].view(1), slots[-1:] + 1


ROWS, START = torch.ones(1, 1, 3, DIM), torch.zeros(1, dtype=torch.int64)


@pytest.fixture(scope="module")
def translator(
    tmp_path_factory: pytest.TempPathFactory, backend: str
) -> Iterator[Program]:
    with opened(Translator(), BOTH, tmp_path_factory.mktemp("t")) as program:
        yield program


def test_the_position_is_that_of_the_methods_with_a_role(translator: Program) -> None:
    with translator.session() as session:
        session.encode(TOKENS.numpy())
        session.encode(TOKENS.numpy()[:, :2])
        session.prefill(TOKENS.numpy())
        assert session.position.tolist() == [3]
        found = {name: rows.tolist() for name, rows in session.positions.items()}
        assert found == {"said_position": [3], "heard_position": [5]}


def test_each_state_is_at_the_cursor_of_its_own(translator: Program) -> None:
    states, cursors = translator.states, translator._engine.program.cursors
    assert [cursor.name for cursor in cursors] == ["said_position", "heard_position"]
    placed = {name: (s.kind, s.cursor) for name, s in states.items()}
    assert placed["said"] == (StateKind.LINEAR, 0)
    assert placed["heard"] == (StateKind.LINEAR, 1)
    assert placed["said_position"] == (StateKind.COUNTER, 0)
    assert placed["heard_position"] == (StateKind.COUNTER, 1)


def test_a_rewind_forgets_tokens_of_the_decoder_alone(translator: Program) -> None:
    model = Translator()
    with translator.session() as session, torch.no_grad():
        session.encode(TOKENS.numpy())
        session.prefill(TOKENS.numpy())
        session.decode(np.array([[4]]))
        session.rewind(3)
        assert session.position.tolist() == [1]
        got = session.decode(np.array([[7]]))
        model.encode(TOKENS)
        model.prefill(TOKENS[:, :1])
        np.testing.assert_allclose(got, model.decode(torch.tensor([[7]])), atol=1e-5)
        for name, buffer in model.named_buffers():
            np.testing.assert_array_equal(session.state[name], buffer)


def test_a_full_cache_of_the_encoder_is_refused_before_anything_is_written(
    translator: Program,
) -> None:
    with translator.session() as session:
        for _ in range(3):
            session.encode(np.zeros((1, 8), np.int64))
        before = np.array(session.state["heard"])
        with pytest.raises(Exception, match="the cache is full"):
            session.encode(TOKENS.numpy())
        np.testing.assert_array_equal(session.state["heard"], before)
        session.prefill(TOKENS.numpy())
        assert session.position.tolist() == [3]


def test_forks_and_files_have_all_cursors(translator: Program, tmp_path: Path) -> None:
    with translator.session() as session:
        session.encode(TOKENS.numpy())
        session.prefill(TOKENS.numpy())
        session.save(tmp_path / "s")
        wanted = session.fork().decode(np.array([[5]]))
    with translator.restore(tmp_path / "s") as again:
        found = {name: rows.tolist() for name, rows in again.positions.items()}
        assert found == {"said_position": [3], "heard_position": [3]}
        np.testing.assert_array_equal(again.decode(np.array([[5]])), wanted)
        again.rewind(2)
        assert again.position.tolist() == [2]


def test_a_cross_cache_that_is_written_whole_does_not_stand_in_the_way(
    tmp_path: Path,
) -> None:
    model = Crossing()
    methods = [Method("encode", (TOKENS,)), *DECODER]
    with opened(Crossing(), methods, tmp_path) as program, torch.no_grad():
        session = program.session()
        session.encode(TOKENS.numpy())
        session.prefill(TOKENS.numpy())
        session.decode(np.array([[4]]))
        session.rewind(2)
        assert session.position.tolist() == [2]
        assert session.rewindable.tolist() == [2]
        got = session.decode(np.array([[7]]))
        model.encode(TOKENS)
        model.prefill(TOKENS[:, :2])
        np.testing.assert_allclose(got, model.decode(torch.tensor([[7]])), atol=1e-5)


def test_what_a_prefill_wrote_whole_stands_as_long_as_the_prefill(
    tmp_path: Path,
) -> None:
    start = Method("start", (TOKENS, TOKENS), dynamic={"tokens": {1: SEQ}})
    methods = [start, of_tokens("decode", "", 1)]
    with opened(TakingBoth(), methods, tmp_path) as program:
        session = program.session()
        session.start(TOKENS.numpy(), TOKENS.numpy())
        session.decode(np.array([[4]]))
        session.decode(np.array([[5]]))
        assert session.rewindable.tolist() == [2]
        session.rewind(2)
        with pytest.raises(NotRewindable, match=r"cross.*up to position 3"):
            session.rewind(1)
        assert session.position.tolist() == [3]


def test_caches_that_grow_apart_have_positions_apart(tmp_path: Path) -> None:
    heard, said = torch.ones(1, 2, DIM), torch.ones(1, 3, DIM)
    past = {"heard": Dim("old", 0, 16), "said": Dim("past", 0, 16)}
    encode = Method(
        "encode",
        (TOKENS, heard),
        dynamic={"tokens": {1: SEQ}, "heard": {1: past["heard"]}},
        carry={"heard": "[1]"},
    )
    decode = Method(
        "decode",
        (TOKENS[:, :1], said, heard),
        dynamic={"said": {1: past["said"]}, "heard": {1: past["heard"]}},
        carry={"said": "[1]", "heard": "[2]"},
    )
    with opened(Growing(), [encode, decode], tmp_path) as program:
        session = program.session()
        session.encode(TOKENS.numpy())
        session.decode(np.array([[4]]))
        session.decode(np.array([[5]]))
        found = {name: rows.tolist() for name, rows in session.positions.items()}
        assert found == {"heard": [3], "said": [2]}


def test_prefill_and_decode_that_count_apart_are_refused() -> None:
    class Apart(Translator):
        def decode(self, token: Tensor) -> Tensor:
            return self.head(self.take("heard", token).sum((1, 2)))

    with pytest.raises(CompileError, match="advance different positions"):
        opened(Apart(), BOTH, Path()).__enter__()


def test_attention_sees_what_a_call_adds_at_each_cursor(tmp_path: Path) -> None:
    other = {"b": {2: Dim("other", 1, 8)}}
    both = Method("both", (ROWS, ROWS), dynamic={"a": {2: SEQ}} | other)
    second = Method("second", (ROWS,), dynamic={"b": {2: SEQ}})
    with opened(Pair(), [both, second], tmp_path) as program:
        session, model = program.session(), Pair()
        for a, b in ((3, 4), (2, 1)):
            rows = torch.randn(1, 1, a, DIM), torch.randn(1, 1, b, DIM)
            found = session.both(*(one.numpy() for one in rows))
            for mine, theirs in zip(found, model.both(*rows), strict=True):
                np.testing.assert_allclose(mine, theirs, atol=1e-5)
        more = torch.randn(1, 1, 3, DIM)
        found = session.second(more.numpy())
        np.testing.assert_allclose(found, model.second(more), atol=1e-5)
        positions = {name: rows.tolist() for name, rows in session.positions.items()}
        assert positions == {"a_position": [5], "b_position": [8]}


def test_a_session_counts_at_each_cursor(tmp_path: Path) -> None:
    dynamic = {"rows": {2: SEQ}}
    first = Method("first", (ROWS, START), dynamic=dynamic, position="here")
    second = Method("second", (ROWS, START), dynamic=dynamic, position="there")
    with opened(Slots(), [first, second], tmp_path) as program:
        session, model = program.session(), Slots()
        ends = {"first": 0, "second": 0}
        for name, count in (("first", 3), ("second", 2), ("first", 4), ("second", 1)):
            rows = torch.randn(1, 1, count, DIM)
            expected = getattr(model, name)(rows, torch.tensor([ends[name]]))
            found = session.call(name, rows.numpy())
            np.testing.assert_allclose(found, expected, atol=1e-5)
            ends[name] += count
        positions = {name: rows.tolist() for name, rows in session.positions.items()}
        assert positions == {"here": [7], "there": [3]}
        rows = np.ones((1, 1, 8, DIM), np.float32)
        session.call("second", rows)
        with pytest.raises(CacheOverflow):
            session.call("second", rows)


def test_counts_of_rows_at_two_cursors_are_refused(tmp_path: Path) -> None:
    rows, row_lengths = torch.ones(2, 1, 3, DIM), torch.tensor([3, 2])
    args = (rows, rows, row_lengths, row_lengths + 0)
    with pytest.raises(CompileError, match=r"two positions by row lengths \(m, n\)"):
        opened(Pair(2), [Method("counted", args)], tmp_path).__enter__()


def test_places_of_tokens_give_start_and_end_of_a_ring(tmp_path: Path) -> None:
    dynamic = {"rows": {2: SEQ}, "slots": {0: SEQ}}
    step = Method("step", (ROWS, torch.arange(3)), dynamic=dynamic, position="slots")
    one = (ROWS[:, :, :1], torch.arange(1))
    with opened(Picking(), [step], tmp_path) as program:
        assert program.states["ring"].window == Window(4)
        session, model, end = program.session(), Picking(), 0
        for count in (3, 1, 8, 1, 2):
            rows = torch.randn(1, 1, count, DIM)
            expected = model.step(rows, torch.arange(end, end + count))
            np.testing.assert_allclose(session.step(rows.numpy()), expected, atol=1e-5)
            end += count
        assert session.position == end
    single = Method("step", one, position="slots")
    with opened(Picking(), [single], tmp_path) as program:
        assert program.states["ring"].window == Window(4)


ENCODING = [of_tokens("encode", "encode"), *DECODER]


def test_an_encoder_begins_the_session_anew(tmp_path: Path) -> None:
    model = Translator()
    with opened(Translator(), ENCODING, tmp_path) as program, torch.no_grad():
        session = program.session()
        session.encode(np.full((1, 7), 3))
        session.prefill(TOKENS.numpy())
        session.encode(TOKENS.numpy())
        found = {name: rows.tolist() for name, rows in session.positions.items()}
        assert found == {"said_position": [0], "heard_position": [3]}
        got = session.prefill(TOKENS.numpy()[:, :2])
        model.encode(TOKENS)
        np.testing.assert_allclose(got, model.prefill(TOKENS[:, :2]), atol=1e-5)
        for name, buffer in model.named_buffers():
            np.testing.assert_array_equal(session.state[name], buffer)


def test_what_reads_an_encoders_cache_needs_it(tmp_path: Path) -> None:
    with opened(Translator(), ENCODING, tmp_path) as program:
        session = program.session()
        for name in ("prefill", "decode"):
            with pytest.raises(NotEncoded, match=f"{name} needs the result of encode"):
                session.call(name, TOKENS.numpy()[:, :1])
        session.encode(TOKENS.numpy())
        session.decode(np.array([[4]]))
        assert session.position.tolist() == [1]


def test_an_encoder_is_refused_before_the_session_begins_anew(tmp_path: Path) -> None:
    with opened(Translator(), ENCODING, tmp_path) as program:
        session = program.session()
        session.encode(TOKENS.numpy())
        session.prefill(TOKENS.numpy())
        before = {name: np.array(session.state[name]) for name in session.state}
        for wrong in (np.zeros((1, 9), np.int64), np.full((1, 2), VOCAB)):
            with pytest.raises(InputMismatch):
                session.encode(wrong)
        for name, content in before.items():
            np.testing.assert_array_equal(session.state[name], content)


def test_an_encoder_that_fails_after_it_began_leaves_an_empty_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with opened(Translator(), ENCODING, tmp_path) as program:
        session = program.session()
        session.encode(TOKENS.numpy())
        session.prefill(TOKENS.numpy())
        session.leave_pending([[4]])
        before = session.changes
        with monkeypatch.context() as patch:
            patch.setattr(program._engine, "_run_once", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.encode(TOKENS.numpy())
        assert session.changes > before
        assert session.pending == ((),)
        assert session.position.tolist() == [0]
        with pytest.raises(NotEncoded):
            session.decode(np.array([[4]]))
