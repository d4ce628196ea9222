"""The methods of a decoder, and the sizes that its sessions select.

In: the sizes to compile for, the layers' cached tensors, and the model's picture input.
Out: `Method`s and `StateSpec`s of a `CachedDecoder`, as `compile_program` takes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvc.compiler.hugging_face.caches.cache import AXIS
from kvc.compiler.hugging_face.caches.layer_shapes import CachedLayer
from kvc.compiler.hugging_face.pictures.sized_pictures import (
    PictureInput,
    embeddings_of,
    tower_of,
)
from kvc.compiler.hugging_face.reading.calls import ModelCall
from kvc.compiler.hugging_face.reading.settings import LEAST_LENGTH, Sizes
from kvc.compiler.hugging_face.text.decoder import (
    CACHE,
    POSITION,
    BatchedDecoder,
    CachedDecoder,
    filled,
)
from kvc.compiler.request.spec import Dim, Method, StateSpec


def methods_of(
    sizes: Sizes,
    prefill_sizes: Sequence[int],
    all_logits: bool,
    embeds: Tensor | None,
    axes: int = 0,
) -> tuple[Method, ...]:
    """Return the methods to compile.

    Args:
        sizes: the sizes of the program.
        prefill_sizes: numbers of tokens N for which to add a method `prefill_N`.
        all_logits: whether to add `prefill_all`, which returns every position's logits.
        embeds: an example [1, 1, hidden] of embeddings for `prefill_embeds`; None:
            there is no such method.
        axes: the number of position numbers that callers pass with each embedding; 0:
            none.
    """
    tokens = torch.zeros(1, 2, dtype=torch.int64)
    methods = [
        _method("prefill", "tokens", tokens, sizes, role="prefill"),
        _method("decode", "token", tokens[:, :1], sizes, role="decode", seq=False),
    ]
    for size in prefill_sizes:
        fixed = torch.zeros(1, size, dtype=torch.int64)
        name, role = f"prefill_{size}", "prefill"
        methods.append(_method(name, "tokens", fixed, sizes, role, seq=False))
    if all_logits:
        methods.append(
            _method("prefill_all", "tokens", tokens, sizes, role="prefill_all")
        )
    if embeds is not None:
        example = embeds.expand(1, tokens.shape[1], -1).contiguous()
        made = _method("prefill_embeds", "inputs_embeds", example, sizes)
        methods.append(_with_positions(made, axes) if axes else made)
    return tuple(methods)


def _with_positions(method: Method, axes: int) -> Method:
    """Return a method of embeddings that also takes the embeddings' positions."""
    given, *others = method.args
    assert isinstance(given, Tensor)
    positions = torch.zeros(1, axes, given.shape[1], dtype=torch.int64)
    dims = method.dynamic["inputs_embeds"]
    moved = {axis + axis: dim for axis, dim in dims.items()}  # rows 0, tokens 2
    args = (given, positions, *others)
    return replace(method, args=args, dynamic={**method.dynamic, "positions": moved})


def picture_methods(
    given: PictureInput, sizes: Sizes, embeds: Tensor
) -> tuple[Method, ...]:
    """Return the methods that compute embeddings of pictures and of other tokens.

    These methods have no state. If the positions of pictures are bidirectional, the
    result also includes a prefill method for the embeddings of a picture.

    Args:
        given: the model's picture input.
        sizes: the sizes of the program.
        embeds: an example [1, 1, hidden] of embeddings.
    """
    tokens, dims = torch.zeros(1, 2, dtype=torch.int64), {1: Dim("seq", 1, sizes.chunk)}
    methods = [
        Method("embed_image", args=(given.pixels(),))
        if given.tower is None
        else given.tower.method(given.positions),
        Method("embed_tokens", args=(tokens,), dynamic={"tokens": dims}),
    ]
    if given.joined:
        places = embeds.expand(1, given.positions, -1).contiguous()
        name = "prefill_picture"
        methods.append(_method(name, "inputs_embeds", places, sizes, seq=False))
    return tuple(methods)


def _method(
    name: str,
    argument: str,
    example: Tensor,
    sizes: Sizes,
    role: str = "",
    seq: bool = True,
) -> Method:
    dims = {1: Dim("seq", 1, sizes.chunk)} if seq else {}
    if sizes.batch == 1:
        dynamic = {argument: dims} if dims else {}
        return Method(name, args=(example,), dynamic=dynamic, role=role)
    rows = {0: Dim("batch", 1, sizes.batch)}
    row_lengths, counted = "lengths", torch.ones(1, dtype=torch.int64)
    if role == "decode":
        row_lengths, counted = "active", torch.ones(1, dtype=torch.bool)
    dynamic = {argument: rows | dims, row_lengths: rows}
    return Method(name, args=(example, counted), dynamic=dynamic, role=role)


def rows_of(sizes: Sizes) -> Dim | None:
    """Return the `Dim` for the number of rows, None if there is always one row."""
    return Dim("batch", 1, sizes.batch) if sizes.batch > 1 else None


def linear_layers(layers: Mapping[int, CachedLayer], sizes: Sizes) -> list[int]:
    """Return the numbers of layers that cache keys and values of all positions."""
    attending = {i: layer.attention for i, layer in layers.items() if layer.attention}
    return [i for i, shape in attending.items() if shape.ring_slots(sizes) is None]


def states_of(
    layers: Mapping[int, CachedLayer], sizes: Sizes, capacity: str = "capacity"
) -> tuple[StateSpec, ...]:
    """Return the states whose number of positions or rows a session selects.

    A ring has the same number of slots in every session.

    Args:
        layers: the layers' cached tensors.
        sizes: the sizes of the program.
        capacity: the name under which a session gives the number of positions.
    """
    positions = Dim(capacity, min(LEAST_LENGTH, sizes.length), sizes.length)
    rows = rows_of(sizes)
    linear = linear_layers(layers, sizes)
    specs = [
        StateSpec(f"{CACHE}.{i}.{name}", axis=AXIS, capacity=positions, batch=rows)
        for i, layer in layers.items()
        if i in linear and layer.attention
        for name in layer.attention.widths()
    ]
    if rows is not None:
        specs += [
            StateSpec(f"{CACHE}.{i}.{name}", batch=rows)
            for i, layer in layers.items()
            for name in layer.names()
            if i not in linear or name in layer.states
        ]
        specs.append(StateSpec(POSITION, batch=rows))
    return tuple(specs)


# Decoders whose positions have axes: the time, row and column of a picture (Qwen2-VL).


AFTER: Final = "kvc_after"
AXES: Final = 3  # of a position: time, row, column
NUMBERS: Final = AXES + 1  # per embedding: the axes, and the following number


class AxesDecoder(CachedDecoder):
    """A `CachedDecoder` in which a position has several numbers: time, row, column.

    The buffer `kvc_after` stores, for each cached token, the number of the position
    that follows the token.
    """

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
        self._tower, tower = (found[0],), found[1]  # its modules are registered already
        own = self._embed_in_windows if tower.window else self._embed_whole
        vars(self)["embed_image"] = own
        # Integers, since recipes change the dtype of float caches.
        numbers = torch.zeros(1, 1, slots, 1, dtype=torch.int64)
        self.register_buffer(AFTER, numbers, persistent=False)

    def prefill_embeds(self, inputs_embeds: Tensor, positions: Tensor) -> Tensor:  # type: ignore[override]
        """Append embeddings [batch, seq, hidden]; return the last position's logits.

        Args:
            inputs_embeds: embeddings of text and pictures.
            positions: int64 [batch, 4, seq], four numbers for each embedding: its time,
                its row, its column, and the position number that follows it. All are
                relative to the position number that follows the last cached token.
        """
        return self._append(1, positions=positions, inputs_embeds=inputs_embeds)[:, -1]

    def _embed_in_windows(
        self, patches: Tensor, places: Tensor, windows: Tensor, back: Tensor
    ) -> Tensor:
        """Return the embeddings of a picture; arguments are as for `embeddings_of`."""
        (tower,) = self._tower
        return embeddings_of(tower, patches, places, windows, back)

    def _embed_whole(self, patches: Tensor, places: Tensor) -> Tensor:
        """Return the embeddings of a picture, for a tower without windows."""
        (tower,) = self._tower
        return embeddings_of(tower, patches, places)

    def _place(self, call: ModelCall, seq: int, positions: Tensor | None) -> None:
        """Set the positions of a call's tokens; store the number after each one."""
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
    """An `AxesDecoder` whose methods take the number of real tokens of each row."""

    def prefill_embeds(  # type: ignore[override]
        self, inputs_embeds: Tensor, positions: Tensor, lengths: Tensor
    ) -> Tensor:
        """Append embeddings [batch, seq, hidden]; return each row's last logits.

        `positions` is as for `AxesDecoder`; `lengths` int64 [batch] is the number of
        real embeddings of each row.
        """
        given = filled(inputs_embeds, lengths)
        return self._append_last(lengths, positions=positions, inputs_embeds=given)


def after_state(sizes: Sizes) -> StateSpec:
    """Return the state that stores the position number after each token.

    A session selects the state's capacity.
    """
    positions = Dim("capacity", min(LEAST_LENGTH, sizes.length), sizes.length)
    return StateSpec(AFTER, axis=AXIS, capacity=positions, batch=rows_of(sizes))


def example_embeds(model: PreTrainedModel) -> Tensor:
    """Return the embedding [1, 1, hidden] of zeros, in the dtype of the model's."""
    table = model.get_input_embeddings().weight
    assert isinstance(table, Tensor)
    return torch.zeros(1, 1, table.shape[1], dtype=table.dtype)
