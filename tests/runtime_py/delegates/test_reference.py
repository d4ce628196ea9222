"""Delegated partitions, run by the reference implementation."""

from dataclasses import replace

import numpy as np
import pytest
from delegated_partitions import delegated_program, partition_graph
from hand_built import write_bundle

from kvc.runtime import KernelFailed, load
from kvc.runtime.delegates.partition_memory import place_outputs
from kvc.schema.errors import BadProgram
from kvc.schema.graph import Instruction, Ref

SCALE = np.array([1, 2, 3, -4], np.float32)


@pytest.mark.parametrize("seq", [1, 3, 8])
def test_a_delegated_partition_computes_what_its_block_says(tmp_path, seq):
    x = np.linspace(-1, 1, seq * 4, dtype=np.float32).reshape(seq, 4)
    with load(write_bundle(tmp_path / "d.kvc", delegated_program())) as opened:
        for _ in range(2):
            turned, soft, same = opened.forward(x)
            product = x * SCALE
            assert np.array_equal(turned, product.reshape(4, seq))
            powers = np.exp(product - product.max(1, keepdims=True))
            assert np.allclose(soft, powers / powers.sum(1, keepdims=True), atol=1e-6)
            assert np.array_equal(same, x)


def test_two_sizes_in_turn_do_not_disturb_each_other(tmp_path):
    a, b = np.ones((2, 4), np.float32), np.full((5, 4), 2, np.float32)
    with load(write_bundle(tmp_path / "d.kvc", delegated_program())) as opened:
        first = opened.forward(a)[0]
        assert np.array_equal(opened.forward(b)[0], (b * SCALE).reshape(4, 5))
        assert np.array_equal(opened.forward(a)[0], first)


def test_outputs_are_bound_without_a_copy_where_they_can_be():
    turned = np.zeros((4, 3), np.float32)
    soft, same = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)
    given = place_outputs(partition_graph(), {"seq": 3}, [turned, soft, same])
    assert given[2].ctypes.data == turned.ctypes.data
    assert given[2].shape == (3, 4)
    assert given[4] is soft
    assert sorted(given) == [2, 4]


def test_an_op_that_the_backend_does_not_take_is_refused(tmp_path):
    graph = partition_graph()
    steps = (
        *graph.instructions[:2],
        Instruction("aten::cumsum", (Ref(2), 1), (4,), ""),
    )
    built = delegated_program(graph=replace(graph, instructions=steps))
    with (
        load(write_bundle(tmp_path / "d.kvc", built)) as opened,
        pytest.raises(BadProgram, match="xnnpack does not take aten::cumsum"),
    ):
        opened.forward(np.ones((2, 4), np.float32))


def test_a_failure_inside_a_delegate_names_the_inner_instruction(tmp_path, monkeypatch):
    from kvc.runtime.execution import frames
    from kvc.runtime.kernels.table import load_kernels

    def broken(*_):
        raise RuntimeError("out of luck")

    kernels = {**load_kernels(), "aten::softmax.int": broken}
    monkeypatch.setattr(frames, "load_kernels", lambda: kernels)
    path = write_bundle(tmp_path / "d.kvc", delegated_program())
    inner = "instruction 2, aten::softmax.int at model:42: out of luck"
    opened = load(path, reference=True)
    with opened, pytest.raises(KernelFailed, match=inner):
        opened.forward(np.ones((2, 4), np.float32))
