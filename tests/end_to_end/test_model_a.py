"""Model A, the shape of SmolLM2-135M: prefill, then decode steps, against eager.

Each layer costs a second of tracing: by default there are two of its 30.
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


@pytest.mark.parametrize(
    ("layers", "steps"), [(2, 8), pytest.param(30, 64, marks=pytest.mark.exhaustive)]
)
def test_fp32_equals_eager_bit_for_bit_and_a_corrupted_cache_does_not(
    tmp_path: Path, layers: int, steps: int
) -> None:
    spec, tokens = model_a(layers), TOKENS[:steps]
    compile_program(spec.model, spec.methods, "fp32", states=spec.states).save(
        tmp_path / "a.kvc"
    )
    with load(tmp_path / "a.kvc") as program, program.session() as session:
        got = [session.prefill(PROMPT)]
        got += [session.decode(np.array([[token]])) for token in tokens]
    with torch.no_grad():
        expected = [spec.model.prefill(torch.from_numpy(PROMPT)).numpy()]
        expected += [spec.model.decode(torch.tensor([[t]])).numpy() for t in tokens]
        spec.model.position.sub_(1)
        spec.model.layers[layers // 2].attn.k_cache[0, 1, 7] += 0.01
        corrupted = spec.model.decode(torch.tensor([[int(tokens[-1])]])).numpy()
    assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))
    assert not np.array_equal(got[-1], corrupted)
    assert np.abs(got[-1]).max() > 1
