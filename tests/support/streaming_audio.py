"""Models that take sound chunk by chunk, with their past in buffers."""

import torch
from torch import Tensor, nn

CHANNELS, WIDTH = 3, 6


class RecurrentDenoiser(nn.Module):
    """Scales samples by a gate that two recurrent layers compute, as RNNoise does."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(CHANNELS, WIDTH, batch_first=True)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.gate = nn.Linear(WIDTH, CHANNELS)
        for name in ("heard", "hidden", "cell"):
            self.register_buffer(name, torch.zeros(1, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled samples of x; both are float32 [1, steps, CHANNELS]."""
        y, heard = self.gru(x, self.heard)
        z, (hidden, cell) = self.lstm(y, (self.hidden, self.cell))
        self.heard.copy_(heard)
        self.hidden.copy_(hidden)
        self.cell.copy_(cell)
        return x * self.gate(z).sigmoid()


class CausalConvolution(nn.Module):
    """A convolution over earlier and new samples; the earlier ones are in a buffer."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(CHANNELS, CHANNELS, 3, dilation=dilation)
        self.register_buffer("past", torch.zeros(1, CHANNELS, 2 * dilation))

    def forward(self, x: Tensor) -> Tensor:
        whole = torch.cat([self.past, x], -1)
        self.past.copy_(whole[..., -self.past.shape[-1] :])
        return self.convolution(whole)


class CausalStack(nn.Module):
    """Causal convolutions, each with a longer past than the last, as in WaveNet."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(CausalConvolution(d) for d in (1, 2, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Return x after all convolutions; both are float32 [1, CHANNELS, steps]."""
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x


class RingConvolution(nn.Module):
    """A causal convolution whose past frames are written where they lie.

    Frame `i` lies in slot `i % slots`. A chunk has `step` frames; the slots are as many
    as the kernel sees and a multiple of the chunk, so that a chunk lies in one piece.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, step: int) -> None:
        super().__init__()
        self.seen, self.step = kernel - 1 + step, step
        slots = -(-self.seen // step) * step
        self.convolution = nn.Conv1d(inputs, outputs, kernel)
        self.register_buffer("past", torch.zeros(1, inputs, slots))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """Return [1, outputs, step] of the frames x from `position` on."""
        slots = self.past.shape[-1]
        self.past.index_copy_(2, (position + torch.arange(self.step)) % slots, x)
        first = position + self.step - self.seen
        last = (first + torch.arange(self.seen)) % slots
        return self.convolution(self.past.index_select(2, last))


class StreamingEncoder(nn.Module):
    """Convolutions with residuals and functions over chunks of sound."""

    STEP = 4

    def __init__(self) -> None:
        super().__init__()
        self.first = RingConvolution(CHANNELS, 8, 5, self.STEP)
        self.second = RingConvolution(8, 8, 3, self.STEP)
        self.gate = nn.Conv1d(8, 8, 1)
        self.last = RingConvolution(8, 6, 7, self.STEP)
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return [1, 6, STEP] of the next frames x [1, CHANNELS, STEP]."""
        y = self.first(x, self.position).relu()
        y = nn.functional.silu(self.second(y, self.position) + y)
        y = y * self.gate(y).sigmoid()
        made = self.last(y, self.position)
        self.position.add_(self.STEP)
        return made

    def whole(self, x: Tensor) -> Tensor:
        """Return what `forward` makes of all frames, chunk by chunk."""

        def causal(layer: RingConvolution, x: Tensor) -> Tensor:
            past = layer.convolution.kernel_size[0] - 1
            made: Tensor = layer.convolution(nn.functional.pad(x, (past, 0)))
            return made

        y = causal(self.first, x).relu()
        y = nn.functional.silu(causal(self.second, y) + y)
        return causal(self.last, y * self.gate(y).sigmoid())
