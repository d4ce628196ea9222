"""Model A, the shape of SmolLM2-135M: prefill, then 64 decode steps, against eager.

Takes about two minutes; `pytest -m "not slow"` leaves it out.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from model_a import model_a

from kvc.compiler import compile_program
from kvc.runtime import load

PROMPT = np.random.default_rng(1).integers(0, 49152, (1, 20))
TOKENS = np.random.default_rng(2).integers(0, 49152, 64)


@pytest.mark.slow
def test_fp32_equals_eager_bit_for_bit_and_a_corrupted_cache_does_not(
    tmp_path: Path,
) -> None:
    spec = model_a()
    compile_program(spec.model, spec.methods, "fp32", states=spec.states).save(
        tmp_path / "a.kvc"
    )
    with load(tmp_path / "a.kvc") as program, program.session() as session:
        got = [session.prefill(PROMPT)]
        got += [session.decode(np.array([[token]])) for token in TOKENS]
    with torch.no_grad():
        expected = [spec.model.prefill(torch.from_numpy(PROMPT)).numpy()]
        expected += [spec.model.decode(torch.tensor([[t]])).numpy() for t in TOKENS]
        spec.model.position.sub_(1)
        spec.model.layers[15].attn.k_cache[0, 1, 7] += 0.01
        corrupted = spec.model.decode(torch.tensor([[int(TOKENS[-1])]])).numpy()
    assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))
    assert not np.array_equal(got[-1], corrupted)
    assert np.abs(got[-1]).max() > 1
