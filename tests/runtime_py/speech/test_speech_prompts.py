"""Moments: which tokens may follow, and what they part, as transformers has it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from kvc.runtime.speech.speech_prompts import Timestamps

VOCAB, BEGIN, STOP, STEPS, STRIDE = 60, 30, 20, 25, 2


def moments(latest: int | None = 5) -> Timestamps:
    return Timestamps(BEGIN, BEGIN - 1, STOP, latest)


def reference(logits: np.ndarray, said: list[int], latest: int | None) -> np.ndarray:
    config = SimpleNamespace(
        no_timestamps_token_id=BEGIN - 1,
        eos_token_id=STOP,
        bos_token_id=STOP,
        max_initial_timestamp_index=latest,
    )
    process = WhisperTimeStampLogitsProcessor(config, begin_index=2)
    tokens = torch.tensor([[40, 41, *said]])
    return process(tokens, torch.from_numpy(logits)[None])[0].numpy()


@pytest.mark.parametrize("latest", [None, 5])
def test_what_may_follow_is_what_transformers_allows(latest):
    random = np.random.default_rng(0)
    for _ in range(300):
        count = random.integers(0, 6)
        kinds = [random.integers(0, STOP), BEGIN + random.integers(0, 12)]
        said = [int(kinds[random.integers(2)]) for _ in range(count)]
        logits = random.normal(scale=3, size=VOCAB).astype(np.float32)
        found = moments(latest).allowed(logits, said)
        np.testing.assert_array_equal(found, reference(logits, said, latest), str(said))


def expected(said: list[int]) -> tuple[list[tuple], float | None]:
    """Return parts and the next step of transformers."""
    segments, offset = WhisperForConditionalGeneration._retrieve_segment(
        seek_sequence=torch.tensor(said),
        seek_outputs=[{}],
        time_offset=torch.zeros(1, dtype=torch.float64),
        timestamp_begin=BEGIN,
        seek_num_frames=torch.tensor([STEPS * STRIDE]),
        time_precision=1.0,
        time_precision_features=1.0 / STRIDE,
        input_stride=STRIDE,
        prev_idx=0,
        idx=0,
        return_token_timestamps=False,
        decoder_input_ids=torch.zeros(1, 3),
    )
    parts = [
        (float(s["start"]), float(s["end"]), tuple(s["tokens"].tolist()))
        for s in segments
    ]
    return parts, int(offset) / STRIDE


def test_parts_of_an_answer_are_those_of_transformers():
    random = np.random.default_rng(1)
    compared = 0
    for _ in range(400):
        said, now = [BEGIN + int(random.integers(0, 3))], 0
        for _ in range(random.integers(0, 5)):
            said += random.integers(0, STOP, random.integers(0, 3)).tolist()
            now += int(random.integers(0, 5))
            said += [BEGIN + now] * int(random.integers(1, 3))
        parts, rest = moments().parts(said, STEPS)
        found = [(part.start, part.end, part.tokens) for part in parts]
        wanted, next_step = expected(said)
        assert found == wanted, said
        assert (STEPS if rest is None else rest) == next_step, said
        compared += rest is not None
    assert compared > 50


def test_an_empty_answer_is_one_part():
    (part,), rest = moments().parts([], STEPS)
    assert (part.start, part.end, part.tokens, rest) == (0, STEPS, (), None)
