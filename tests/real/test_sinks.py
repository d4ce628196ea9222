"""SmolLM2 in caches of 512 positions: with the first 4 kept, little is lost."""

import pydoc_data.topics

import numpy as np

from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import load
from kvc.runtime.tokenizers import tokenizer_of

COUNT, CHUNK = 4096, 512
TOPICS = pydoc_data.topics.topics
TEXT = "\n\n".join(sorted(TOPICS.values(), key=len, reverse=True)[:4])


def perplexity(path):
    """Return the perplexity of tokens that have more than a window before them."""
    lost = []
    with load(path) as program, program.session() as session:
        tokens = tokenizer_of(program).encode(TEXT)[: COUNT + 1]
        for start in range(0, COUNT, CHUNK):
            given = np.array([tokens[start : start + CHUNK]])
            logits = session.prefill_all(given)[0].astype(np.float64)
            best = logits.max(axis=1)
            whole = best + np.log(np.exp(logits - best[:, None]).sum(axis=1))
            wanted = tokens[start + 1 : start + CHUNK + 1]
            lost.append(whole - logits[np.arange(CHUNK), wanted])
        held = session.residency().own
    return np.exp(np.mean(lost[1:])), held


def test_first_positions_keep_a_model_at_its_text(folder, tmp_path):
    found, held = {}, {}
    for name, given in {
        "whole": {},
        "sinks": {"window": 512, "keep": 4},
        "window": {"window": 512},
    }.items():
        cache, path = CacheConfig(max_length=8192, **given), tmp_path / f"{name}.kvc"
        export_hf(
            folder("smollm2"), recipe="cpu_fp32", cache=cache, all_logits=True
        ).save(path)
        found[name], held[name] = perplexity(path)
        path.unlink()
    assert found["sinks"] < 1.15 * found["whole"]
    assert found["window"] > 1.5 * found["whole"]
    assert held["sinks"] < held["whole"] / 3
