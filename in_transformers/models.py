"""The classes that users open: `KvcForCausalLM`, `KvcForConditionalGeneration`.

In: tokens, and what a model reads beside them. Out: logits. Their arguments are those
of models of transformers, since `generate` asks for their names.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
)
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    Seq2SeqLMOutput,
)

from kvc.runtime import BadSetting
from kvc.runtime.generation.picture_places import PicturePlaces, places_of
from kvc.transformers.cache import Beside
from kvc.transformers.generator import Generator, rows_of
from kvc.transformers.interface import FEATURES, PIXELS, TOKENS, Interface
from kvc.transformers.opening import KvcModelConfig
from kvc.transformers.pixels import in_parts, of_rows, repeated


class KvcForCausalLM(Generator):
    """A bundle of a language model: `from_pretrained`, then `generate`."""

    @classmethod
    def _check(cls, interface: Interface) -> None:
        if interface.encodes:
            expected = "a model without an encoder; this is one for "
            raise BadSetting(
                name=cls.__name__,
                expected=expected + KvcForConditionalGeneration.__name__,
                found="one with an encoder",
            )

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: object = None,
        inputs_embeds: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:  # noqa: ANN401
        """Run new tokens; return their logits and the cache.

        Args:
            input_ids: int64 [rows, n], the new tokens.
            attention_mask: [rows, columns], of cached columns and new ones; a token
                that it hides is not run, and does not count as a position.
            position_ids: [rows, n] as kvc counts them, from 0 without hidden tokens.
            past_key_values: the `KvcCache` of an earlier call; None to begin.
            inputs_embeds: float32 [rows, n, hidden] in place of first tokens, of a
                bundle with `inputs_embeds`.
            logits_to_keep: of how many last tokens to return logits, 0 for all.
            use_cache: ignored; there is always a cache.
            return_dict: False for a tuple.

        Raises:
            BadSetting: an argument does not fit the others, or the bundle.
            ExecutionError: as `Session.call`.
        """
        beside, tokens = Beside(), input_ids
        if inputs_embeds is not None:
            beside = Beside(embeds=inputs_embeds.float().numpy())
            tokens = torch.zeros(inputs_embeds.shape[:2], dtype=torch.int64)
        tokens = _given(TOKENS, tokens)
        logits, cache = self.run(
            tokens,
            attention_mask,
            past_key_values,
            logits_to_keep,
            beside,
            position_ids,
        )
        made = CausalLMOutputWithPast(logits=logits, past_key_values=cache)
        return made if return_dict is not False else made.to_tuple()


class KvcForConditionalGeneration(Generator):
    """A bundle of a model with an encoder, or of one that reads pictures."""

    def __init__(self, exported: Any) -> None:  # noqa: ANN401
        """Take an export with a cache; see `Generator`."""
        super().__init__(exported)
        self.main_input_name = self._interface.main
        kinds = {FEATURES: ("audio",), PIXELS: ("image",)}
        self.input_modalities = kinds.get(self.main_input_name, ("text",))
        self._places: PicturePlaces | None = None
        if self._interface.sees:
            self.input_modalities = ("image", "text")
            with self.program.session() as session:
                self._places = places_of(session)

    @classmethod
    def _check(cls, interface: Interface) -> None:
        if interface.is_causal:
            raise BadSetting(
                name=cls.__name__,
                expected="a model with an encoder, or one that reads pictures; "
                f"this is one for {KvcForCausalLM.__name__}",
                found="one of text alone",
            )

    def get_encoder(self, modality: str | None = None) -> "UnrunEncoder":
        """Return what stands for the encoder: it runs when the decoder begins."""
        return UnrunEncoder(self.main_input_name)

    def forward(
        self,
        input_ids: Tensor | None = None,
        input_features: Tensor | None = None,
        pixel_values: Tensor | None = None,
        image_grid_thw: Tensor | None = None,
        pixel_attention_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: object = None,
        token_type_ids: Tensor | None = None,
        mm_token_type_ids: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:  # noqa: ANN401
        """Run new tokens; return their logits and the cache.

        Args:
            input_ids: int64 [rows, n], new tokens, or the encoder's text.
            input_features: the encoder's sounds.
            pixel_values: pictures, as the model's processor makes them.
            image_grid_thw: the sizes of pictures that have sizes of their own.
            pixel_attention_mask: ignored: pictures that are padding are left out.
            attention_mask: [rows, columns], of `input_ids`; see `KvcForCausalLM`.
            decoder_input_ids: int64 [rows, n], new tokens beside an encoder.
            decoder_attention_mask: [rows, columns], of these.
            encoder_outputs: what `get_encoder()` returned for the encoder's input.
            past_key_values: the `KvcCache` of an earlier call; None to begin.
            token_type_ids: ignored: tokens say what they are.
            mm_token_type_ids: ignored.
            logits_to_keep: of how many last tokens to return logits, 0 for all.
            use_cache: ignored; there is always a cache.
            return_dict: False for a tuple.

        Raises:
            BadSetting: an argument does not fit the others, or the bundle.
            ExecutionError: as `Session.call`.
        """
        begins = past_key_values is None or not len_of(past_key_values)
        if self._interface.encodes:
            heard = {TOKENS: input_ids, FEATURES: input_features, PIXELS: pixel_values}
            given = heard[self.main_input_name]
            if encoder_outputs is not None:
                given = encoder_outputs.last_hidden_state
            tokens, mask = decoder_input_ids, decoder_attention_mask
            name, beside = "decoder_input_ids", Beside()
            if begins:
                whole = _given(self.main_input_name, given)
                beside = Beside(encoded=rows_of(whole, attention_mask))
        else:
            tokens, mask, name = input_ids, attention_mask, TOKENS
            beside = self._seen(input_ids, pixel_values, image_grid_thw, begins)
        logits, cache = self.run(
            _given(name, tokens), mask, past_key_values, logits_to_keep, beside
        )
        kind: Any = CausalLMOutputWithPast
        if self._interface.encodes:
            kind = Seq2SeqLMOutput
        made = kind(logits=logits, past_key_values=cache)
        return made if return_dict is not False else made.to_tuple()

    def _seen(
        self,
        tokens: Tensor | None,
        pixels: Tensor | None,
        grids: Tensor | None,
        begins: bool,
    ) -> Beside:
        """Return the pictures of each row.

        Raises:
            BadSetting: pictures come after other tokens, or do not fit these.
        """
        if pixels is None or self._places is None:
            return Beside()
        if not begins:
            expected = "none after the first call"
            raise BadSetting(name=PIXELS, expected=expected, found="pictures")
        rows = of_rows(self._places, _given(TOKENS, tokens), pixels, grids)
        return Beside(pictures=[in_parts(self._places, row) for row in rows])

    def _expand_inputs_for_generation(  # type: ignore[override]
        self,
        expand_size: int = 1,
        is_encoder_decoder: bool = False,
        input_ids: Tensor | None = None,
        **model_kwargs: Any,  # noqa: ANN401
    ) -> tuple[Tensor, dict[str, Any]]:
        """Repeat rows, each with its pictures; transformers calls this for beams."""
        pixels = model_kwargs.get(PIXELS)
        shown = {}
        if self._places is not None and pixels is not None and pixels.dim() != 5:
            grids = model_kwargs.pop("image_grid_thw", None)
            del model_kwargs[PIXELS]
            rows = of_rows(self._places, _given(TOKENS, input_ids), pixels, grids)
            pixels, grids = repeated(rows, expand_size)
            shown = {PIXELS: pixels, "image_grid_thw": grids}
        whole: Any = super()  # which asks for a PreTrainedModel
        tokens, kwargs = whole._expand_inputs_for_generation(
            expand_size, is_encoder_decoder, input_ids, **model_kwargs
        )
        return tokens, kwargs | {k: v for k, v in shown.items() if v is not None}


class UnrunEncoder:
    """An encoder that passes on its input, which runs when a decoder begins.

    Attributes:
        main_input_name: the name of its input.
    """

    def __init__(self, name: str) -> None:
        self.main_input_name = name

    def forward(self, **kwargs: Any) -> BaseModelOutput:  # noqa: ANN401
        """Return the input, in the place of states that only sessions hold."""
        return BaseModelOutput(last_hidden_state=kwargs[self.main_input_name])

    __call__ = forward


def len_of(cache: object) -> int:
    """Return how many columns a cache holds."""
    return int(getattr(cache, "get_seq_length", lambda: 0)())


def _given(name: str, tensor: Tensor | None) -> Tensor:
    """Return an argument.

    Raises:
        BadSetting: it is missing.
    """
    if tensor is None:
        raise BadSetting(name=name, expected="a tensor", found=None)
    return tensor


def register_models() -> None:
    """Let pipelines know the classes, and auto classes the configuration."""
    AutoConfig.register(KvcModelConfig.model_type, KvcModelConfig, exist_ok=True)
    AutoModelForCausalLM.register(KvcModelConfig, KvcForCausalLM, exist_ok=True)
    for auto in (
        AutoModelForSeq2SeqLM,
        AutoModelForSpeechSeq2Seq,
        AutoModelForImageTextToText,
    ):
        auto.register(KvcModelConfig, KvcForConditionalGeneration, exist_ok=True)
