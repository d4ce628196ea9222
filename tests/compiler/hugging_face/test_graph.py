"""What a compiled model is made of: one pass over the cache, few native calls."""

import pytest
from hf_folders import tiny_llama

from kvc.compiler import CacheConfig, export_hf
from kvc.schema.types import symbols_in

LAYERS = 2


@pytest.fixture(scope="module")
def program():
    model = tiny_llama(num_hidden_layers=LAYERS)
    cache = CacheConfig(max_length=64)
    return export_hf(model, recipe="xnnpack_q8", cache=cache).program


def graphs(program):
    return {method.name: method.graph for method in program.methods}


def test_no_value_has_the_capacity_but_the_caches(program):
    for graph in graphs(program).values():
        sized = [v.type for v in graph.values if "capacity" in symbols_in([v.type])]
        assert len(sized) == 2 * 2 * LAYERS  # keys and values, before and after
        assert {str(kind) for kind in sized} == {"float32[1, 2, capacity, 8]"}


def test_keys_are_never_repeated_for_the_heads_that_share_them(program):
    for method in program.methods:
        found = [method.graph, *(block.graph for block in method.blocks)]
        kinds = [str(v.type) for graph in found for v in graph.values]
        assert not any(kind.startswith("float32[1, 4, capacity") for kind in kinds)
        ops = [i.op for graph in found for i in graph.instructions]
        assert ops.count("kvc::attention") == LAYERS


def test_a_decode_step_is_two_parts_a_layer_and_nothing_between_them(program):
    ops = [i.op for i in graphs(program)["decode"].instructions]
    assert {*ops} == {"kvc::delegate", "aten::select.int"}  # a view of the last logits
    assert ops.count("kvc::delegate") <= 2 * (LAYERS + 2)


def test_norms_are_one_node_each(program):
    (decode,) = (m for m in program.methods if m.name == "decode")
    number = program.methods.index(decode)
    parts = [d.block for d in program.delegates if d.method == number]
    graphs = [decode.blocks[block].graph for block in parts]
    ops = [instruction.op for graph in graphs for instruction in graph.instructions]
    assert ops.count("aten::rms_norm") == 2 * LAYERS + 1
    assert "aten::rsqrt" not in ops


def test_writes_happen_in_place_and_the_position_counts(program):
    assert [state.kind.name for state in program.states] == (
        ["COUNTER"] + ["LINEAR"] * 2 * LAYERS
    )
    for method in program.methods:
        assert {update.reason for update in method.updates} == {""}
    assert program.position is not None
