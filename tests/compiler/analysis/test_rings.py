"""Which rings have a window, and which do not; limits of a position over rings."""

import pytest
import torch
from small_models import Accumulator, KvcCache
from torch import Tensor, nn

from kvc.compiler import Dim, Method, StateSpec, compile_program
from kvc.schema.errors import CompileError
from kvc.schema.model import StateKind
from kvc.schema.rings import Window
from kvc.schema.verify import verify_program

SLOTS, WINDOW = 12, 5
ROWS = torch.ones(1, 2, 2, 4)
SEQ = {"rows": {2: Dim("seq", 1, 8)}}
RING = {"layout": "circular", "window_left": WINDOW - 1}


class Rings(nn.Module):
    """One ring for keys and values, read in a way of each method's own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ring", torch.zeros(1, 2, SLOTS, 4))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def write(self, rows: Tensor, keep: int = 0) -> Tensor:
        """Write rows at the position; return where it was."""
        start = self.position.clone()
        update = torch.ops.kvc.cache_update
        self.ring.copy_(update(self.ring, rows, start, 2, "circular", keep=keep))
        self.position.add_(rows.shape[2])
        return start

    def attend(self, rows: Tensor, end: Tensor, **settings: object) -> Tensor:
        return torch.ops.kvc.attention(rows, self.ring, self.ring, end, **settings)

    def plain(self, rows: Tensor) -> Tensor:
        return self.attend(rows, self.write(rows) + rows.shape[2], **RING)

    def by_new_position(self, rows: Tensor) -> Tensor:
        self.write(rows)
        return self.attend(rows, self.position, **RING)

    def two_readers(self, rows: Tensor) -> Tensor:
        end = self.write(rows) + rows.shape[2]
        narrow = self.attend(rows, end, layout="circular", window_left=2)
        return narrow + self.attend(rows, end, **RING)

    def through_views(self, rows: Tensor) -> Tensor:
        end = self.write(rows) + rows.shape[2]
        turned = self.ring.transpose(1, 2).permute(0, 2, 1, 3)
        return torch.ops.kvc.attention(rows, turned, turned, end, **RING)

    def without_window(self, rows: Tensor) -> Tensor:
        end = self.write(rows) + rows.shape[2]
        return self.attend(rows, end, layout="circular")

    def as_linear(self, rows: Tensor) -> Tensor:
        end = self.write(rows) + rows.shape[2]
        return self.attend(rows, end, window_left=WINDOW - 1)

    def looked_at(self, rows: Tensor) -> Tensor:
        return self.plain(rows) + self.ring.sum()

    def handed_out(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.plain(rows), self.ring

    def before_the_write(self, rows: Tensor) -> Tensor:
        end = self.position + rows.shape[2]
        out = self.attend(rows, end, **RING)
        self.write(rows)
        return out

    def one_too_far(self, rows: Tensor) -> Tensor:
        return self.attend(rows, self.write(rows) + (rows.shape[2] + 1), **RING)

    def to_the_old_position(self, rows: Tensor) -> Tensor:
        return self.attend(rows, self.write(rows), **RING)

    def last_query_alone(self, rows: Tensor) -> Tensor:
        end = self.write(rows) + rows.shape[2]
        return self.attend(rows[:, :, -1:], end, **RING)

    def more_queries_than_tokens(self, rows: Tensor) -> Tensor:
        end = self.write(rows) + rows.shape[2]
        return self.attend(torch.cat([rows, rows], 2), end, **RING)

    def wider_than_the_ring(self, rows: Tensor) -> Tensor:
        end = self.write(rows) + rows.shape[2]
        return self.attend(rows, end, layout="circular", window_left=SLOTS)

    def kept(self, rows: Tensor) -> Tensor:
        return self.attend(rows, self.write(rows, 2) + rows.shape[2], keep=2, **RING)

    def kept_by_the_write(self, rows: Tensor) -> Tensor:
        return self.attend(rows, self.write(rows, 2) + rows.shape[2], **RING)

    def kept_by_the_reader(self, rows: Tensor) -> Tensor:
        return self.attend(rows, self.write(rows) + rows.shape[2], keep=2, **RING)

    def kept_without_room_for_the_window(self, rows: Tensor) -> Tensor:
        return self.attend(rows, self.write(rows, 8) + rows.shape[2], keep=8, **RING)

    def skip(self, rows: Tensor) -> Tensor:
        self.position.add_(rows.shape[2])
        return rows * 2

    def peek(self, rows: Tensor) -> Tensor:
        return self.attend(rows, self.position + 0, **RING)


class Placed(nn.Module):
    """A ring at a position that the session fills in."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ring", torch.zeros(1, 2, SLOTS, 4))

    def at_places(self, rows: Tensor, at: Tensor) -> Tensor:
        return self._run(rows, at[:1], at[-1:] + 1)

    def at_start(self, rows: Tensor, at: Tensor) -> Tensor:
        return self._run(rows, at, at + rows.shape[2])

    def at_wrong_places(self, rows: Tensor, at: Tensor) -> Tensor:
        return self._run(rows, at[:1], at[-1:] + 2)

    def _run(self, rows: Tensor, start: Tensor, end: Tensor) -> Tensor:
        update = torch.ops.kvc.cache_update
        self.ring.copy_(update(self.ring, rows, start, 2, "circular"))
        return torch.ops.kvc.attention(rows, self.ring, self.ring, end, **RING)


def ring_of(model: nn.Module, *methods: Method):
    program = compile_program(model, methods).program
    verify_program(program, "x")
    states = program.states
    return next(state for state in states if state.name == "ring")


def method(name: str) -> Method:
    return Method(name, args=(ROWS,), dynamic=SEQ)


@pytest.mark.parametrize("name", ["plain", "by_new_position", "two_readers"])
def test_a_window_is_how_far_the_widest_reader_sees(name):
    assert ring_of(Rings(), method(name)).window == Window(WINDOW)


def test_views_between_a_ring_and_its_reader_do_no_harm():
    assert ring_of(Rings(), method("through_views")).window == Window(WINDOW)


def test_several_methods_have_one_window():
    assert ring_of(Rings(), method("plain"), method("two_readers")).window == Window(
        WINDOW
    )


@pytest.mark.parametrize(
    "name",
    [
        "without_window",
        "as_linear",
        "looked_at",
        "handed_out",
        "before_the_write",
        "one_too_far",
        "to_the_old_position",
        "more_queries_than_tokens",
        "wider_than_the_ring",
        "kept_by_the_write",
        "kept_by_the_reader",
        "kept_without_room_for_the_window",
    ],
)
def test_a_ring_that_is_seen_in_another_way_has_none(name):
    state = ring_of(Rings(), method(name))
    assert (state.kind, state.at_position, state.window) == (StateKind.RING, True, None)


def test_a_window_has_the_positions_that_writes_and_readers_keep():
    assert ring_of(Rings(), method("kept")).window == Window(WINDOW, 2)


def test_the_last_queries_alone_see_no_more():
    assert ring_of(Rings(), method("last_query_alone")).window == Window(WINDOW, 0)


def test_methods_that_keep_different_positions_leave_no_window():
    assert ring_of(Rings(), method("plain"), method("kept")).window is None


@pytest.mark.parametrize("other", ["skip", "peek", "without_window"])
def test_a_window_holds_for_all_methods_or_for_none(other):
    assert ring_of(Rings(), method("plain"), method(other)).window is None


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("at_places", Window(WINDOW)),
        ("at_start", Window(WINDOW)),
        ("at_wrong_places", None),
    ],
)
def test_a_position_that_is_filled_in_will_do(name, window):
    places = torch.arange(2) if "places" in name else torch.tensor([0])
    sizes = {**SEQ, "at": {0: SEQ["rows"][2]}} if "places" in name else SEQ
    placed = Method(name, args=(ROWS, places), dynamic=sizes, position="at")
    assert ring_of(Placed(), placed).window == window


def limit(model: nn.Module, made: Method, most: object, **options: object):
    bundle = compile_program(model, [made], max_length=most, **options)
    return bundle.program.position.capacity


def test_a_position_over_rings_goes_as_far_as_is_asked_for():
    assert limit(Rings(), method("plain"), None) is None
    assert limit(Rings(), method("plain"), 1000) == 1000


def test_of_a_cache_s_size_and_a_limit_the_less_counts():
    rows = torch.ones(1, 1, 2, 4)
    append = Method("append", args=(rows,))
    assert limit(KvcCache(), append, 5) == 5
    assert limit(KvcCache(), append, 100) == 8


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "8", 1 << 40])
def test_a_limit_is_a_number_of_positions(most):
    with pytest.raises(CompileError, match="max_length: expected an int of 1"):
        limit(Rings(), method("plain"), most)


def test_a_limit_that_says_nothing_is_refused():
    with pytest.raises(CompileError, match="nothing in this program counts tokens"):
        limit(Accumulator(), Method("add", args=(torch.ones(3),)), 8)
    sized = [StateSpec("cache", axis=2, capacity=Dim("capacity", 2, 64))]
    append = Method("append", args=(torch.ones(1, 1, 2, 4),))
    with pytest.raises(CompileError, match="a session chooses how many positions"):
        limit(KvcCache(), append, 8, states=sized)


class Candidates(nn.Module):
    """A ring with two rows for each row of the position, or as many as that has."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.register_buffer("ring", torch.zeros(4, 2, SLOTS, 4))
        self.register_buffer("position", torch.arange(rows) * 3)

    def forward(self, rows: Tensor) -> Tensor:
        groups = self.position.shape[0]
        each = self.position[:, None].expand(groups, 4 // groups).reshape(4)
        self.ring.copy_(
            torch.ops.kvc.cache_update(self.ring, rows, each, 2, "circular")
        )
        end = each + rows.shape[2]
        self.position.add_(rows.shape[2])
        return torch.ops.kvc.attention(rows, self.ring, self.ring, end, **RING)


@pytest.mark.parametrize(
    ("rows", "window"), [(1, Window(WINDOW)), (2, None), (4, Window(WINDOW))]
)
def test_rows_of_a_ring_are_those_of_the_position(
    rows: int, window: Window | None
) -> None:
    """Else a failed call would put back other rows than it has written."""
    methods = [Method("forward", args=(torch.ones(4, 2, 3, 4),))]
    program = compile_program(Candidates(rows), methods).program
    states = {state.name: state for state in program.states}
    assert states["ring"].kind is StateKind.RING
    assert states["ring"].at_position == (window is not None)
    assert states["ring"].window == window
