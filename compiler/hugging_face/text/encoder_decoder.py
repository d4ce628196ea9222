"""`CachedEncoderDecoder`: a model with an encoder, with its caches in buffers.

In: the model and the shapes of its caches. Out: a `CachedDecoder` with one more method,
`encode`, which runs the encoder and writes the cross caches: the keys and values that
each layer of the decoder computes from the encoder's result. `prefill` and `decode` are
the methods of a `CachedDecoder`, and read the cross caches. In a
`BatchedEncoderDecoder` each row has an encoder input of its own, and a cross cache as
long as that input.

The traced `encode` runs the whole model, so kvc need not know which parts of the
decoder compute these keys and values. The compiler removes the other parts as dead
code.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput

from kvc.compiler.hugging_face.caches.cache import AXIS, LayerBuffers, NotingCache
from kvc.compiler.hugging_face.caches.crossing import Caches, CrossCache
from kvc.compiler.hugging_face.caches.layer_shapes import CachedLayer
from kvc.compiler.hugging_face.caches.probe import run_model
from kvc.compiler.hugging_face.encoder.encoder_inputs import EncoderInput
from kvc.compiler.hugging_face.reading.calls import ModelCall, attending
from kvc.compiler.hugging_face.reading.inputs import inputs_of, of_decoder
from kvc.compiler.hugging_face.reading.settings import Sizes
from kvc.compiler.hugging_face.text.decoder import (
    BatchedDecoder,
    CachedDecoder,
    filled,
)
from kvc.compiler.hugging_face.text.decoder_methods import (
    rows_of,
)
from kvc.compiler.request.spec import Dim, Method, StateSpec

CROSS: Final = "kvc_cross"
HEARD: Final = "kvc_heard"
_TOKENS: Final = "tokens"


class CachedEncoderDecoder(CachedDecoder):
    """A decoder with two kinds of caches.

    One kind is of the decoder's own tokens, the other (cross caches) of an encoder's
    result. `kvc_heard` int64 [batch] is the number of positions in the cross caches.
    """

    kvc_heard: Tensor
    kvc_cross: nn.ModuleDict

    def __init__(
        self,
        model: PreTrainedModel,
        layers: Mapping[int, CachedLayer],
        cross: Mapping[int, CachedLayer],
        given: EncoderInput,
        sizes: Sizes,
        prefill_sizes: Sequence[int] = (),
        first: int = 0,
    ) -> None:
        super().__init__(model, layers, sizes, prefill_sizes, first)
        self._given = given
        heard, only = sizes.of_encoder(), given.positions
        self.kvc_cross = nn.ModuleDict(
            {str(i): LayerBuffers(layer, 1, heard, only) for i, layer in cross.items()}
        )
        if given.argument != _TOKENS:
            vars(self)["encode"] = getattr(self, f"encode_{given.argument}")
        self.register_buffer(HEARD, torch.zeros(1, dtype=torch.int64), persistent=False)

    def encode(self, tokens: Tensor) -> None:
        """Run the encoder on tokens; write the cross caches of the decoder's layers."""
        self._encode(tokens)

    def encode_features(self, features: Tensor) -> None:
        """Run the encoder on spectra of sounds, float32 [batch, bands, frames].

        The method writes the cross caches of the decoder's layers.
        """
        self._encode(features)

    def encode_pixels(self, pixels: Tensor) -> None:
        """Run the encoder on pixels float32 [batch, channels, height, width].

        The method writes the cross caches of the decoder's layers.
        """
        self._encode(pixels)

    def _encode(self, given: Tensor, row_lengths: Tensor | None = None) -> None:
        """Run the encoder on an input, and the decoder on one token per row.

        `row_lengths` int64 [batch] is the length of each row's input without padding;
        None: there is no padding.
        """
        (model,) = self._decoder
        start = self.kvc_heard.clone()
        call = ModelCall(start, start + 1, row_lengths, heard=start)
        cross = CrossCache(self.kvc_cross, call)
        first = torch.zeros(given.shape[0], 1, dtype=torch.int64)
        run_model(
            model, first, call, NotingCache(call), cross, {self._given.name: given}
        )
        self.kvc_heard.add_(cross.added if row_lengths is None else row_lengths)

    def _run(
        self,
        call: ModelCall,
        seq: int,
        own: Cache,
        keep: int,
        inputs: Mapping[str, Tensor],
    ) -> Tensor:
        (model,) = self._decoder
        call.heard = self.kvc_heard.clone()
        cross = CrossCache(self.kvc_cross, call)
        caches = Caches(own, cross, made=map(int, self.kvc_cross))
        given = {of_decoder(model, name): value for name, value in inputs.items()}
        # Of the encoder's result only the sizes are used.
        width = getattr(model.get_encoder().config, "hidden_size", 1)
        made = BaseModelOutput(torch.zeros(call.start.shape[0], 1, width))
        with attending(call):
            logits: Tensor = model(
                encoder_outputs=made,
                **given,
                **inputs_of(model, call, seq, caches, keep),
            ).logits
        return logits


class BatchedEncoderDecoder(BatchedDecoder, CachedEncoderDecoder):
    """A `CachedEncoderDecoder` whose methods take each row's number of real tokens.

    `encode` takes such numbers too, if the length of the encoder's input may vary.
    """

    _apart = True

    def encode(self, tokens: Tensor, lengths: Tensor) -> None:  # type: ignore[override]
        """Run the encoder on a separate input for each row, padded on the right.

        `lengths` int64 [batch] is the length of each row's input without padding.
        """
        self._encode(filled(tokens, lengths), lengths)


def encode_method(given: EncoderInput, sizes: Sizes) -> Method:
    """Return the method that runs the encoder."""
    dynamic, args = given.dynamic(sizes.heard), [given.example]
    rows = rows_of(sizes)
    if rows is not None:
        axes = dynamic.setdefault(given.argument, {})
        dynamic[given.argument] = {0: rows, **axes}
        if given.axis is not None:
            dynamic["lengths"] = {0: rows}
            args.append(torch.ones(1, dtype=torch.int64))
    return Method("encode", args=tuple(args), dynamic=dynamic, role="encode")


def cross_states(
    cross: Mapping[int, CachedLayer], given: EncoderInput, sizes: Sizes
) -> tuple[StateSpec, ...]:
    """Return the cross caches, whose number of positions a session selects.

    If the number of positions is fixed, a session selects only the number of rows.
    """
    rows = rows_of(sizes)
    names = [f"{CROSS}.{i}.{n}" for i, layer in cross.items() for n in layer.names()]
    specs = list[StateSpec]()
    if given.positions is None:
        capacity = Dim("encoder", 1, sizes.heard)
        specs = [StateSpec(n, axis=AXIS, capacity=capacity, batch=rows) for n in names]
    elif rows is not None:
        specs = [StateSpec(name, batch=rows) for name in names]
    if rows is not None:
        specs.append(StateSpec(HEARD, batch=rows))
    return tuple(specs)
