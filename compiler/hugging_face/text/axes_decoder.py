"""Decoders whose positions have axes: of a picture its time, row and column (Qwen2-VL).

A picture takes fewer positions than it has tokens, so the number of a position is not
how many tokens there are. In: as of `CachedDecoder`; embeddings come with positions.
Out: the same methods. What number follows each token lies in a cache of its own, so
that a session goes on, or goes back, from any of them.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvc.compiler.hugging_face.caches.cache import AXIS
from kvc.compiler.hugging_face.caches.layer_shapes import CachedLayer
from kvc.compiler.hugging_face.pictures.sized_pictures import embeddings_of, tower_of
from kvc.compiler.hugging_face.reading.calls import Call
from kvc.compiler.hugging_face.reading.settings import LEAST_LENGTH, Sizes
from kvc.compiler.hugging_face.text.decoder import (
    BatchedDecoder,
    CachedDecoder,
    filled,
)
from kvc.compiler.hugging_face.text.decoder_methods import (
    rows_of,
)
from kvc.compiler.request.spec import Dim, StateSpec

AFTER: Final = "kvc_after"
AXES: Final = 3  # of a position: time, row, column
NUMBERS: Final = AXES + 1  # that come with embeddings: these, and what follows


class AxesDecoder(CachedDecoder):
    """A `CachedDecoder` that keeps what number follows each token."""

    kvc_after: Tensor

    def __init__(
        self,
        decoder: PreTrainedModel,
        layers: Mapping[int, CachedLayer],
        sizes: Sizes,
        prefill_sizes: Sequence[int] = (),
        first: int = 0,
    ) -> None:
        super().__init__(decoder, layers, sizes, prefill_sizes, first)
        slots = sizes.example_slots()
        found = tower_of(decoder)
        assert found is not None, "its pictures have sizes of their own"
        self._tower, tower = (found[0],), found[1]  # its modules are here already
        own = self._embed_in_windows if tower.window else self._embed_whole
        vars(self)["embed_image"] = own
        # Whole numbers: caches of another dtype, which recipes ask for, are of floats.
        numbers = torch.zeros(1, 1, slots, 1, dtype=torch.int64)
        self.register_buffer(AFTER, numbers, persistent=False)

    def prefill_embeds(self, inputs_embeds: Tensor, positions: Tensor) -> Tensor:  # type: ignore[override]
        """Append embeddings [batch, seq, hidden]; return the last ones' logits.

        Args:
            inputs_embeds: of text and pictures.
            positions: int64 [batch, 4, seq]: time, row and column of each, and what
                number follows it, all less the number that follows the token before.
        """
        return self._append(1, positions=positions, inputs_embeds=inputs_embeds)[:, -1]

    def _embed_in_windows(
        self, patches: Tensor, places: Tensor, windows: Tensor, back: Tensor
    ) -> Tensor:
        """Return embeddings of a picture; args are those of `embeddings_of`."""
        (tower,) = self._tower
        return embeddings_of(tower, patches, places, windows, back)

    def _embed_whole(self, patches: Tensor, places: Tensor) -> Tensor:
        """Return the same of a tower whose patches all see each other."""
        (tower,) = self._tower
        return embeddings_of(tower, patches, places)

    def _place(self, call: Call, seq: int, positions: Tensor | None) -> None:
        """Say where the tokens of a call are, and write what follows each."""
        last = (call.start - 1).clamp(min=0)[:, None]
        found = self.kvc_after[:, 0, :, 0].gather(1, last)[:, 0]
        begin = torch.where(call.start > 0, found, 0)[:, None]
        if positions is None:
            call.places = begin + torch.arange(seq)
            after = call.places + 1
        else:
            call.places = positions[:, :AXES].transpose(0, 1) + begin
            after = positions[:, AXES] + begin
        written: Tensor = torch.ops.kvc.cache_update(
            self.kvc_after,
            after[:, None, :, None],
            call.start,
            AXIS,
            "linear",
            call.row_lengths,
        )
        self.kvc_after.copy_(written)


class BatchedAxesDecoder(AxesDecoder, BatchedDecoder):
    """An `AxesDecoder` whose methods take row lengths."""

    def prefill_embeds(  # type: ignore[override]
        self, inputs_embeds: Tensor, positions: Tensor, lengths: Tensor
    ) -> Tensor:
        """Append embeddings [batch, seq, hidden]; return the last ones' logits."""
        given = filled(inputs_embeds, lengths)
        return self._append_last(lengths, positions=positions, inputs_embeds=given)


def after_state(sizes: Sizes) -> StateSpec:
    """Return what a session chooses of the numbers that follow tokens."""
    positions = Dim("capacity", min(LEAST_LENGTH, sizes.length), sizes.length)
    return StateSpec(AFTER, axis=AXIS, capacity=positions, batch=rows_of(sizes))
