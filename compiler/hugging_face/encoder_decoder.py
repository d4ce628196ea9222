"""`CachedEncoderDecoder`: a model with an encoder, its caches in buffers.

In: the model and the shapes of its caches. Out: a `CachedDecoder` with one method more,
`encode`, which runs the encoder and writes the cross caches: the keys and values that
each layer of the decoder makes of the encoder's result. `prefill` and `decode` are
those of a decoder, and read the cross caches.

`encode` runs the whole model. Of the decoder only what makes these keys and values has
an effect; all else is dropped as dead code, so no part of a model is called by name.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput

from kvc.compiler.hugging_face.attention import Call, attending
from kvc.compiler.hugging_face.cache import AXIS, LayerBuffers, NotingCache
from kvc.compiler.hugging_face.crossing import Caches, CrossCache
from kvc.compiler.hugging_face.decoder import CachedDecoder
from kvc.compiler.hugging_face.encoder_inputs import EncoderInput
from kvc.compiler.hugging_face.inputs import inputs_of, of_decoder
from kvc.compiler.hugging_face.layer_shapes import CachedLayer
from kvc.compiler.hugging_face.running import run_model
from kvc.compiler.hugging_face.settings import Sizes
from kvc.compiler.spec import Dim, Method, StateSpec
from kvc.schema.errors import UnsupportedModel

CROSS: Final = "kvc_cross"
HEARD: Final = "kvc_heard"


class CachedEncoderDecoder(CachedDecoder):
    """Methods over two caches; `kvc_heard` int64 [batch] counts the cross cache's."""

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
        none = torch.zeros(1, dtype=torch.int64)
        self.register_buffer(HEARD, none, persistent=False)

    def encode(self, tokens: Tensor) -> None:
        """Run the encoder; keep what the decoder's layers make of its result."""
        (model,) = self._decoder
        start = self.kvc_heard.clone()
        call = Call(start, start + 1, heard=start)
        cross = CrossCache(self.kvc_cross, call)
        first, given = torch.zeros(1, 1, dtype=torch.int64), {self._given.name: tokens}
        run_model(model, first, call, NotingCache(call), cross, given)
        self.kvc_heard.add_(cross.added)

    def _run(
        self, call: Call, seq: int, own: Cache, keep: int, inputs: Mapping[str, Tensor]
    ) -> Tensor:
        (model,) = self._decoder
        call.heard = self.kvc_heard.clone()
        cross = CrossCache(self.kvc_cross, call)
        caches = Caches(own, cross, made=map(int, self.kvc_cross))
        given = {of_decoder(model, name): value for name, value in inputs.items()}
        # Of the encoder's result nothing but its sizes is asked for.
        width = getattr(model.get_encoder().config, "hidden_size", 1)
        made = BaseModelOutput(torch.zeros(1, 1, width))
        with attending(call):
            logits: Tensor = model(
                encoder_outputs=made,
                **given,
                **inputs_of(model, call, seq, caches, keep),
            ).logits
        return logits


def check_rows(model: PreTrainedModel, batch: int) -> None:
    """Check that a model is compiled for one row.

    Raises:
        UnsupportedModel: it is for several, which no method of it takes yet.
    """
    if batch > 1:
        reason = (
            "it has an encoder, and kvc runs one row of such a model at a time; "
            "compile it with CacheConfig(batch=1), and open a session for each text"
        )
        raise UnsupportedModel(model=type(model).__name__, reason=reason)


def encode_method(given: EncoderInput, sizes: Sizes) -> Method:
    """Return the method that runs the encoder."""
    dynamic = given.dynamic(sizes.heard)
    return Method("encode", args=(given.example,), dynamic=dynamic, role="encode")


def cross_states(
    cross: Mapping[int, CachedLayer], given: EncoderInput, sizes: Sizes
) -> tuple[StateSpec, ...]:
    """Return what a session chooses: how many positions of an encoder it holds.

    Nothing where it is always the same number.
    """
    if given.positions is not None:
        return ()
    capacity = Dim("encoder", 1, sizes.heard)
    return tuple(
        StateSpec(f"{CROSS}.{i}.{name}", axis=AXIS, capacity=capacity)
        for i, layer in cross.items()
        for name in layer.names()
    )
