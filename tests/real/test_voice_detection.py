"""Silero's detector of voices as a module that keeps what it heard in its buffers."""

import numpy as np
import pytest
import torch
from real_models import Unavailable, silero
from safetensors.torch import load_file
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.runtime import load

PIECE, CONTEXT = 512, 64  # samples at 16 kHz


class Detector(nn.Module):
    """How likely a voice is in each piece; layers are named as in the file."""

    def __init__(self):
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)
        self.register_buffer("context", torch.zeros(1, CONTEXT), persistent=False)
        self.register_buffer("hidden", torch.zeros(1, 128), persistent=False)
        self.register_buffer("cell", torch.zeros(1, 128), persistent=False)

    def forward(self, piece):
        """Return the probability, [1, 1], of samples [1, 512]."""
        heard = torch.cat([self.context, piece], 1)
        self.context.copy_(piece[:, -CONTEXT:])
        x = nn.functional.pad(heard, (0, 64), "reflect").unsqueeze(1)
        x = self.stft_conv(x)
        x = (x[:, :129] ** 2 + x[:, 129:] ** 2).sqrt()
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = layer(x).relu()
        hidden, cell = self.lstm_cell(x.squeeze(-1), (self.hidden, self.cell))
        self.hidden.copy_(hidden)
        self.cell.copy_(cell)
        return self.final_conv(hidden.unsqueeze(-1).relu()).sigmoid().mean(2)


@pytest.fixture(scope="module")
def detector():
    try:
        weights = load_file(silero())
    except Unavailable as problem:
        pytest.skip(f"the detector cannot be had: {problem}")
    module = Detector().eval()
    module.load_state_dict(weights)
    return module


def probabilities(step, samples):
    pieces = [
        samples[at : at + PIECE][None]
        for at in range(0, len(samples) - PIECE + 1, PIECE)
    ]
    return np.array([step(piece).item() for piece in pieces])


@pytest.mark.parametrize("recipe", ["fp32", "xnnpack_fp32", "cpu_fp32"])
@pytest.mark.filterwarnings("default::kvc.compiler.LeftToPyTorch")
def test_a_voice_is_told_from_silence_as_by_the_model(detector, say, tmp_path, recipe):
    silence = np.zeros(PIECE * 20, np.float32)
    said = np.concatenate([silence, say("Good morning, this is a voice."), silence])
    method = Method("forward", (torch.zeros(1, PIECE),))
    compile_program(detector, [method], recipe).save(tmp_path / "vad.kvc")
    with torch.no_grad():
        wanted = probabilities(lambda p: detector(torch.from_numpy(p)), said)
    with load(tmp_path / "vad.kvc") as program, program.session() as session:
        found = probabilities(session.forward, said)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert found[:15].max() < 0.1
    assert found[20:60].max() > 0.9
