"""`export_hf`: compile a model of transformers, or its folder, to a bundle.

In: a model or a folder. Out: a `Bundle`, made in these steps:

model or folder --open_model--> Opened --cached_layers--> CachedDecoder, or with an
encoder CachedEncoderDecoder --methods_of--> methods --compile_program--> Bundle

For a model without a cache, `export_encoders.py` has the steps after `Opened`.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from transformers import PreTrainedModel

from kvc.compiler.emit.bundle import Bundle
from kvc.compiler.emit.files import TOKENIZER
from kvc.compiler.hugging_face.attention.own_attention import check_keys
from kvc.compiler.hugging_face.attention.rotary import (
    held_still,
    longest_short,
    warn_of_frequencies,
)
from kvc.compiler.hugging_face.caches.layer_shapes import CachedLayer
from kvc.compiler.hugging_face.caches.narrowed import (
    narrow_layers,
    warn_of_far_positions,
)
from kvc.compiler.hugging_face.caches.positions import (
    READ,
    first_position,
    has_position_table,
)
from kvc.compiler.hugging_face.caches.probe import CachedLayers, cached_layers
from kvc.compiler.hugging_face.encoder.encoder_inputs import (
    EncoderInput,
    check_pictures,
    encoder_input,
)
from kvc.compiler.hugging_face.export_encoders import check_unused, export_encoders
from kvc.compiler.hugging_face.opened import Opened, open_model
from kvc.compiler.hugging_face.pictures.picture_input import picture_input
from kvc.compiler.hugging_face.pictures.picture_metadata import (
    places_said,
    texts_around,
)
from kvc.compiler.hugging_face.pictures.sized_pictures import PictureInput, as_products
from kvc.compiler.hugging_face.reading.inputs import has_encoder
from kvc.compiler.hugging_face.reading.left_out import (
    PICTURES,
    PIXELS,
    VIDEOS,
    media_in,
    warn_of_left_out,
)
from kvc.compiler.hugging_face.reading.model_code import traced_code
from kvc.compiler.hugging_face.reading.picture_places import WHOLE
from kvc.compiler.hugging_face.reading.picture_settings import (
    most_groups,
    patches_of,
    size_of,
)
from kvc.compiler.hugging_face.reading.settings import (
    PREFILL_CHUNK,
    CacheConfig,
    Sizes,
    encoder_length,
    find_sizes,
)
from kvc.compiler.hugging_face.reading.tasks import check_task
from kvc.compiler.hugging_face.replacing import using_kvc
from kvc.compiler.hugging_face.text.adapted_layers import of_decoder
from kvc.compiler.hugging_face.text.decoder import (
    BatchedDecoder,
    CachedDecoder,
    check_positions,
)
from kvc.compiler.hugging_face.text.decoder_methods import (
    NUMBERS,
    AxesDecoder,
    BatchedAxesDecoder,
    after_state,
    example_embeds,
    linear_layers,
    methods_of,
    picture_methods,
    states_of,
)
from kvc.compiler.hugging_face.text.encoder_decoder import (
    BatchedEncoderDecoder,
    CachedEncoderDecoder,
    cross_states,
    encode_method,
)
from kvc.compiler.hugging_face.text.separate_positions import check_apart, rows_apart
from kvc.compiler.lower.calibration import Calibrator
from kvc.compiler.pipeline import compile_program
from kvc.compiler.request.adapter_slots import AdapterSlots
from kvc.compiler.trace import Unchanged
from kvc.recipes import DEFAULT, Wanted, load_recipes
from kvc.schema.container import Progress
from kvc.schema.errors import BadModelSetting, UnsupportedModel
from kvc.schema.interrupts import keeping_interrupts


@keeping_interrupts
def export_hf(
    model: PreTrainedModel | str | os.PathLike[str],
    *,
    task: str | None = None,
    recipe: Wanted = DEFAULT,
    cache: CacheConfig | None = None,
    prefill_chunk: int = PREFILL_CHUNK,
    prefill_sizes: Sequence[int] = (),
    all_logits: bool = False,
    inputs_embeds: bool = False,
    pictures: bool = True,
    progress: Progress | None = None,
    max_copy_bytes: Mapping[str, int] | None = None,
    calibrate: Calibrator | None = None,
    fit: int | None = None,
    adapters: AdapterSlots | None = None,
) -> Bundle:
    """Compile a model of transformers; a language model gets a kvc cache.

    Methods: `prefill(tokens int64 [batch, seq])` and `decode(token int64 [batch, 1])`,
    which return the last position's logits float32 [batch, vocab]. All methods write
    one cache, whose capacity a session selects.

    With `CacheConfig(batch=n)` above 1 a session also selects its number of rows, and
    methods take row lengths: `lengths` int64 [batch], each from 0 to seq, or for
    `decode` `active` bool [batch]. A call without them takes all tokens. Rows are
    padded on the right, with any tokens; padding is neither written nor attended to. A
    method returns the logits after a row's last token; the logits of a row without
    tokens are meaningless.

    A model with an encoder also has the method `encode`, with the role "encode". It
    takes the encoder's input, such as tokens int64 [1, n] or a picture, pixels float32
    [1, channels, height, width], and stores the part of the result that the decoder
    needs; it restarts the session. `prefill` and `decode` take the decoder's tokens.

    A model for another task has no cache, and methods without state: `embed(tokens
    int64 [batch, seq], lengths int64 [batch])` returns embeddings float32 [batch, n],
    `classify` returns logits [batch, labels], and `classify_tokens` and `fill_mask`
    return logits of every token. `embed_image(pixels float32 [batch, channels, height,
    width])` and `classify_image` return embeddings and logits of pictures.

    Args:
        model: a model, which is left unchanged; or a folder with config.json and
            .safetensors files, of which only headers are read before the bundle is
            saved. The tokenizer's files and the generation settings of a folder go into
            the bundle.
        task: the model's task: "generate", "embed", "classify", "classify_tokens" or
            "fill_mask"; None: as in config.json, or by the model's class.
        recipe: a recipe, its name, or the path of a recipe file; or a sequence of
            these, as in `compile_program`.
        cache: the maximum sizes of a session's caches, and the dtype of the caches.
        prefill_chunk: the maximum number of tokens in a call of `prefill`.
        prefill_sizes: numbers of tokens N for which to compile a method `prefill_N`.
        all_logits: also compile `prefill_all(tokens)`, which returns the logits of
            every position, float32 [batch, seq, vocab].
        inputs_embeds: also compile `prefill_embeds`, which takes embeddings float32
            [batch, seq, hidden] in place of tokens.
        pictures: whether a model that generates text from texts and pictures takes
            pictures, by `embed_image`, `embed_tokens` and `prefill_embeds`.
        progress: as in `compile_program`.
        max_copy_bytes: as in `compile_program`.
        calibrate: as in `compile_program`.
        fit: as in `compile_program`.
        adapters: how many adapters the bundle can hold at a time; None: none.

    Warns:
        FirstPositionsFar: texts may be longer than the model was made for, and first
            positions are kept.
        PartLeftOut: the model also reads pictures, videos or sounds, and the bundle
            does not take them.

    Raises:
        UnsupportedModel: kvc cannot express the model's computation.
        UnknownTask: the model's task is unknown.
        BadModelFolder: a file of the folder is missing, damaged, or does not fit.
        CheckpointError: weights are missing, pickled, damaged, or not of this model.
        BadModelSetting: a size is not sensible, `cache` is not a CacheConfig, or a
            setting needs a cache and the model has none.
        RecipeError: the recipe is unknown or wrong, or does not support such caches.
        CompileError: as `compile_program`.
    """
    if progress:
        progress("open the model", 0, 0)
    asked: object = cache or CacheConfig()
    if not isinstance(asked, CacheConfig):
        expected, found = "a CacheConfig", repr(cache)
        raise BadModelSetting(
            place="export_hf", setting="cache", expected=expected, found=found
        )
    settings = load_recipes(recipe, asked.dtype)
    opened = open_model(model, check_task(task), pictures)
    decoder = opened.model
    if opened.task != "generate":
        check_unused(
            opened.task, asked, prefill_chunk, prefill_sizes, all_logits, inputs_embeds,
            pictures,
        )  # fmt: skip
        return export_encoders(opened, settings, asked, progress, calibrate, fit)
    with (
        Unchanged(decoder), using_kvc(decoder), as_products(decoder),
        ExitStack() as together,
    ):  # fmt: skip
        prepared = size_of(opened.pictures)
        given = encoder_input(decoder, prepared) if has_encoder(decoder) else None
        heard = 0
        if given is not None:
            check_pictures(pictures, given)
            heard = encoder_length(asked, decoder.config, given.positions)
        layers, first = _probed(decoder, given)
        if given is not None and (asked.batch or 1) > 1:
            together.enter_context(rows_apart(decoder))
            check_apart(decoder, given)
        seen = _seen(opened, layers.own, first) if pictures else None
        meant = set() if pictures else {PICTURES, VIDEOS}
        taken = (given.name if given else None, PIXELS if seen else None)
        warn_of_left_out(decoder, media_in(taken), meant)
        picture = seen.positions if seen is not None and seen.joined else 0
        own = narrow_layers(decoder, layers.own, asked.asked)
        sizes = find_sizes(
            asked, prefill_chunk, decoder.config, opened.given, prefill_sizes, first,
            picture, longest_short(decoder), _is_endless(decoder, asked, seen),
        )  # fmt: skip
        warn_of_frequencies(decoder, sizes.length, asked.max_length)
        warn_of_far_positions(decoder, sizes)
        check_keys(decoder, sizes.length)
        sizes = replace(sizes, heard=heard)
        embeds = example_embeds(decoder) if inputs_embeds or seen else None
        seen = _within(seen, opened, sizes)
        axes = NUMBERS if _has_axes(seen) else 0
        methods = methods_of(sizes, prefill_sizes, all_logits, embeds, axes)
        if seen is not None and embeds is not None:
            methods += picture_methods(seen, sizes, embeds)
        if given is None:
            kinds = _KINDS[_has_axes(seen)]
            whole = _decoder(kinds, decoder, own, sizes, prefill_sizes, first)
            states = states_of(own, sizes)
            if axes:
                states += (after_state(sizes),)
        else:
            both = CachedEncoderDecoder if sizes.batch == 1 else BatchedEncoderDecoder
            parts = own, layers.cross, given, sizes, prefill_sizes, first
            whole = both(decoder, *parts)
            methods = (encode_method(given, sizes), *methods)
            states = states_of(own, sizes, "decoder")
            states += cross_states(layers.cross, given, sizes)
        with held_still(decoder, sizes.length), traced_code(decoder):
            return compile_program(
                whole,
                methods,
                recipe=settings,
                states=states,
                metadata=_metadata(opened, given, seen),
                progress=progress,
                max_copy_bytes=max_copy_bytes,
                files=opened.files,
                max_length=None if axes or linear_layers(own, sizes) else sizes.limit,
                calibrate=calibrate,
                fit=fit,
                adapters=adapters and of_decoder(adapters, whole, decoder, sizes.batch),
            )


def _probed(
    decoder: PreTrainedModel, given: EncoderInput | None = None
) -> tuple[CachedLayers, int]:
    """Return the layers' cached tensors, and the position number of a first token.

    Raises:
        UnsupportedModel: kvc cannot hold the model's cache or count its positions.
    """
    with held_still(decoder, READ):
        return cached_layers(decoder, given), first_position(decoder, given)


def _is_endless(
    decoder: PreTrainedModel, asked: CacheConfig, seen: PictureInput | None
) -> bool:
    """Tell whether a text of a bundle may have any length.

    This is so if the caller asked for a window, unless the model looks positions up in
    a table, has rotary frequencies that depend on the length, or stores a number for
    each position.
    """
    if asked.window is None or has_encoder(decoder) or _has_axes(seen):
        return False
    return longest_short(decoder) is None and not has_position_table(decoder)


def _seen(
    opened: Opened, layers: Mapping[int, CachedLayer], first: int
) -> PictureInput | None:
    """Return a model's picture input, None for a model without pictures.

    Raises:
        UnsupportedModel: the model reads pictures in a way that kvc does not support,
            or the model's processor expands prompts in a way that the model does not
            read.
    """
    with held_still(opened.model, READ):
        seen = picture_input(opened.model, size_of(opened.pictures), first, layers)
    if seen is None or opened.places is None:
        return seen
    for grid, expansion in opened.places.expansions.items():
        places, parts = expansion.tokens.count(seen.token), 1
        if grid != WHOLE:
            parts = len(texts_around(opened.places, seen, expansion)) - 1
        if places != seen.positions * parts:
            reason = (
                f"its processor gives a picture {places} places in a prompt, and it "
                f"makes {seen.positions} embeddings of one, or of each of its parts"
            )
            raise UnsupportedModel(model=type(opened.model).__name__, reason=reason)
    return seen


_KINDS: Final = {
    False: (CachedDecoder, BatchedDecoder),
    True: (AxesDecoder, BatchedAxesDecoder),
}


def _has_axes(seen: PictureInput | None) -> bool:
    """Tell whether a position has several numbers: time, row and column.

    This is so for pictures of variable size.
    """
    return seen is not None and seen.tower is not None


def _within(
    seen: PictureInput | None, opened: Opened, sizes: Sizes
) -> PictureInput | None:
    """Return a picture input with the maximum number of positions that is possible.

    The number is changed only for pictures of variable size. It is the maximum that the
    folder's processor makes, or the number that the caches can hold, if that is lower.

    Raises:
        UnsupportedModel: the processor makes other patches than the model reads.
    """
    if seen is None or seen.tower is None:
        return seen
    made, read = patches_of(opened.pictures), seen.tower.patches()
    if made not in (None, read):
        other, own = (
            ", ".join(f"{name} {n}" for name, n in one.items())
            for one in (made or {}, read)
        )
        reason = f"its processor makes patches of {other}, and it reads those of {own}"
        raise UnsupportedModel(model=type(opened.model).__name__, reason=reason)
    most = most_groups(opened.pictures)
    return replace(seen, positions=min(most or sizes.length, sizes.length))


def _decoder(
    kinds: tuple[type[CachedDecoder], type[BatchedDecoder]],
    decoder: PreTrainedModel,
    layers: Mapping[int, CachedLayer],
    sizes: Sizes,
    prefill_sizes: Sequence[int],
    first: int,
) -> CachedDecoder:
    if sizes.batch == 1:
        return kinds[0](decoder, layers, sizes, prefill_sizes, first)
    check_positions(decoder, layers)
    return kinds[1](decoder, layers, sizes, prefill_sizes, first)


def _metadata(
    opened: Opened, given: EncoderInput | None, seen: PictureInput | None
) -> dict[str, object]:
    metadata: dict[str, object] = {
        "architecture": opened.model.config.model_type,
        "generation_config": dict(opened.generation),
    }
    if opened.spectrum is not None:
        metadata["spectrum"] = dict(opened.spectrum)
    if TOKENIZER in opened.files:
        metadata["tokenizer"] = TOKENIZER
    if given is not None and given.is_picture:
        metadata["pictures"] = {"method": "encode", **(opened.pictures or {})}
    if seen is not None:
        metadata["pictures"] = {"method": "embed_image", **(opened.pictures or {})}
        metadata["picture_places"] = places_said(opened.places, seen)
    return metadata
