"""Requests at once are as alone, whatever the recipe, the caches and the sizes."""

import threading

import pytest
from daily import only
from hf_folders import random_tokens, tiny_llama

from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import generate, load
from kvc.runtime.generation import settings_of
from kvc.serving.scheduling import Limits, Request, Scheduler

WAYS = {
    "int8 caches": {"cache": CacheConfig(96, batch=4, dtype="int8")},
    "float16 caches": {"cache": CacheConfig(96, batch=4, dtype="float16")},
    "xnnpack": {"recipe": "xnnpack_q8", "cache": CacheConfig(96, batch=4)},
    "buckets": {"cache": CacheConfig(96, batch=4), "prefill_sizes": [8, 32]},
    "one row": {"cache": CacheConfig(96), "recipe": "xnnpack_q8"},
    "windows": {"cache": CacheConfig(96, batch=4, window=16, keep=2)},
}
PROMPTS = [random_tokens(n, n)[0].tolist() for n in (5, 9, 40, 3, 21, 8, 11, 33)]
PROMPTS += [[*PROMPTS[2], 7, 8], [*PROMPTS[4][:15], 9]]


@only(way=["int8 caches", "xnnpack"])
@pytest.mark.parametrize("way", WAYS)
def test_requests_at_once_are_as_alone(tmp_path, way):
    path = tmp_path / "m.kvc"
    export_hf(tiny_llama(), **({"recipe": "cpu_q8"} | WAYS[way])).save(path)
    heard, over = [[] for _ in PROMPTS], threading.Semaphore(0)

    def listener(number):
        def hear(update):
            heard[number] += update.tokens
            if update.ending is not None:
                assert update.error is None, update.error
                over.release()

        return hear

    asked = {"max_tokens": 10, "temperature": 0.0, "eos_token_id": ()}
    with load(path) as program:
        with Scheduler(program, Limits(rows=3)) as scheduler:
            settings = settings_of(program.metadata, asked)
            for number, prompt in enumerate(PROMPTS):
                scheduler.submit(Request(prompt, settings), listener(number))
            assert all(over.acquire(timeout=60) for _ in PROMPTS)
            assert scheduler.status.failed == 0
        for prompt, found in zip(PROMPTS, heard, strict=True):
            with program.session() as session:
                run = generate(session, prompt, **asked)
                assert found == list(run)
