"""Recurrent layers by chunks, from any state and with padding."""

import pytest
import torch
from daily import RARELY, only
from hf_models import build
from transformers.models.mamba import modeling_mamba as mamba
from transformers.models.mamba2 import modeling_mamba2 as mamba2
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from kvc.compiler import CacheConfig, export_hf
from kvc.compiler.hugging_face.reading.calls import ModelCall, attending
from kvc.compiler.hugging_face.recurrent import recurrences
from kvc.runtime import load
from kvc.schema.errors import CompileError, UnsupportedModel

# Within a chunk, at its end, and over several.
LENGTHS = (1, 5, 64, 65, 150)
ROWS = 2


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(ROWS, *shape, generator=generator)


def call(state=None, row_lengths=None) -> ModelCall:
    start = torch.zeros(ROWS, dtype=torch.int64)
    return ModelCall(start, start, row_lengths, recurrent=state)


def near(found, wanted) -> bool:
    return torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)


def delta_inputs(inputs, seq):
    query, key, value = inputs(seq, 2, 16), inputs(seq, 2, 16), inputs(seq, 4, 8)
    return query, key, value, -inputs(seq, 4).abs(), inputs(seq, 4).sigmoid()


@pytest.mark.parametrize("seq", LENGTHS)
def test_the_gated_delta_rule_goes_on_from_a_state(seq, inputs):
    given, state = delta_inputs(inputs, seq), inputs(4, 16, 8)
    settings = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    with attending(call(state)):
        found = recurrences.gated_delta_rule(*given, **settings)
    rule = qwen.torch_recurrent_gated_delta_rule
    for one, other in zip(
        found, rule(*given, initial_state=state, **settings), strict=True
    ):
        assert near(one, other)


def test_the_gated_delta_rule_loses_no_digits_over_keys_that_are_alike(inputs):
    seq = 128
    key = inputs(1, 1, 16).expand(ROWS, seq, 1, 16).contiguous()
    given = (
        key,
        key,
        inputs(seq, 1, 8),
        torch.zeros(ROWS, seq, 1),
        torch.ones(ROWS, seq, 1),
    )
    with attending(call()):
        found, _ = recurrences.gated_delta_rule(*given, use_qk_l2norm_in_kernel=True)
    wanted, _ = qwen.torch_recurrent_gated_delta_rule(
        *given, use_qk_l2norm_in_kernel=True
    )
    assert near(found, wanted)


def space_inputs(inputs, seq):
    given = (
        inputs(seq, 8, 16),
        inputs(seq, 8),
        -torch.rand(8),
        *(inputs(seq, 2, 8), inputs(seq, 2, 8)),
    )
    settings = {"D": torch.randn(8), "dt_bias": torch.randn(8), "dt_softplus": True}
    return given, settings | {"return_final_states": True}


@pytest.mark.parametrize("seq", LENGTHS)
def test_state_spaces_with_heads_go_on_from_a_state(seq, inputs):
    (given, settings), state = space_inputs(inputs, seq), inputs(8, 16, 8)
    with attending(call(state)):
        found = recurrences.chunk_scan(*given, **settings)
    wanted = mamba2.mamba2_chunk_scan(
        *given, chunk_size=16, initial_states=state, **settings
    )
    for one, other in zip(found, wanted, strict=True):
        assert near(one, other)


@pytest.mark.parametrize("seq", LENGTHS)
def test_selective_scans_in_two_parts_are_one(seq, inputs):
    parts = [
        inputs(12, seq),
        inputs(12, seq),
        -torch.rand(12, 4),
        inputs(4, seq),
        inputs(4, seq),
    ]
    settings = {
        "D": torch.randn(12),
        "delta_bias": torch.randn(12),
        "delta_softplus": True,
    }
    settings |= {"return_last_state": True}
    gate, cut = inputs(12, seq), seq // 2
    wanted, _ = mamba.mamba_selective_scan(*parts, z=gate, **settings)
    state, found = None, []
    for begin, end in ((0, cut), (cut, seq)):
        if begin < end:
            given = [p if p.dim() == 2 else p[..., begin:end] for p in parts]
            with attending(call(state)):
                out, state = recurrences.selective_scan(
                    *given, z=gate[..., begin:end], **settings
                )
            found.append(out)
    assert near(torch.cat(found, -1), wanted)


def test_padding_leaves_a_state_as_it_is(inputs):
    """Of rows of 3 and 0 real tokens, the second keeps its state."""
    row_lengths = torch.tensor([3, 0])
    state = inputs(4, 16, 8)
    given = delta_inputs(inputs, 5)
    with attending(call(state, row_lengths)):
        _, after = recurrences.gated_delta_rule(*given, output_final_state=True)
    assert torch.equal(after[1], state[1])
    with attending(call(state)):
        real = [tensor[:, :3] for tensor in given]
        _, wanted = recurrences.gated_delta_rule(*real, output_final_state=True)
    assert near(after[0], wanted[0])
    state, (given, settings) = inputs(8, 16, 8), space_inputs(inputs, 5)
    with attending(call(state, row_lengths)):
        _, after = recurrences.chunk_scan(*given, **settings)
    assert torch.equal(after[1], state[1])


def test_only_functions_that_a_module_has_are_replaced_and_come_back():
    original = mamba2.mamba2_chunk_scan
    part = type("Part", (torch.nn.Module,), {"__module__": mamba2.__name__})()
    model = torch.nn.ModuleList([part])  # the whole is of another architecture
    with recurrences.own_recurrences(model):
        assert mamba2.mamba2_chunk_scan is recurrences.chunk_scan
        assert not hasattr(mamba2, "torch_chunk_gated_delta_rule")
    assert mamba2.mamba2_chunk_scan is original


@only(name=["mamba"])
@pytest.mark.parametrize(
    ("name", "function"),
    [("lfm2", "causal_conv1d_fn"), ("mamba", "mamba_selective_scan")],
)
def test_layers_that_compute_by_code_of_their_own_are_refused(
    name, function, monkeypatch
):
    monkeypatch.delitem(recurrences._OWN, function)
    model = build(name, shallow=True)
    with pytest.raises(CompileError, match="code of its own, which may not go on"):
        export_hf(model, cache=CacheConfig(32), prefill_chunk=8)


def test_what_may_say_something_about_the_result_is_refused(inputs):
    given = delta_inputs(inputs, 5)
    with attending(call()), pytest.raises(UnsupportedModel, match="with scale"):
        recurrences.gated_delta_rule(*given, scale=3.0)


def test_padding_may_hold_what_is_no_number(inputs):
    given, settings = space_inputs(inputs, 5)
    rows = torch.tensor([3, 5])
    with attending(call(row_lengths=rows)):
        wanted = recurrences.chunk_scan(*given, **settings)
    spoiled = list(given)
    spoiled[1] = given[1].clone()
    spoiled[1][0, 3:] = torch.nan
    with attending(call(row_lengths=rows)):
        found = recurrences.chunk_scan(*spoiled, **settings)
    assert torch.equal(found[0][0, :3], wanted[0][0, :3])
    assert torch.equal(found[1], wanted[1])


def test_half_precision_is_computed_in_float32(inputs):
    given, settings = space_inputs(inputs, 70)
    halves = [tensor.bfloat16() for tensor in given]
    with attending(call()):
        found, state = recurrences.chunk_scan(*halves, **settings)
        wanted, other = recurrences.chunk_scan(*[t.float() for t in halves], **settings)
    assert (found.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(found, wanted.bfloat16())
    assert torch.equal(state, other)


@RARELY
def test_a_batch_of_two_rows_at_the_most_compiles(tmp_path):
    model = build("mamba2", shallow=True)
    cache = CacheConfig(32, batch=2)
    export_hf(model, cache=cache, prefill_chunk=8).save(tmp_path / "two.kvc")
    tokens = torch.tensor([[3, 4, 5], [6, 7, 8]])
    with load(tmp_path / "two.kvc") as program, program.session(batch=2) as session:
        found = session.prefill(tokens)
    with torch.no_grad():
        wanted = model(tokens, use_cache=False).logits[:, -1]
    assert near(found, wanted)
