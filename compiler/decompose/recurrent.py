"""LSTM, GRU and RNN over a dynamic number of steps, as scans.

torch traces its recurrent layers for one number of steps, which it unrolls. In: a call
of a recurrent layer over a dynamic length. Out: the results of the call, computed by a
`scan` for each layer and direction, which updates the carried state in place. Sums may
round differently than in torch's own loop.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import SymInt, Tensor
from torch._higher_order_ops.scan import scan
from torch.nn.functional import linear

# Carried state, gates of x, gates of h -> the new carried state, h first.
Cell = Callable[[Sequence[Tensor], Tensor, Tensor], list[Tensor]]


def _lstm(carried: Sequence[Tensor], given: Tensor, kept: Tensor) -> list[Tensor]:
    """Return the next h and c of an LSTM, each [batch, hidden].

    `given` and `kept` are the gates computed from x and from h, [batch, 4 * hidden].
    """
    i, f, g, o = (given + kept).chunk(4, 1)
    c = f.sigmoid() * carried[1] + i.sigmoid() * g.tanh()
    return [o.sigmoid() * c.tanh(), c]


def _gru(carried: Sequence[Tensor], given: Tensor, kept: Tensor) -> list[Tensor]:
    """Return the next h of a GRU, [batch, hidden].

    `given` and `kept` are the gates computed from x and from h, [batch, 3 * hidden].
    """
    (r, z, n), (kept_r, kept_z, kept_n) = given.chunk(3, 1), kept.chunk(3, 1)
    new = (n + (r + kept_r).sigmoid() * kept_n).tanh()
    return [new + (z + kept_z).sigmoid() * (carried[0] - new)]


def _tanh(_: Sequence[Tensor], given: Tensor, kept: Tensor) -> list[Tensor]:
    return [(given + kept).tanh()]


def _relu(_: Sequence[Tensor], given: Tensor, kept: Tensor) -> list[Tensor]:
    return [(given + kept).relu()]


def _run(
    cell: Cell,
    x: Tensor,
    hx: Tensor | Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...] | None:
    """Run all layers; return None for calls that are left to torch.

    Args:
        cell: computes the next state of a layer.
        x: the inputs, [length, batch, width], or [batch, length, width] if
            `batch_first`.
        hx: h, or h and c, each [layers * directions, batch, hidden].
        params: for each layer and direction: the weights for x and for h, then optional
            biases of both, then an optional projection of h.
        has_biases: whether `params` has biases.
        num_layers: number of layers.
        dropout: probability of dropout between layers, if `train`.
        train: whether dropout is active.
        bidirectional: whether each layer runs backwards too.
        batch_first: whether the batch comes first in x and in the result.
    """
    length: object = x.shape[1 if batch_first else 0]
    packed = isinstance(params, Tensor)
    if packed or not isinstance(length, SymInt) or (train and dropout):
        return None
    starts = [hx] if isinstance(hx, Tensor) else list(hx)
    ends: list[list[Tensor]] = []
    ways = 2 if bidirectional else 1
    each = len(params) // (num_layers * ways)
    rows = x.transpose(0, 1) if batch_first else x
    for layer in range(num_layers):
        made = []
        for way in range(ways):
            k = layer * ways + way
            weights = params[k * each : (k + 1) * each]
            start = [state[k].clone() for state in starts]
            out, end = _scan(cell, rows, start, weights, has_biases, backwards=way == 1)
            made.append(out)
            ends.append(end)
        rows = torch.cat(made, -1) if ways == 2 else made[0]
    last = [torch.stack(states) for states in zip(*ends, strict=True)]
    return (rows.transpose(0, 1) if batch_first else rows, *last)


def _scan(
    cell: Cell,
    rows: Tensor,
    start: list[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    backwards: bool,
) -> tuple[Tensor, list[Tensor]]:
    """Run one layer in one direction; return h after each step, and the last state."""
    of_x, of_h, *rest = weights
    bias_x, bias_h = rest[:2] if has_biases else (None, None)
    projection = rest[-1] if len(rest) % 2 else None

    def step(carried: list[Tensor], given: Tensor) -> tuple[list[Tensor], Tensor]:
        h, *others = cell(carried, given, linear(carried[0], of_h, bias_h))
        h = h if projection is None else linear(h, projection)
        return [h, *others], h.clone()

    gates = linear(rows, of_x, bias_x)
    end, out = scan(step, start, gates.flip(0) if backwards else gates)
    return out.flip(0) if backwards else out, list(end)


RECURRENT: dict[Callable[..., object], Callable[..., object]] = {
    torch.lstm: partial(_run, _lstm),
    torch.gru: partial(_run, _gru),
    torch.rnn_tanh: partial(_run, _tanh),
    torch.rnn_relu: partial(_run, _relu),
}
