"""`export_hf`: from a model of transformers to a bundle.

model --probe--> shapes --CachedDecoder--> methods --compile_program--> Bundle
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvc.compiler.bundle import Bundle
from kvc.compiler.hugging_face.attention import NAME, register
from kvc.compiler.hugging_face.decoder import CachedDecoder
from kvc.compiler.hugging_face.experts import own_experts
from kvc.compiler.hugging_face.methods import methods_of, states_of
from kvc.compiler.hugging_face.probe import cached_shapes
from kvc.compiler.hugging_face.settings import (
    PREFILL_CHUNK,
    CacheConfig,
    find_sizes,
)
from kvc.compiler.pipeline import compile_program
from kvc.recipes import Recipe
from kvc.schema.container import Progress


def export_hf(
    model: PreTrainedModel,
    *,
    recipe: str | Recipe = "fp32",
    cache: CacheConfig | None = None,
    prefill_chunk: int = PREFILL_CHUNK,
    prefill_sizes: Sequence[int] = (),
    all_logits: bool = False,
    inputs_embeds: bool = False,
    progress: Progress | None = None,
    max_copy_bytes: Mapping[str, int] | None = None,
) -> Bundle:
    """Compile a causal language model of transformers, with a cache of kvc's.

    Methods: `prefill(tokens int64 [batch, seq])` and `decode(token int64 [batch, 1])`,
    which return the last position's logits float32 [batch, vocab].

    Args:
        model: the model.
        recipe: a recipe, its name, or the path of a recipe file.
        cache: how large the caches of a session may be.
        prefill_chunk: the most tokens of one call of `prefill`.
        prefill_sizes: numbers of tokens that get a method of their own, `prefill_N`,
            over the same cache.
        all_logits: also compile `prefill_all(tokens)`, the logits of every position.
        inputs_embeds: also compile `prefill_embeds(inputs_embeds)`.
        progress: called with (stage, done, total).
        max_copy_bytes: as of `compile_program`.

    Raises:
        UnsupportedModel: the model does what kvc cannot express.
        BadModelSetting: a size is not sensible.
        CompileError: as `compile_program`.
    """
    register()
    generation: Mapping[str, object] = {}
    if model.generation_config is not None:
        generation = model.generation_config.to_diff_dict()
    sizes = find_sizes(cache or CacheConfig(), prefill_chunk, model.config, generation)
    embeds = _example_embeds(model) if inputs_embeds else None
    methods = methods_of(sizes, prefill_sizes, all_logits, embeds)
    with using_kvc(model):
        decoder = CachedDecoder(model, cached_shapes(model), sizes, prefill_sizes)
        return compile_program(
            decoder,
            methods,
            recipe=recipe,
            states=states_of(sizes),
            metadata={
                "architecture": model.config.model_type,
                "generation_config": generation,
            },
            progress=progress,
            max_copy_bytes=max_copy_bytes,
        )


def _example_embeds(model: PreTrainedModel) -> Tensor:
    table = model.get_input_embeddings().weight
    assert isinstance(table, Tensor)
    return torch.zeros(1, 1, table.shape[1], dtype=table.dtype)


@contextmanager
def using_kvc(model: PreTrainedModel) -> Iterator[None]:
    """Let a model attend by kvc's functions, in evaluation mode."""
    before, training = model.config._attn_implementation, model.training
    model.set_attn_implementation(NAME)
    model.train(False)
    try:
        with own_experts(model):
            yield
    finally:
        model.set_attn_implementation(before)
        model.train(training)
