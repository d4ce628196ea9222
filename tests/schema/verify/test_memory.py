import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_graphs import (
    APPEND,
    CHECK,
    COPY,
    EXPAND,
    KIND,
    LONGER,
    MATMUL,
    MUL,
    REPLACE,
    SORT,
    VIEW,
    alias,
    caller,
    graph,
    scratch,
    sound,
    state,
    unsound,
    verdicts,
)

from kvc.schema.graph import Alias
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.verify.memory import sweep
from kvc.schema.verify.replay import Conflict, replay


def test_memory_is_reused_after_the_last_read():
    values = [scratch(0), scratch(64), scratch(0)]
    assert sound(values, (0,), (2,), (MUL, (0, 0), (1,)), (MUL, (1, 1), (2,)))


def test_a_result_may_not_lie_on_its_operand():
    assert unsound([scratch(0), scratch(0)], (0,), (1,), (MUL, (0, 0), (1,)))


def test_a_partial_overlap_counts():
    assert unsound([scratch(0, 128), scratch(64)], (0,), (1,), (MUL, (0, 0), (1,)))


def test_so_does_one_from_below():
    assert unsound([scratch(64), scratch(0, 128)], (0,), (1,), (MUL, (0, 0), (1,)))


def test_a_value_that_is_read_later_may_not_be_overwritten():
    steps = ((MUL, (0, 0), (1,)), (MUL, (1, 1), (2,)), (MUL, (0, 2), (3,)))
    assert unsound(
        [scratch(0), scratch(64), scratch(0), scratch(128)], (0,), (3,), *steps
    )
    assert sound(
        [scratch(0), scratch(64), scratch(192), scratch(128)], (0,), (3,), *steps
    )


def test_a_view_keeps_its_base_alive():
    values = [scratch(0), scratch(64), alias(1), scratch(64), scratch(128)]
    steps = ((MUL, (0, 0), (1,)), (VIEW, (1,), (2,)), (MUL, (0, 0), (3,)))
    assert unsound(values, (0,), (4,), *steps, (MUL, (2, 3), (4,)))
    assert sound(values, (0,), (4,), *steps, (MUL, (3, 3), (4,)))


def test_an_output_is_read_after_the_last_instruction():
    values = [scratch(0), scratch(64), scratch(64)]
    steps = ((MUL, (0, 0), (1,)), (MUL, (0, 0), (2,)))
    assert unsound(values, (0,), (1, 2), *steps)
    assert sound(values, (0,), (2,), *steps)


def test_inputs_may_not_overlap():
    assert unsound([scratch(0), scratch(0)], (0, 1), ())
    assert sound([scratch(0), scratch(64)], (0, 1), ())


def test_results_of_one_instruction_may_not_overlap():
    values = [scratch(64), scratch(0), scratch(0)]
    assert unsound(values, (0,), (), ("aten::sort", (0,), (1, 2)))


def test_an_empty_value_takes_no_bytes():
    assert sound([scratch(0), scratch(32, 0)], (0, 1), (0, 1))


def test_an_old_state_may_not_be_read_after_its_update():
    values = [state(), scratch(0), alias(0), scratch(64)]
    update = (COPY, (0, 1), (2,))
    assert sound(values, (1,), (3,), (MUL, (0, 1), (3,)), update)
    assert sound(values, (1,), (3,), update, (MUL, (2, 1), (3,)))
    assert unsound(values, (1,), (3,), update, (MUL, (0, 1), (3,)))
    assert unsound(values, (1,), (0,), update)


def test_a_view_of_an_old_state_may_not_be_read_either():
    values = [state(), scratch(0), alias(0), alias(0), scratch(64)]
    view, update = (VIEW, (0,), (3,)), (COPY, (0, 1), (2,))
    assert unsound(values, (1,), (4,), view, update, (MUL, (3, 1), (4,)))
    assert unsound(values, (1,), (3,), view, update)
    assert sound(values, (1,), (4,), view, (MUL, (3, 1), (4,)), update)


def test_an_update_of_a_view_ends_the_whole():
    values = [state(), scratch(0), alias(0), alias(2), scratch(64)]
    steps = ((VIEW, (0,), (2,)), (COPY, (2, 1), (3,)))
    assert unsound(values, (1,), (4,), *steps, (MUL, (0, 1), (4,)))
    assert unsound(values, (1,), (4,), *steps, (MUL, (2, 1), (4,)))
    assert sound(values, (1,), (4,), *steps, (MUL, (3, 1), (4,)))


def test_an_update_may_not_read_a_view_of_what_it_writes():
    values = [state(), alias(0), alias(0)]
    assert unsound(values, (), (), (VIEW, (0,), (1,)), (COPY, (0, 1), (2,)))
    assert unsound(values[:2], (), (), (COPY, (0, 0), (1,)))


def test_an_update_into_scratch_leaves_the_old_value():
    values = [state(), scratch(0), scratch(64), scratch(128)]
    steps = ((COPY, (0, 1), (2,)), (MUL, (0, 2), (3,)))
    assert sound(values, (1,), (3,), *steps)


def test_scratch_is_updated_in_place_too():
    values = [scratch(0), scratch(64), alias(0), scratch(128)]
    update = (COPY, (0, 1), (2,))
    assert sound(values, (0, 1), (2,), update)
    assert unsound(values, (0, 1), (0,), update)
    assert unsound(values, (0, 1), (3,), update, (MUL, (0, 1), (3,)))


def test_an_update_in_place_keeps_its_memory_alive():
    values = [scratch(0), scratch(64), alias(0), scratch(0)]
    steps = ((COPY, (0, 1), (2,)), (MUL, (1, 1), (3,)))
    assert unsound(values, (0, 1), (2, 3), *steps)
    assert sound(values, (0, 1), (3,), *steps)


def test_an_expanded_view_is_not_written():
    values = [state(), scratch(0), alias(0), alias(2), alias(3)]
    steps = (("aten::expand", (0,), (2,)), (VIEW, (2,), (3,)), (COPY, (3, 1), (4,)))
    assert unsound(values, (1,), (), *steps)


class Chance:
    """Adds instructions whose ids are right and whose memory is laid out by chance."""

    def __init__(self, draw):
        self.draw = draw
        self.values = [state(), caller()]
        self.values += [scratch(64 * draw(st.integers(0, 3))) for _ in range(2)]
        self.lasting = [0, 1]  # values in memory that outlives the call
        self.steps = []

    def pick(self):
        """Return a value, rather a late one."""
        late = self.draw(st.booleans())
        count = len(self.values)
        return self.draw(st.integers(max(0, count - 4) if late else 0, count - 1))

    def add(self, value):
        self.values.append(value)
        if isinstance(value.storage, Alias) and value.storage.base in self.lasting:
            self.lasting.append(len(self.values) - 1)
        return len(self.values) - 1

    def own(self):
        place, nbytes = st.integers(0, 6), st.sampled_from((0, 64, 128))
        return scratch(64 * self.draw(place), self.draw(nbytes))

    def result(self, op, operand):
        """Return a result where an op of its class may put it."""
        aliasing = OPS[op].aliasing
        kind = self.values[operand].type
        if op in (APPEND, REPLACE):
            return alias(operand, self.draw(st.sampled_from((KIND, LONGER))))
        if aliasing is Aliasing.VIEW:
            return alias(operand, kind)
        if self.draw(st.booleans()):
            return self.own()
        if aliasing is Aliasing.UPDATE:
            return alias(operand, kind)
        base = self.draw(st.sampled_from(self.lasting))
        return alias(base, self.values[base].type)

    def step(self, op):
        reads = (self.pick(), self.pick())
        if op in (APPEND, REPLACE):
            reads = (self.draw(st.sampled_from(self.lasting)), reads[1])
        count = {SORT: 2, CHECK: 0}.get(op, 1)
        made = [self.result(op, reads[0]) for _ in range(count)]
        results = tuple([self.add(value) for value in made])
        self.steps.append((op, reads[: 1 if op in (VIEW, EXPAND) else 2], results))


ALL_OPS = (MUL, MUL, MATMUL, SORT, COPY, VIEW, EXPAND, APPEND, APPEND, REPLACE, CHECK)


@st.composite
def graphs(draw):
    """A graph whose ids are right and whose memory is laid out by chance."""
    chance = Chance(draw)
    for op in draw(st.lists(st.sampled_from(ALL_OPS), min_size=1, max_size=8)):
        chance.step(op)
    outputs = draw(st.lists(st.integers(0, len(chance.values) - 1), max_size=2))
    return graph(chance.values, (1, 2, 3), tuple(outputs), *chance.steps)


@given(graphs())
@settings(max_examples=300, deadline=None)
def test_both_checks_give_equal_verdicts(made):
    quick, slow = verdicts(made)
    assert bool(quick) == bool(slow), (quick, slow)


@pytest.mark.parametrize("check", [sweep, replay])
def test_a_conflict_knows_its_instruction(check):
    made = graph([scratch(0), scratch(0)], (0,), (1,), (MUL, (0, 0), (1,)))
    with pytest.raises(Conflict) as caught:
        check(made, [(0, 0)])
    assert caught.value.index == 0
