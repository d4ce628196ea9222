"""Layers of recurrences of their own: from any state, with padding, and put back."""

import pytest
import torch
from hf_models import build
from torch import Tensor
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.minimax import modeling_minimax as minimax

from kvc.compiler.hugging_face.reading.calls import ModelCall, attending, current_call
from kvc.compiler.hugging_face.recurrent import recurrences
from kvc.compiler.hugging_face.recurrent.recurrent_layers import adapted_layers
from kvc.compiler.hugging_face.recurrent.row_states import state_before

LENGTHS = (1, 5, 64, 70)
ROWS = 2


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(ROWS, *shape, generator=generator)


def call(row_lengths=None, recurrent=None) -> ModelCall:
    start = torch.zeros(ROWS, dtype=torch.int64)
    return ModelCall(start, start, row_lengths, recurrent=recurrent)


def near(found, wanted) -> bool:
    return torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)


class States:
    """A cache of one layer, whose convolution has seen nothing."""

    def __init__(self, state: Tensor) -> None:
        self.state = state

    def get_recurrent_state(self, number: int) -> None:
        assert number == 0
        current_call().recurrent = self.state

    def update_recurrent_state(self, state: Tensor, number: int) -> None:
        self.state = state

    def update_conv_state(
        self, inputs: Tensor, number: int, conv_kernel_size: int
    ) -> Tensor:
        return torch.nn.functional.pad(inputs, (conv_kernel_size, 0))


def lightning(model, hidden, state, row_lengths=None):
    """Return results and the state after a call of MiniMax's layer, as kvc's."""
    cache = States(state)
    with torch.no_grad(), adapted_layers(model), attending(call(row_lengths)):
        out, _ = model.model.layers[0].self_attn(hidden, past_key_values=cache)
    return out, cache.state


@pytest.mark.parametrize("seq", LENGTHS)
def test_linear_attention_goes_on_from_a_state(seq, inputs):
    model, hidden, state = build("minimax"), inputs(seq, 64), inputs(4, 16, 16)
    own = minimax.MiniMaxCache()
    own.set_linear_cache(0, state.transpose(2, 3))
    with torch.no_grad():
        wanted, after = model.model.layers[0].self_attn(hidden, None, None, own)
    found, left = lightning(model, hidden, state)
    assert near(found, wanted)
    assert near(left.transpose(2, 3), after)


def test_padding_leaves_the_state_of_linear_attention(inputs):
    model, hidden, state = build("minimax"), inputs(5, 64), inputs(4, 16, 16)
    found, left = lightning(model, hidden, state, torch.tensor([3, 0]))
    wanted, after = lightning(model, hidden[:, :3], state)
    assert near(found[0, :3], wanted[0])
    assert near(left[0], after[0])
    assert torch.equal(left[1], state[1])


def griffin(model, hidden, state, positions, row_lengths=None):
    """Return results and the state after a call of RecurrentGemma's block."""
    cache, block = States(state), model.model.layers[0].temporal_block
    running = call(row_lengths)
    with torch.no_grad(), adapted_layers(model), attending(running):
        out, _ = block(hidden, positions, past_key_values=cache)
    return out, cache.state


@pytest.mark.parametrize("seq", [1, 5])
@pytest.mark.parametrize("first", [0, 3])
def test_a_gated_recurrence_goes_on_from_a_state(seq, first, inputs):
    model, hidden, state = build("recurrent_gemma"), inputs(seq, 64), inputs(64)
    state = state if first else torch.zeros_like(state)
    positions = torch.arange(first, first + seq).expand(ROWS, -1)
    block = model.model.layers[0].temporal_block
    found, left = griffin(model, hidden, state, positions)
    with torch.no_grad():
        gate = block.act_fn(block.linear_y(hidden))
        convolved = block.conv_1d(block.linear_x(hidden).transpose(1, 2))[..., :seq]
        block.rg_lru.recurrent_states = state
        gated = block.rg_lru(convolved.transpose(1, 2), positions)
        wanted = block.linear_out(gated * gate)
    assert near(found, wanted)
    assert near(left, block.rg_lru.recurrent_states)


def test_padding_leaves_the_state_of_a_gated_recurrence(inputs):
    model, hidden, state = build("recurrent_gemma"), inputs(5, 64), inputs(64)
    positions = torch.arange(4, 9).expand(ROWS, -1)
    _, left = griffin(model, hidden, state, positions, torch.tensor([3, 0]))
    _, after = griffin(model, hidden[:, :3], state, positions[:, :3])
    assert near(left[0], after[0])
    assert torch.equal(left[1], state[1])


def test_layers_are_put_back():
    model, own = build("minimax"), minimax.MiniMaxCache
    layer = model.model.layers[0].self_attn
    with adapted_layers(model):
        assert "forward" in vars(layer)
        assert minimax.MiniMaxCache is not own
    assert "forward" not in vars(layer)
    assert minimax.MiniMaxCache is own


@pytest.mark.parametrize("seq", LENGTHS)
def test_a_delta_rule_by_channels_goes_on_from_a_state(seq, inputs):
    query, key, value = inputs(seq, 4, 8), inputs(seq, 4, 8), inputs(seq, 4, 8)
    given = query, key, value, -inputs(seq, 4, 8).abs(), inputs(seq, 4).sigmoid()
    state = inputs(4, 8, 8)
    with attending(call(recurrent=state)):
        found = recurrences.channel_delta_rule(
            *given, output_final_state=True, use_qk_l2norm_in_kernel=True
        )
    wanted = kimi.recurrent_kimi_delta_attention(
        *given, state, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    assert near(found[0], wanted[0])
    assert near(found[1], wanted[1])


def test_padding_leaves_the_state_of_a_delta_rule_by_channels(inputs):
    given = [inputs(5, 4, 8) for _ in range(3)]
    given += [-inputs(5, 4, 8).abs(), inputs(5, 4).sigmoid()]
    state = inputs(4, 8, 8)
    with attending(call(torch.tensor([3, 0]), state)):
        _, left = recurrences.channel_delta_rule(*given, output_final_state=True)
    with attending(call(recurrent=state)):
        short = [tensor[:, :3] for tensor in given]
        _, after = recurrences.channel_delta_rule(*short, output_final_state=True)
    assert near(left[0], after[0])
    assert torch.equal(left[1], state[1])


def test_heads_that_are_computed_one_by_one_get_a_state_each(inputs):
    states, like = inputs(3, 4, 8), torch.zeros(ROWS, 1)
    with attending(call(recurrent=states)):
        for head in range(3):
            assert torch.equal(state_before(like, (4, 8)), states[:, head])
        assert current_call().take_recurrent() is None
