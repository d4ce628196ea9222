import torch
from small_models import Accumulator, IndexCopyCache, KvcCache
from torch import nn

from kvc.compiler import Dim, Method, compile_program
from kvc.schema.model import Cursor, CursorKind, StateKind

ROWS = torch.ones(1, 1, 2, 4)
APPEND = Method("append", args=(ROWS,), dynamic={"rows": {2: Dim("seq", 1, 8)}})


class Odd(KvcCache):
    """Other ways to move the position, and other modes of the cache."""

    def __init__(self):
        super().__init__()
        self.register_buffer("small", torch.zeros(1, 1, 3, 4))
        self.register_buffer("turns", torch.zeros(1, dtype=torch.int64))

    def stays(self, rows):
        self.cache.copy_(torch.ops.kvc.cache_update(self.cache, rows, self.position))
        return self.cache * 2

    def back(self, rows):
        out = self.stays(rows)
        self.position.sub_(1)
        return out

    def doubles(self, rows):
        out = self.stays(rows)
        self.position.mul_(2)
        return out

    def ring(self, rows):
        start = self.position.clone()
        update = torch.ops.kvc.cache_update(
            self.cache, rows, start, axis=2, mode="circular"
        )
        self.cache.copy_(update)
        self.position.add_(rows.shape[2])
        return self.cache * 2

    def two_counters(self, rows):
        out = self.append(rows)
        start = self.turns.clone()
        self.small.copy_(torch.ops.kvc.cache_update(self.small, rows, start))
        self.turns.add_(rows.shape[2])
        return out

    def side(self, rows):
        start = self.position.clone()
        self.small.copy_(torch.ops.kvc.cache_update(self.small, rows, start))
        self.position.add_(rows.shape[2])
        return self.small * 2

    def clear(self):
        self.cache.zero_()
        return self.position + 0


def program_of(model: nn.Module, *methods: Method):
    return compile_program(model, methods, "fp32").program


def kinds(program):
    return {s.name: (s.kind, s.axis) for s in program.states}


def test_a_cache_written_by_cache_update_is_linear_on_its_axis():
    assert kinds(program_of(KvcCache(), APPEND))["cache"] == (StateKind.LINEAR, 2)


def test_a_circular_cache_is_a_ring():
    program = program_of(Odd(), Method("ring", args=(ROWS,)))
    assert kinds(program)["cache"] == (StateKind.RING, 2)


def test_a_cache_written_in_two_manners_is_plain():
    ring = Method("ring", args=(ROWS,))
    assert kinds(program_of(Odd(), APPEND, ring))["cache"] == (StateKind.PLAIN, None)
    clear = Method("clear")
    assert kinds(program_of(Odd(), APPEND, clear))["cache"] == (StateKind.PLAIN, None)


def test_a_cache_written_at_scattered_slots_is_plain():
    args = (torch.ones(1, 2, 4), torch.tensor([0, 5]))
    program = program_of(IndexCopyCache(), Method("prefill", args=args))
    assert kinds(program) == {"cache": (StateKind.PLAIN, None)}


def test_a_cache_written_at_one_slot_that_is_given_is_linear_but_at_no_position():
    args = (torch.ones(1, 1, 4), torch.tensor([0]))
    (state,) = program_of(IndexCopyCache(), Method("decode", args=args)).states
    assert (state.kind, state.axis, state.at_position) == (StateKind.LINEAR, 1, False)


def test_a_counter_that_says_where_a_cache_is_written_is_the_position():
    program = program_of(KvcCache(), APPEND)
    number = [s.name for s in program.states].index("position")
    assert program.position == Cursor("position", CursorKind.STATE, number, None, 8)


def test_a_ring_has_no_capacity():
    position = program_of(Odd(), Method("ring", args=(ROWS,))).position
    assert position is not None
    assert position.capacity is None


def test_a_cache_written_at_another_counter_does_not_limit_the_position():
    program = program_of(Odd(), Method("two_counters", args=(ROWS,)))
    assert program.position is not None
    counter = program.states[program.position.state].name
    assert program.position.capacity == {"position": 8, "turns": 3}[counter]


def test_the_smallest_cache_written_at_the_position_limits_it():
    program = program_of(Odd(), APPEND, Method("side", args=(ROWS,)))
    assert program.position is not None
    assert program.position.capacity == 3


def test_a_counter_that_goes_back_or_leaps_is_no_position():
    for name in ("back", "doubles"):
        program = program_of(Odd(), APPEND, Method(name, args=(ROWS,)))
        assert program.position is None, name


def test_a_number_that_no_method_advances_is_no_position():
    assert program_of(Odd(), Method("stays", args=(ROWS,))).position is None


def test_a_state_that_is_no_index_is_no_position():
    add = Method("add", args=(torch.ones(3),))
    assert program_of(Accumulator(), add).position is None


def test_reads_and_writes_are_told_for_each_method():
    program = program_of(
        Accumulator(), Method("add", args=(torch.ones(3),)), Method("read")
    )
    add, read = program.methods
    assert (add.reads, add.writes) == ((0,), (0,))
    assert (read.reads, read.writes) == ((0,), ())


def test_a_state_that_is_only_overwritten_is_not_read():
    program = program_of(Odd(), Method("clear"))
    (clear,) = program.methods
    assert [program.states[i].name for i in clear.writes] == ["cache"]
    assert "cache" not in [program.states[i].name for i in clear.reads]
