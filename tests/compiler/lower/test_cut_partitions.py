from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from ir_samples import CACHE, I64, method, node, program, value

from kvc.compiler.ir.verify import verify
from kvc.compiler.lower.cut_partitions import outline
from kvc.schema.ops import DELEGATE

X = value(0, 2, 4)
A, B, C, D = (value(i, 2, 4) for i in range(1, 5))


def chain():
    return method(
        node("aten::neg", X, to=A),
        node("aten::exp", A, to=B),
        node("aten::abs", B, to=C),
        node("aten::neg", C, to=D),
        inputs=(X,),
        outputs=(D,),
    )


def ops(nodes):
    return [n.op for n in nodes]


def test_neighbours_become_one_call():
    done = outline(chain(), frozenset({1, 2}), 5, {}, {})
    assert ops(done.method.nodes) == ["aten::neg", DELEGATE, "aten::neg"]
    (partition,) = done.partitions
    assert (partition.graph.inputs, partition.graph.outputs) == ((A,), (C,))
    assert done.method.nodes[1].arguments == (5, (A,), (None,))


def test_nodes_with_another_between_them_become_two_calls():
    done = outline(chain(), frozenset({0, 2}), 0, {}, {})
    assert [ops(p.graph.nodes) for p in done.partitions] == [
        ["aten::neg"],
        ["aten::abs"],
    ]
    assert ops(done.method.nodes) == [DELEGATE, "aten::exp", DELEGATE, "aten::neg"]


def test_nothing_taken_changes_nothing():
    assert outline(chain(), frozenset(), 0, {}, {}).method == chain()


def test_branches_of_one_depth_become_one_call():
    step = method(
        node("aten::neg", X, to=A),
        node("aten::exp", X, to=B),
        node("aten::add.Tensor", A, B, 1, to=C),
        inputs=(X,),
        outputs=(C,),
    )
    done = outline(step, frozenset({0, 1}), 0, {}, {})
    assert done.partitions[0].graph.outputs == (A, B)
    assert len(done.partitions) == 1


def test_a_view_inside_a_partition_stays_inside():
    turned = value(1, 4, 2)
    step = method(
        node("aten::neg", X, to=A),
        node("aten::transpose.int", A, 0, 1, to=value(2, 4, 2)),
        node("aten::neg", value(2, 4, 2), to=value(3, 4, 2)),
        inputs=(X,),
        outputs=(value(3, 4, 2),),
    )
    done = outline(step, frozenset({0, 1, 2}), 0, {}, {})
    assert ops(done.method.nodes) == [DELEGATE]
    assert turned.type == done.partitions[0].graph.outputs[0].type


def test_a_view_at_either_border_stays_outside():
    turned, negated = value(1, 4, 2), value(2, 4, 2)
    step = method(
        node("aten::transpose.int", X, 0, 1, to=turned),
        node("aten::neg", turned, to=negated),
        node("aten::transpose.int", negated, 0, 1, to=C),
        inputs=(X,),
        outputs=(C,),
    )
    done = outline(step, frozenset({1, 2}), 0, {}, {})
    assert ops(done.method.nodes) == [
        "aten::transpose.int",
        "aten::clone",
        DELEGATE,
        "aten::transpose.int",
    ]
    assert done.partitions[0].graph.inputs == (done.method.nodes[1].outputs[0],)


def test_a_view_that_two_partitions_read_is_cloned_once():
    turned = value(1, 4, 2)
    step = method(
        node("aten::transpose.int", X, 0, 1, to=turned),
        node("aten::neg", turned, to=value(2, 4, 2)),
        node("aten::cumsum", value(2, 4, 2), 0, to=value(3, 4, 2)),
        node("aten::add.Tensor", turned, value(3, 4, 2), 1, to=value(4, 4, 2)),
        inputs=(X,),
        outputs=(value(4, 4, 2),),
    )
    done = outline(step, frozenset({1, 3}), 0, {}, {})
    assert ops(done.method.nodes).count("aten::clone") == 1
    assert ops(done.method.nodes).count(DELEGATE) == 2


def test_constants_go_into_the_partition_and_leave_the_method():
    weight = value(9, 4)
    step = method(
        node("aten::mul.Tensor", X, weight, to=A),
        inputs=(X,),
        constants=((weight, "w"),),
        outputs=(A,),
    )
    done = outline(step, frozenset({0}), 0, {}, {})
    assert done.partitions[0].graph.constants == ((weight, "w"),)
    assert done.method.constants == ()
    assert done.partitions[0].graph.inputs == (X,)


def test_a_partition_that_reads_a_state_runs_before_the_write_to_it():
    old, new, read = value(1, *CACHE), value(2, *CACHE), value(3, *CACHE)
    row, slot = value(4, 1, 1, 4), value(5, 1, dtype=I64)
    step = method(
        node("aten::neg", old, to=read),
        node("aten::index_copy", old, 1, slot, row, to=new),
        node("aten::exp", read, to=value(6, *CACHE)),
        inputs=(row, slot),
        state_in=((old, "k"),),
        state_out=((new, "k"),),
        outputs=(value(6, *CACHE),),
    )
    done = outline(step, frozenset({0, 2}), 0, {}, {})
    assert ops(done.method.nodes) == [DELEGATE, "aten::index_copy"]


def test_a_write_is_in_no_partition_with_what_its_readers_need():
    """The write is on no way from the reader, but must come after it."""
    old, read, row, new = (value(i, 4, 4) for i in range(6, 10))
    steps = (
        node("aten::neg", X, to=A),
        node("aten::mm", A, old, to=read),
        node("aten::exp", row, to=new),
    )
    step = method(
        *steps,
        inputs=(X, row),
        state_in=((old, "k"),),
        state_out=((new, "k"),),
        outputs=(read,),
    )
    together = outline(step, frozenset({0, 2}), 0, {}, {})
    assert len(together.partitions) == 1
    apart = outline(step, frozenset({0, 2}), 0, {}, {2: {1}})
    inside = [ops(partition.graph.nodes) for partition in apart.partitions]
    assert inside == [["aten::neg"], ["aten::exp"]]


def test_a_partition_that_makes_a_new_content_is_lent_the_old_one():
    old, row, new = value(6, 4, 4), value(7, 4, 4), value(8, 4, 4)
    step = method(
        node("aten::exp", row, to=new),
        inputs=(row,),
        state_in=((old, "k"),),
        state_out=((new, "k"),),
    )
    (partition,) = outline(step, frozenset({0}), 0, {}, {}).partitions
    assert partition.graph.inputs == (row, old)


def cached():
    """Return a step that writes a row of a state, at a view of a place, and negates."""
    old, new, read = value(1, *CACHE), value(2, *CACHE), value(3, *CACHE)
    row, slot = value(4, 1, 1, 4), value(5, 1, dtype=I64)
    place = value(6, 1, dtype=I64)
    return method(
        node("aten::alias", slot, to=place),
        node("aten::index_copy", old, 1, place, row, to=new),
        node("aten::neg", new, to=read),
        inputs=(row, slot),
        state_in=((old, "k"),),
        state_out=((new, "k"),),
        outputs=(read,),
    )


def test_a_backend_in_place_takes_writes_and_makes_views_once_more():
    step = cached()
    done = outline(step, frozenset({1, 2}), 0, {}, {1: set()}, in_place=True)
    assert set(ops(done.method.nodes)) == {"aten::alias", DELEGATE}
    (partition,) = done.partitions
    assert ops(partition.graph.nodes) == [
        "aten::alias",
        "aten::index_copy",
        "aten::neg",
    ]
    slot, old = step.inputs[1], step.state_in[0][0]
    assert {old, slot, step.inputs[0]} == set(partition.graph.inputs)
    assert partition.graph.in_place


def test_a_backend_that_is_not_in_place_gets_no_update_of_a_state():
    done = outline(cached(), frozenset({1, 2}), 0, {}, {1: set()})
    assert ops(done.method.nodes) == ["aten::alias", "aten::index_copy", DELEGATE]
    assert not done.partitions[0].graph.in_place


pairs = st.tuples(st.integers(0, 99), st.integers(0, 99), st.booleans())


@st.composite
def graphs(draw):
    """A method of random additions and views, and a random choice of its nodes."""
    nodes, taken = [], set()
    for index, (left, right, chosen) in enumerate(draw(st.lists(pairs, max_size=24))):
        a, b = value(left % (index + 1), 4, 4), value(right % (index + 1), 4, 4)
        result = value(index + 1, 4, 4)
        if left % 4:
            nodes.append(node("aten::add.Tensor", a, b, 1, to=result))
        else:
            nodes.append(node("aten::transpose.int", a, 0, 1, to=result))
        taken |= {index} if chosen else set()
    last = value(len(nodes), 4, 4)
    random = method(*nodes, inputs=(value(0, 4, 4),), outputs=(last,))
    return random, frozenset(taken)


@given(graphs())
def test_any_choice_of_nodes_gives_an_order_that_runs(given_graph):
    step, taken = given_graph
    done = outline(step, taken, 0, {}, {})
    verify(program(done.method, *(partition.graph for partition in done.partitions)))


@given(graphs())
def test_any_choice_of_nodes_gives_partitions_that_run_alone(given_graph):
    step, taken = given_graph
    for partition in outline(step, taken, 0, {}, {}).partitions:
        verify(program(replace(partition.graph, block=None)))


@given(graphs())
def test_nothing_is_lost_and_nothing_runs_twice(given_graph):
    step, taken = given_graph
    done = outline(step, taken, 0, {}, {})
    inside = [n for partition in done.partitions for n in partition.graph.nodes]
    outside = [n for n in done.method.nodes if n.op != DELEGATE]
    made = [
        v.id for n in inside + outside for v in n.outputs if v.id <= len(step.nodes)
    ]
    assert sorted(made) == [n.outputs[0].id for n in step.nodes]
