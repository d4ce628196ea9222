from dataclasses import replace

from growing_programs import growing_program
from sample_programs import sample_program

from kvc.schema.codec import decode, encode
from kvc.schema.graph import Alias, Instruction, Ref, Scratch, Value
from kvc.schema.verify import verify_program
from kvc.schema.verify.effects import effects

P = sample_program()


def test_a_decoded_program_passes():
    verify_program(decode(encode(P), "x"), "x", thorough=True)


def test_effects_are_what_the_graph_does():
    graph = P.methods[1].graph
    for instructions, reads, writes in (
        (graph.instructions, (0, 1), (0, 1)),
        ((), (), ()),
        (graph.instructions[-1:], (), (1,)),
    ):
        found = effects(replace(graph, instructions=instructions))
        assert (found.reads, found.writes) == (reads, writes)


GROW, RESTART = (method.graph for method in growing_program().methods)


def test_an_append_reads_and_writes():
    only_append = replace(GROW, instructions=GROW.instructions[:2])
    found = effects(only_append)
    assert (found.reads, found.writes, found.updates) == ((0,), (0,), (1,))


def test_a_replacement_does_not_read_what_it_replaces():
    found = effects(RESTART)
    assert (found.reads, found.writes, found.updates) == ((), (0,), (0,))


def test_a_write_over_a_caller_s_array_is_an_update_of_no_state():
    assert effects(GROW).updates == (1, 3)
    only_add = replace(GROW, instructions=GROW.instructions[3:], outputs=(2,))
    found = effects(only_add)
    assert (found.reads, found.writes, found.updates) == ((), (), (0,))


def over_the_position(*arguments):
    """Return the sample's decode and one more result over the position's memory.

    Values: 3 cache, 4 position, 11 position', 13 the result, 14 a view of the position.
    """
    graph = P.methods[1].graph
    kind = graph.values[4].type
    step = Instruction("aten::mul.Tensor", arguments, (13,))
    values = (*graph.values, Value(kind, Alias(4)), Value(kind, Alias(4)))
    return replace(graph, values=values, instructions=(step,), outputs=())


def test_a_result_over_a_state_writes_it_and_reads_it_only_as_an_operand():
    found = effects(over_the_position(Ref(10), Ref(10)))
    assert (found.reads, found.writes, found.updates) == ((), (1,), (0,))
    found = effects(over_the_position(Ref(10), Ref(4)))
    assert (found.reads, found.writes, found.updates) == ((1,), (1,), (0,))


def test_a_view_alone_is_neither_read_nor_write():
    graph = over_the_position()
    view = Instruction("aten::alias", (Ref(4),), (14,))
    found = effects(replace(graph, instructions=(view,)))
    assert (found.reads, found.writes, found.updates) == ((), (), ())
    found = effects(replace(graph, instructions=(view,), outputs=(14,)))
    assert (found.reads, found.writes, found.updates) == ((1,), (), ())


def test_an_update_through_a_view_writes_the_state():
    graph = over_the_position()
    view = Instruction("aten::alias", (Ref(4),), (14,))
    kind = graph.values[4].type
    values = (*graph.values[:13], Value(kind, Alias(14)), graph.values[14])
    copy = Instruction("aten::copy", (Ref(14), Ref(10)), (13,))
    found = effects(replace(graph, values=values, instructions=(view, copy)))
    assert (found.reads, found.writes, found.updates) == ((), (1,), (1,))


def test_an_update_into_scratch_reads_and_writes_nothing_over():
    graph = over_the_position()
    kind = graph.values[4].type
    values = (*graph.values[:13], Value(kind, Scratch(0, 8)), graph.values[14])
    copy = Instruction("aten::copy", (Ref(4), Ref(10)), (13,))
    found = effects(replace(graph, values=values, instructions=(copy,)))
    assert (found.reads, found.writes, found.updates) == ((1,), (), ())


def test_a_check_reads():
    graph = over_the_position()
    check = Instruction("kvc::check_index", (Ref(4), 0, 1, 8), ())
    found = effects(replace(graph, instructions=(check,)))
    assert (found.reads, found.writes, found.updates) == ((1,), (), ())
