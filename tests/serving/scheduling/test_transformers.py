"""Every row of a full batch has the greedy tokens of transformers' `generate`."""

import threading

import pytest
import torch
from daily import only
from hf_models import build

from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import load
from kvc.runtime.generation import settings_of
from kvc.serving.scheduling import Limits, Request, Scheduler

ROWS, NEW = 4, 12
PROMPTS = [torch.randint(3, 90, (n,), generator=torch.Generator().manual_seed(n))
           for n in (5, 9, 17, 3, 21, 8, 11, 6)]  # fmt: skip


@only(name=["gemma3_text"])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_5_text"])
def test_rows_of_a_full_batch_have_the_tokens_of_transformers(tmp_path, name):
    model = build(name, shallow=True).eval()
    path = tmp_path / "m.kvc"
    cache = CacheConfig(64, batch=ROWS)
    export_hf(model, recipe="cpu_fp32", cache=cache).save(path)
    heard, over = [[] for _ in PROMPTS], threading.Semaphore(0)

    def listener(number):
        def hear(update):
            heard[number] += update.tokens
            if update.ending is not None:
                assert update.ending == "max_tokens", update.error
                over.release()

        return hear

    with load(path) as program, Scheduler(program, Limits(rows=ROWS)) as scheduler:
        asked = {"max_tokens": NEW, "temperature": 0.0, "eos_token_id": ()}
        settings = settings_of(program.metadata, asked)
        for number, prompt in enumerate(PROMPTS):
            scheduler.submit(Request(prompt.tolist(), settings), listener(number))
        assert all(over.acquire(timeout=60) for _ in PROMPTS)
    for prompt, found in zip(PROMPTS, heard, strict=True):
        made = model.generate(
            prompt[None],
            attention_mask=torch.ones_like(prompt)[None],
            do_sample=False,
            max_new_tokens=NEW,
            eos_token_id=-1,
            pad_token_id=0,
        )
        assert found == made[0, len(prompt) :].tolist()
