from dataclasses import replace

import pytest
import torch
from golden import assert_golden
from interpreter import interpret
from ir_samples import F32, I64, method, node, program, value

from kvc.compiler.ir import Program, State
from kvc.compiler.ir.text import program_text
from kvc.compiler.ir.verify import verify
from kvc.compiler.passes.quantize_caches import QuantizeCaches
from kvc.schema.dtypes import DType
from kvc.schema.errors import CacheDtypeRefused
from kvc.schema.torch_ops.int8_rows import Int8Rows
from kvc.schema.types import TensorType

SHAPE = (1, 2, 8, 4)
Q, NEW = value(0, 1, 4, 1, 4), value(1, 1, 2, 1, 4)
START, LENGTH = value(2, 1, dtype=I64), value(3, 1, dtype=I64)
K, V = value(4, *SHAPE), value(5, *SHAPE)
K2, V2, OUT = value(6, *SHAPE), value(7, *SHAPE), value(8, 1, 4, 1, 4)
PLAIN = (None, True, *[None] * 6, "linear", None, None, None, 0)
WRITE_K = node("kvc::cache_update", K, NEW, START, -2, "linear", None, 0, to=K2)
WRITE_V = node("kvc::cache_update", V, NEW, START, -2, "linear", None, 0, to=V2)
ATTEND = node("kvc::attention", Q, K2, V2, LENGTH, *PLAIN, to=OUT)
WRITES = (WRITE_K, WRITE_V)
ALL = (*WRITES, ATTEND)
AGAIN = value(9, *SHAPE)
NEG = node("aten::neg", K, to=AGAIN)


def made(*nodes, out=((K2, "k"), (V2, "v")), outputs=(OUT,), name="step"):
    return method(
        *nodes,
        inputs=(Q, NEW, START, LENGTH),
        outputs=outputs,
        state_in=((K, "k"), (V, "v")),
        state_out=out,
        name=name,
    )


def cached(*methods, **changes) -> Program:
    """Return a program whose states k and v are caches of one shape."""
    kept = program(*methods, states=("k", "v"), shape=SHAPE)
    states = (replace(kept.states[0], **changes), *kept.states[1:])
    verify(kept)
    return replace(kept, states=states)


def quantized(before: Program) -> Program:
    after = QuantizeCaches().run(before)
    verify(after)
    return after


def refusal(before: Program) -> CacheDtypeRefused:
    with pytest.raises(CacheDtypeRefused) as caught:
        QuantizeCaches().run(before)
    return caught.value


def test_before_and_after_are_as_agreed():
    before = cached(made(*ALL))
    after = quantized(before)
    text = f"# before\n{program_text(before)}\n# after\n{program_text(after)}"
    assert_golden("pass_quantize_caches", text)


def test_a_second_run_changes_nothing():
    after = quantized(cached(made(*ALL)))
    assert program_text(quantized(after)) == program_text(after)


def inputs(start: int) -> list[torch.Tensor]:
    torch.manual_seed(start)
    q, new = torch.randn(1, 4, 1, 4), torch.randn(1, 2, 1, 4)
    return [q, new, torch.tensor([start]), torch.tensor([start + 1])]


def run(one: Program, states: dict[str, torch.Tensor], count: int = 5):
    outputs = []
    for start in range(count):
        found, states, _ = interpret(one.methods[0], inputs(start), states)
        outputs += found
    return torch.cat(outputs, 2), states


def test_numbers_are_those_of_rows_rounded_before_they_are_written():
    before = cached(made(*ALL))
    zeros = {"k": torch.zeros(SHAPE), "v": torch.zeros(SHAPE)}
    scales = {"k.scale": torch.zeros(SHAPE[:3]), "v.scale": torch.zeros(SHAPE[:3])}
    bytes_ = {name: x.to(torch.int8) for name, x in zeros.items()}
    found, states = run(quantized(before), {**bytes_, **scales})
    _, plain = run(before, zeros)
    for name, exact in plain.items():
        held = Int8Rows(states[name], states[f"{name}.scale"]).widened(torch.float32)
        assert not torch.equal(held, exact)
        torch.testing.assert_close(held, exact, rtol=0, atol=3.0 / 254)
    rounded = [Int8Rows(states[n], states[f"{n}.scale"]) for n in "kv"]
    for start in range(5):
        q, length = inputs(start)[0], torch.tensor([start + 1])
        keys, values = (part.widened(torch.float32) for part in rounded)
        expected = torch.ops.kvc.attention(q, keys, values, length)
        torch.testing.assert_close(
            found[:, :, start : start + 1], expected, rtol=0, atol=1e-5
        )


def test_axes_may_be_swapped_between_a_cache_and_attention():
    laid = (1, 8, 2, 4)
    k, k2, new = value(4, *laid), value(6, *laid), value(1, 1, 1, 2, 4)
    seen, turned = value(10, *SHAPE), value(11, *SHAPE)
    nodes = (
        node("kvc::cache_update", k, new, START, 1, "linear", None, 0, to=k2),
        node("aten::transpose.int", k2, 1, -2, to=seen),
        node("aten::permute", k2, (0, 2, -3, 3), to=turned),
        node("kvc::attention", Q, seen, turned, LENGTH, *PLAIN, to=OUT),
    )
    step = method(
        *nodes,
        inputs=(Q, new, START, LENGTH),
        outputs=(OUT,),
        state_in=((k, "k"),),
        state_out=((k2, "k"),),
    )
    after = quantized(program(step, states=("k",), shape=laid))
    assert [str(s.type) for s in after.states] == [
        "int8[1, 8, 2, 4]",
        "float32[1, 8, 2]",
    ]
    attend = after.methods[0].nodes[-1]
    assert [str(v.type) for v in attend.inputs[1:3]] == ["int8[1, 2, 8, 4]"] * 2
    assert [str(v.type) for v in attend.inputs[4:]] == ["float32[1, 2, 8]"] * 2


def test_attention_may_read_a_part_of_each_row():
    part, out = value(9, 1, 2, 8, 3), value(8, 1, 4, 1, 3)
    nodes = (
        WRITE_K,
        node("aten::slice.Tensor", K2, 3, 0, 3, 1, to=part),
        node("kvc::attention", Q, K2, part, LENGTH, *PLAIN, to=out),
    )
    step = method(
        *nodes,
        inputs=(Q, NEW, START, LENGTH),
        outputs=(out,),
        state_in=((K, "k"),),
        state_out=((K2, "k"),),
    )
    after = quantized(program(step, states=("k",), shape=SHAPE))
    attend = after.methods[0].nodes[-1]
    types = [str(v.type) for v in attend.inputs[1:3]]
    assert types == ["int8[1, 2, 8, 4]", "int8[1, 2, 8, 3]"]
    keys, values = attend.inputs[4:]
    assert keys is values


def test_attention_over_a_part_of_the_slots_is_refused():
    part = value(9, 1, 2, 4, 4)
    cut = node("aten::slice.Tensor", V2, 2, 0, 4, 1, to=part)
    attend = node("kvc::attention", Q, part, part, LENGTH, *PLAIN, to=OUT)
    assert refusal(cached(made(*WRITES, cut, attend))).reader == cut.op


def test_a_cache_that_a_method_only_reads_and_one_that_it_leaves_alone():
    reads = made(
        replace(ATTEND, arguments=(Q, K, V, *ATTEND.arguments[3:])), out=(), name="look"
    )
    other = method(node("aten::neg", Q, to=OUT), inputs=(Q,), outputs=(OUT,), name="no")
    after = quantized(cached(made(*ALL), reads, other))
    assert after.methods[2] == other
    assert [v.type.dtype for v in after.methods[1].nodes[0].inputs[4:]] == [F32, F32]


def test_names_that_are_taken_are_not_given_to_scales():
    before = cached(made(*ALL))
    other = State("k.scale", TensorType(I64, (1,)), None)
    after = quantized(replace(before, states=(other, *before.states)))
    names = [state.name for state in after.states]
    assert names == ["k.scale", "k", "k.scale_", "v", "v.scale"]


def test_a_state_that_is_no_cache_stays_as_it_is():
    h, h2 = value(20, 3, 3), value(21, 3, 3)
    step = made(*ALL, node("aten::neg", h, to=h2))
    step = replace(
        step,
        state_in=(*step.state_in, (h, "h")),
        state_out=(*step.state_out, (h2, "h")),
    )
    kept = State("h", TensorType(F32, (3, 3)), None)
    before = cached(made(*ALL))
    after = quantized(replace(before, methods=(step,), states=(*before.states, kept)))
    assert after.states[-1] == kept


READERS = {
    "another op": (made(*ALL, NEG), "aten::neg", "model:9", "reads it"),
    "the new value": (
        made(*ALL, node("aten::abs", V2, to=value(9, *SHAPE))),
        "aten::abs", "model:9", "reads it",
    ),
    "one of a list": (
        made(*ALL, node("aten::cat", (V, K), 1, to=value(9, 1, 4, 8, 4))),
        "aten::cat", "model:9", "reads it",
    ),
    "a view": (
        made(*ALL, node("aten::view", K, (1, 64), to=value(9, 1, 64))),
        "aten::view", "model:9", "reads it",
    ),
    "rows turned into columns": (
        made(*ALL, node("aten::transpose.int", K2, 2, 3, to=value(9, 1, 2, 4, 8))),
        "aten::transpose.int", "model:9", "reads it",
    ),
    "as queries": (
        made(*ALL, replace(ATTEND, arguments=(K, K2, V2, LENGTH, *PLAIN), outputs=(AGAIN,))),  # noqa: E501
        "kvc::attention", "model:8", "reads it",
    ),
    "as what is written": (
        made(
            *ALL, node("kvc::cache_update", V, K, START, 2, "linear", None, 0, to=AGAIN)
        ),
        "kvc::cache_update", "model:9", "reads it",
    ),
    "the caller": (made(*ALL, outputs=(OUT, K2)), "", "", "returns it"),
    "another state": (made(*ALL, out=((K2, "k"), (K2, "v"))), "", "", "copies it to v"),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_another_reader_is_named_with_its_line(name: str):
    step, reader, source, reason = READERS[name]
    error = refusal(cached(step))
    assert (error.method, error.reader, error.source) == ("step", reader, source)
    assert reason in error.reason
    assert "cannot be a cache of another dtype: method step" in str(error)
    assert not source or f"{reader} at {source} " in str(error)


def test_keys_of_a_cache_with_values_of_none_are_refused():
    given = value(12, *SHAPE)
    step = method(
        WRITE_K,
        node("kvc::attention", Q, K2, given, LENGTH, *PLAIN, to=OUT),
        inputs=(Q, NEW, START, LENGTH, given),
        outputs=(OUT,),
        state_in=((K, "k"),),
        state_out=((K2, "k"),),
    )
    error = refusal(program(step, states=("k",), shape=SHAPE))
    assert (error.reader, error.source) == ("kvc::attention", "model:8")
    assert "its keys beside values that are not in a cache" in error.reason


def test_another_writer_is_named():
    wiped = made(
        node("aten::neg", K, to=value(9, *SHAPE)),
        out=((value(9, *SHAPE), "k"),),
        outputs=(),
        name="wipe",
    )
    error = refusal(cached(made(*ALL), wiped))
    assert (error.state, error.method, error.reader) == ("k", "wipe", "aten::neg")
    assert "overwrites it" in error.reason


@pytest.mark.parametrize("axis", [3, -1])
def test_writes_of_parts_of_rows_are_refused(axis: int):
    column = value(12, 1, 2, 8, 1)
    write = node("kvc::cache_update", K, column, START, axis, "linear", None, 0, to=K2)
    step = method(
        write,
        node("kvc::attention", Q, K2, K2, LENGTH, *PLAIN, to=OUT),
        inputs=(Q, START, LENGTH, column),
        outputs=(OUT,),
        state_in=((K, "k"),),
        state_out=((K2, "k"),),
    )
    error = refusal(program(step, states=("k",), shape=SHAPE))
    assert (error.reader, error.source) == ("kvc::cache_update", "model:6")
    assert "not whole rows" in error.reason


def test_a_stack_of_caches_that_attention_reads_in_parts_is_refused():
    stack, part = value(4, 2, *SHAPE), value(9, *SHAPE)
    step = method(
        node("aten::select.int", stack, 0, 1, to=part),
        node("kvc::attention", Q, part, part, LENGTH, *PLAIN, to=OUT),
        inputs=(Q, LENGTH),
        outputs=(OUT,),
        state_in=((stack, "both"),),
    )
    error = refusal(program(step, states=("both",), shape=(2, *SHAPE)))
    assert (error.state, error.reader) == ("both", "aten::select.int")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"grows": 2}, "changes from call to call"), ({"initial": "x"}, "as zeros")],
)
def test_what_a_cache_begins_as_or_how_it_grows_can_be_in_the_way(changes, reason):
    error = refusal(cached(made(*ALL), **changes))
    assert error.state == "k"
    assert reason in error.reason


def test_a_program_without_caches_is_refused_and_one_without_states_is_not():
    h, h2 = value(20, 3), value(21, 3)
    step = method(
        node("aten::neg", h, to=h2), state_in=((h, "h"),), state_out=((h2, "h"),)
    )
    error = refusal(program(step, states=("h",), shape=(3,)))
    assert "any state of this model" in str(error)
    assert "none is written by kvc::cache_update" in error.reason
    stateless = program(
        method(node("aten::neg", Q, to=OUT), inputs=(Q,), outputs=(OUT,))
    )
    assert quantized(stateless) == stateless


def test_integers_are_no_caches():
    ids = value(4, *SHAPE, dtype=DType.INT64)
    ids2, new = (
        value(6, *SHAPE, dtype=DType.INT64),
        value(1, 1, 2, 1, 4, dtype=DType.INT64),
    )
    write = node("kvc::cache_update", ids, new, START, 2, "linear", None, 0, to=ids2)
    step = made(*ALL)
    step = method(
        write, inputs=(new, START), state_in=((ids, "ids"),), state_out=((ids2, "ids"),)
    )
    kept = State("ids", TensorType(DType.INT64, SHAPE), None)
    before = replace(program(step), states=(kept,))
    assert "any state" in str(refusal(before))
