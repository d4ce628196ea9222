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
