"""What a method's memory has to hold before it is written into a file."""

import pytest
from ir_samples import method, node, value

from kvc.compiler.emit.graph import emit_graph
from kvc.schema.errors import PlanFailed


def turned(*steps, end, inputs=()):
    """A method whose state `a` becomes value `end`."""
    kept = {"state_in": ((value(0, 3, 3), "a"),), "state_out": ((end, "a"),)}
    return method(*steps, inputs=inputs, **kept)


def test_a_content_that_is_a_view_is_not_what_its_memory_holds():
    view = value(1, 3, 3)
    made = turned(node("aten::transpose.int", value(0, 3, 3), 0, 1, to=view), end=view)
    with pytest.raises(PlanFailed, match="new content of a lies elsewhere"):
        emit_graph(made, {}, {"a": 0}, ())


def test_a_write_through_a_shape_that_it_gets_back_is_its_content():
    flat, filled, back = value(1, 9), value(2, 9), value(3, 3, 3)
    made = turned(
        node("aten::view", value(0, 3, 3), (9,), to=flat),
        node("aten::copy", flat, value(4, 9), to=filled),
        node("aten::view", filled, (3, 3), to=back),
        end=back,
        inputs=(value(4, 9),),
    )
    assert len(emit_graph(made, {}, {"a": 0}, ()).instructions) == 3
