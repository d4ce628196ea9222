"""Results that are written over memory which outlives the call, and growth of it."""

import pytest
from memory_graphs import (
    APPEND,
    CHECK,
    COPY,
    LONGER,
    MATMUL,
    MUL,
    REPLACE,
    SORT,
    VIEW,
    alias,
    caller,
    scratch,
    sound,
    state,
    unsound,
)


@pytest.mark.parametrize("memory", [state(), caller()])
class TestResultsOverMemory:
    """Value 0 is a state or lies in the caller's array, value 1 is an input."""

    def inputs(self, memory):
        return (0, 1) if memory == caller() else (1,)

    def sound(self, memory, values, outputs, *steps):
        everything = [memory, scratch(0), *values]
        return sound(everything, self.inputs(memory), outputs, *steps)

    def unsound(self, memory, values, outputs, *steps):
        everything = [memory, scratch(0), *values]
        return unsound(everything, self.inputs(memory), outputs, *steps)

    def test_a_result_over_memory_ends_the_old_value(self, memory):
        values = [alias(0), scratch(64)]
        write, read = (MATMUL, (1, 1), (2,)), (MUL, (0, 1), (3,))
        assert self.sound(memory, values, (2, 3), read, write)
        assert self.unsound(memory, values, (2, 3), write, read)
        assert self.unsound(memory, values[:1], (0,), write)

    def test_it_ends_views_of_the_old_value(self, memory):
        values = [alias(0), alias(0), scratch(64)]
        view, write = (VIEW, (0,), (2,)), (MATMUL, (1, 1), (3,))
        read = (MUL, (2, 1), (4,))
        assert self.sound(memory, values, (4,), view, read, write)
        assert self.unsound(memory, values, (4,), view, write, read)

    def test_a_pointwise_op_may_read_what_it_writes_over(self, memory):
        values = [alias(0)]
        assert self.sound(memory, values, (2,), (MUL, (0, 1), (2,)))
        assert self.sound(memory, values, (2,), (MUL, (0, 0), (2,)))
        assert self.unsound(memory, values, (2,), (MATMUL, (0, 1), (2,)))
        assert self.unsound(memory, values, (2,), (MATMUL, (1, 0), (2,)))

    def test_a_pointwise_op_may_not_read_a_view_of_it(self, memory):
        values = [alias(0), alias(0)]
        steps = ((VIEW, (0,), (2,)), (MUL, (1, 2), (3,)))
        assert self.unsound(memory, values, (3,), *steps)

    def test_a_pointwise_op_may_not_read_another_length_of_it(self, memory):
        values = [alias(0, LONGER), alias(2, LONGER)]
        append = (APPEND, (0, 1), (2,))
        assert self.unsound(memory, values, (3,), append, (MUL, (2, 0), (3,)))
        assert self.sound(memory, values, (3,), append, (MUL, (2, 1), (3,)))

    def test_a_result_is_not_written_over_a_view(self, memory):
        values = [alias(0), alias(2)]
        steps = ((VIEW, (0,), (2,)), (MATMUL, (1, 1), (3,)))
        assert self.unsound(memory, values, (3,), *steps)

    def test_it_may_be_written_where_an_old_value_was(self, memory):
        values = [alias(0), alias(0), scratch(64)]
        first, second = (MATMUL, (1, 1), (2,)), (MATMUL, (1, 1), (3,))
        assert self.sound(memory, values, (3,), first, second)
        assert self.unsound(memory, values, (2, 3), first, second)

    def test_what_is_written_over_a_whole_is_whole(self, memory):
        values = [alias(0), alias(2), alias(3)]
        steps = ((COPY, (0, 1), (2,)), (MUL, (2, 1), (3,)), (MUL, (3, 3), (4,)))
        assert self.sound(memory, values, (4,), *steps)

    def test_what_is_written_over_a_view_is_none(self, memory):
        values = [alias(0), alias(2), alias(3)]
        steps = ((VIEW, (0,), (2,)), (COPY, (2, 1), (3,)), (MUL, (1, 1), (4,)))
        assert self.sound(memory, values, (3,), *steps[:2])
        assert self.unsound(memory, values, (4,), *steps)

    def test_two_results_may_not_be_over_one_memory(self, memory):
        values = [alias(0), alias(0), scratch(64)]
        assert self.unsound(memory, values, (), (SORT, (1,), (2, 3)))
        assert self.sound(memory, values, (), (SORT, (1,), (2, 4)))

    def test_an_append_leaves_old_values(self, memory):
        values = [alias(0, LONGER), scratch(64)]
        append, read = (APPEND, (0, 1), (2,)), (MUL, (0, 1), (3,))
        assert self.sound(memory, values, (2, 3), append, read)
        assert self.sound(memory, values, (0, 2), append)

    def test_only_the_newest_value_is_appended_to(self, memory):
        values = [alias(0, LONGER), alias(0, LONGER), alias(2, LONGER)]
        first = (APPEND, (0, 1), (2,))
        assert self.unsound(memory, values[:2], (), first, (APPEND, (0, 1), (3,)))
        assert self.sound(memory, values[::2], (0, 2, 3), first, (APPEND, (2, 1), (3,)))

    def test_after_an_overwrite_only_the_result_is_appended_to(self, memory):
        values = [alias(0), alias(2, LONGER), alias(0, LONGER)]
        write = (MATMUL, (1, 1), (2,))
        assert self.sound(memory, values, (3,), write, (APPEND, (2, 1), (3,)))
        assert self.unsound(memory, values, (4,), write, (APPEND, (0, 1), (4,)))

    def test_an_overwrite_ends_what_was_appended(self, memory):
        values = [alias(0, LONGER), alias(0), scratch(64)]
        steps = ((APPEND, (0, 1), (2,)), (COPY, (0, 1), (3,)))
        assert self.sound(memory, values, (3,), *steps)
        assert self.unsound(memory, values, (2,), *steps)
        assert self.unsound(memory, values, (4,), *steps, (MUL, (2, 1), (4,)))

    def test_a_view_is_not_appended_to(self, memory):
        values = [alias(0), alias(2, LONGER)]
        steps = ((VIEW, (0,), (2,)), (APPEND, (2, 1), (3,)))
        assert self.unsound(memory, values, (3,), *steps)

    def test_an_update_of_a_part_is_not_appended_to(self, memory):
        values = [alias(0), alias(2), alias(3, LONGER)]
        steps = ((VIEW, (0,), (2,)), (COPY, (2, 1), (3,)), (APPEND, (3, 1), (4,)))
        assert self.unsound(memory, values, (4,), *steps)

    def test_memory_is_not_appended_to_itself(self, memory):
        values = [alias(0, LONGER)]
        assert self.unsound(memory, values, (2,), (APPEND, (0, 0), (2,)))

    def test_a_replacement_ends_old_values(self, memory):
        values = [alias(0, LONGER), scratch(64), alias(2)]
        write, read = (REPLACE, (0, 1), (2,)), (MUL, (0, 1), (3,))
        assert self.sound(memory, values, (3,), read, write)
        assert self.unsound(memory, values, (3,), write, read)
        assert self.sound(memory, values, (4,), write, (REPLACE, (2, 1), (4,)))

    def test_a_view_is_not_replaced(self, memory):
        values = [alias(0), alias(2, LONGER)]
        steps = ((VIEW, (0,), (2,)), (REPLACE, (2, 1), (3,)))
        assert self.unsound(memory, values, (3,), *steps)

    def test_a_replacement_does_not_read_what_it_writes_over(self, memory):
        values = [alias(0), alias(0)]
        steps = ((VIEW, (0,), (2,)), (REPLACE, (0, 2), (3,)))
        assert self.unsound(memory, values, (3,), *steps)

    def test_a_check_reads(self, memory):
        values = [alias(0)]
        check, write = (CHECK, (0,), ()), (MATMUL, (1, 1), (2,))
        assert self.sound(memory, values, (), check, write)
        assert self.unsound(memory, values, (), write, check)


def test_a_check_keeps_scratch_alive():
    values = [scratch(0), scratch(64), scratch(64)]
    check, last = (CHECK, (1,), ()), (MUL, (0, 0), (2,))
    first = (MUL, (0, 0), (1,))
    assert sound(values, (0,), (2,), first, check, last)
    assert unsound(values, (0,), (2,), first, last, check)


def test_two_memories_do_not_know_of_each_other():
    values = [state(), caller(), alias(0), alias(1), scratch(0)]
    steps = ((MATMUL, (1, 1), (2,)), (MUL, (1, 2), (3,)), (MUL, (2, 3), (4,)))
    assert sound(values, (1,), (4,), *steps)
