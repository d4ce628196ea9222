"""What compiler/WRITING_MODELS.md tells a user to write does what the page says."""

import re
from pathlib import Path

import numpy as np
import torch
from state_runs import opened
from torch import Tensor, nn

from kvc.compiler import Dim, Method, StateSpec

PAGE = (Path(__file__).parents[2] / "compiler/WRITING_MODELS.md").read_text()
HEADS, WIDTH, VOCAB, SLOTS = 2, 4, 16, 32
BATCH = Dim("batch", 1, 3)


def prefill_of_the_page():
    section = PAGE[PAGE.index("## Rows of different lengths") :]
    (code,) = re.findall(
        r"^```python\n(.*?)^def decode", section, re.DOTALL | re.MULTILINE
    )
    found = {"torch": torch}
    exec(code, found)
    return found["prefill"]


class Rows(nn.Module):
    """What the page leaves to its reader."""

    prefill = prefill_of_the_page()

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCAB, HEADS * WIDTH)
        self.places = nn.Embedding(SLOTS, HEADS * WIDTH)
        self.head = nn.Linear(HEADS * WIDTH, VOCAB)
        for name in ("k", "v"):
            self.register_buffer(name, torch.zeros(1, HEADS, SLOTS, WIDTH))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def project(self, tokens: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.embed(tokens) + self.places(places.clamp(max=SLOTS - 1))
        q = x.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
        return q, q * 2, q + 1

    def logits(self, y: Tensor) -> Tensor:
        return self.head(y.transpose(1, 2).flatten(2))


def test_rows_of_different_lengths_as_the_page_writes_them(tmp_path):
    tokens, rows = torch.ones(2, 4, dtype=torch.int64), {0: BATCH}
    method = Method(
        "prefill",
        (tokens, torch.tensor([4, 2])),
        dynamic={"tokens": {0: BATCH, 1: Dim("seq", 1, 8)}, "lengths": rows},
        role="prefill",
    )
    states = [StateSpec(name, batch=BATCH) for name in ("k", "v", "position")]
    text = np.random.default_rng(0).integers(0, VOCAB, (3, 8))
    calls = [[3, 0, 8], [8, 1, 2], [1, 8, 0]]
    with opened(Rows(), [method], tmp_path, states=states) as program:
        with program.session(batch=3) as session:
            found = [session.prefill(text, np.array(counts)) for counts in calls]
            assert session.position.tolist() == [12, 9, 10]
        for row in range(3):
            with program.session() as alone:
                for counts, logits in zip(calls, found, strict=True):
                    if counts[row]:
                        expected = alone.prefill(text[row : row + 1, : counts[row]])
                        np.testing.assert_allclose(
                            logits[row], expected[0], rtol=2e-3, atol=1e-4
                        )
