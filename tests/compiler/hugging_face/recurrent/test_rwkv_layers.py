"""RWKV's layers: from any state, with padding, rescaled or not, and put back."""

import pytest
import torch
from hf_models import build
from torch import Tensor
from transformers.models.rwkv import modeling_rwkv as rwkv

from kvc.compiler.hugging_face.reading.calls import ModelCall, attending, current_call
from kvc.compiler.hugging_face.recurrent.rwkv_layers import adapted_rwkv

ROWS, WIDTH, SUMS, LAYER = 2, 64, 64, 2


class States:
    """A cache of one layer: the tokens before, and sums."""

    def __init__(self, shifted: list[Tensor], sums: Tensor) -> None:
        self.shifted, self.sums = shifted, sums

    def get_recurrent_state(self, number: int) -> None:
        assert number == LAYER
        current_call().recurrent = self.sums

    def update_recurrent_state(self, state: Tensor, number: int) -> None:
        self.sums = state

    def update_conv_state(
        self, inputs: Tensor, number: int, state_idx: int, conv_kernel_size: int
    ) -> Tensor:
        assert (number, conv_kernel_size) == (LAYER, 1)
        whole = torch.cat([self.shifted[state_idx][..., None], inputs], -1)
        self.shifted[state_idx] = whole[..., -1]
        return whole


def states(generator, held: bool) -> tuple[States, list[Tensor]]:
    """Return states as kvc and as transformers keep them: after no tokens, or some."""
    if not held:
        shifted, sums = torch.zeros(2, ROWS, WIDTH), torch.zeros(ROWS, 3, SUMS)
        greatest = torch.full((ROWS, SUMS), -1e30)
    else:
        shifted = torch.randn(2, ROWS, WIDTH, generator=generator)
        sums = torch.randn(ROWS, 3, SUMS, generator=generator)
        sums[:, 1] = sums[:, 1].abs() + 1
        greatest = sums[:, 2]
    own = States(list(shifted), sums)
    parts = [shifted[1], shifted[0], sums[:, 0], sums[:, 1], greatest]
    theirs = [part[..., None].repeat(1, 1, LAYER + 1) for part in parts]
    return own, theirs


def kvcs(model, hidden, own, row_lengths=None) -> tuple[Tensor, Tensor]:
    block = model.rwkv.blocks[LAYER]
    start = torch.zeros(ROWS, dtype=torch.int64)
    call = ModelCall(start, start, row_lengths)
    with torch.no_grad(), adapted_rwkv(model), attending(call):
        mixed, _ = block.attention(hidden, state=own, use_cache=True)
        made, _ = block.feed_forward(hidden, state=own)
    return mixed, made


@pytest.mark.parametrize("seq", [1, 7])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("rescaled", [False, True])
def test_layers_go_on_from_a_state(seq, held, rescaled):
    generator = torch.Generator().manual_seed(3)
    model = build("rwkv").eval()
    hidden = 3 * torch.randn(ROWS, seq, WIDTH, generator=generator)
    own, theirs = states(generator, held)
    if rescaled:
        model.rwkv._rescale_layers()
    found = kvcs(model, hidden, own)

    block = model.rwkv.blocks[LAYER]
    model.rwkv._rescale_layers()
    if seq == 1:  # transformers has no rows here
        wanted = []
        for row in range(ROWS):
            state = [part[row : row + 1].clone() for part in theirs]
            mixed, _ = block.attention(hidden[row : row + 1], state, use_cache=True)
            made, _ = block.feed_forward(hidden[row : row + 1], state)
            wanted.append((mixed, made, *state))
        mixed, made, *theirs = map(torch.cat, zip(*wanted, strict=True))
    else:
        with torch.no_grad():
            mixed, _ = block.attention(hidden, theirs, use_cache=True)
            made, _ = block.feed_forward(hidden, theirs)

    assert torch.allclose(found[0], mixed, rtol=1e-5, atol=1e-6)
    assert torch.allclose(found[1], made, rtol=1e-5, atol=1e-6)
    left = [own.shifted[1], own.shifted[0], *own.sums.unbind(1)]
    for one, other in zip(left, theirs, strict=True):
        assert torch.allclose(one, other[..., LAYER], rtol=1e-5, atol=1e-5)


def test_keys_that_are_very_small_count_from_the_first_token_on():
    model, generator = build("rwkv").eval(), torch.Generator().manual_seed(4)
    hidden = torch.randn(ROWS, 3, WIDTH, generator=generator)
    model.rwkv.blocks[LAYER].attention.key.weight.data.mul_(1e4)
    own, _ = states(generator, held=False)
    mixed, _ = kvcs(model, hidden, own)
    assert mixed.isfinite().all()


def test_padding_leaves_sums_as_they_are():
    model, generator = build("rwkv").eval(), torch.Generator().manual_seed(5)
    hidden = torch.randn(ROWS, 5, WIDTH, generator=generator)
    (padded, _), before = states(generator, held=True), torch.Generator().manual_seed(5)
    torch.randn(ROWS, 5, WIDTH, generator=before)
    short, _ = states(before, held=True)
    kept = padded.sums.clone()
    mixed, _ = kvcs(model, hidden, padded, torch.tensor([3, 0]))
    wanted, _ = kvcs(model, hidden[:, :3], short)
    assert torch.allclose(mixed[0, :3], wanted[0], atol=1e-6)
    assert torch.allclose(padded.sums[0], short.sums[0], atol=1e-6)
    assert torch.equal(padded.sums[1], kept[1])


def test_layers_and_weights_are_put_back():
    model = build("rwkv").eval()
    block, weights = model.rwkv.blocks[LAYER], [p.clone() for p in model.parameters()]
    with adapted_rwkv(model):
        assert "forward" in vars(block.attention)
        assert model.rwkv.layers_are_rescaled
    assert "forward" not in vars(block.attention)
    assert not model.rwkv.layers_are_rescaled
    assert all(map(torch.equal, weights, model.parameters()))
    assert rwkv.RwkvSelfAttention.forward is type(block.attention).forward
