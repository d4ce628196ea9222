"""Run a model of transformers that rounds where its bundle does, without kvc's code.

In: a model in its own attention, and the names of the bundle's weights, which say in
which form each is stored. Out: logits of a run over the whole text. In it, linear
layers, experts and embeddings multiply as the recipe's file says, and keys and values
have the values that rows of a narrow cache can represent. Integer products are exact.

A sum in another order may round to the other side of the middle between two steps, and
then all that follows differs by a step. So `text_without_ties` chooses tokens such that
no rounded value lies near such a middle (a tie). For that text, the bundle must agree
with this run as closely as float32 sums do.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from hf_models import VOCAB
from rounded_weights import (
    BLOCK,
    exact_product,
    int8_matrix,
    product_by_int4,
    stored_table,
    zero_point,
)
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.models.minimax.modeling_minimax import MiniMaxCache

# Forms of weights as they stand at the end of their names in a bundle.
FORMS = ("int8", "int8_blocks", "int4", "int4_signed", "bfloat16")
INT4 = {"int4": False, "int4_signed": True}  # whether scales may be negative
LEVELS, FACTORS = 255, 31
# How near a middle a value may be, as a share of its row's largest: several times as
# far as float32 sums of tiny layers differ. A step too small to show does not count.
APART = 2e-6
APART_FLOAT = 1.5e-7
# Of tokens, for one place. Rows of float16 have too many values that may be ties.
TRIES = {"float32": 24, "int8": 24, "float16": 4}


class Ties:
    """How near the rounded values of a run came to a tie, the middle of two steps.

    Attributes:
        last: the least distance in the text's last row.
        any: the least distance in all rows.
    """

    def __init__(self, length: int) -> None:
        self.last, self.any = np.inf, np.inf
        self._length = length

    def note(self, x: Tensor, step, apart: float, extent, least: float = 0) -> None:
        """Note how near values x [..., rows, width] are to the middle of two steps.

        The values are about to be rounded to multiples of `step`. `extent` says how
        large the numbers of each row are. Distances are taken as shares of it, in units
        of `apart`. Steps whose share of it is below `least` are left out.
        """
        steps = x / step
        middle = (steps - steps.floor() - 0.5).abs() * step / extent / apart
        middle = middle.masked_fill(torch.as_tensor(step / extent < least), np.inf)
        if not middle.numel():
            return
        self.any = min(self.any, float(middle.min()))
        if middle.dim() > 1 and middle.shape[-2] == self._length:
            self.last = min(self.last, float(middle[..., -1, :].min()))

    def note_float(self, x: Tensor, digits: int, least: float) -> None:
        """Note how near values are to ties when rounded to `digits` binary digits."""
        spacing = torch.exp2(torch.frexp(x).exponent - digits)
        largest = x.abs().amax(-1, keepdim=True).clamp(min=1e-30)
        self.note(x, spacing, APART_FLOAT, largest, least)


class Rounded(TorchFunctionMode):
    """Makes a model multiply by its weights as the bundle stores them."""

    def __init__(self, model: PreTrainedModel, names: Iterable[str], ties: Ties):
        super().__init__()
        names = tuple(names)
        self._forms = _forms(model, names)
        # A bundle whose tables are so quantizes its activations in blocks, too.
        self._in_blocks = any(name.endswith(".int8_blocks") for name in names)
        # Matrices of experts whose bias is added in a step of its own, which recipes
        # add before they round.
        known = dict(model.named_parameters())
        self._biased = {
            weight.untyped_storage().data_ptr()
            for name, weight in known.items()
            if f"{name}_bias" in known
        }
        self._unrounded: Tensor | None = None
        self._ties = ties

    def __torch_function__(self, function, types, args=(), kwargs=None) -> object:
        if function in _ADDED and args[0] is self._unrounded:
            return self._round_bfloat16(args[0] + args[1].bfloat16().float())
        product = _product_of(function, args, kwargs or {})
        form = None if product is None else self._form(product.weight)
        if product is not None and form is not None:
            return self._multiplied(product, form)
        return function(*args, **(kwargs or {}))

    def _multiplied(self, product: "_Product", form: str) -> Tensor:
        x, weight = product.x, product.weight
        if product.is_table:
            return torch.embedding(stored_table(weight, form), x)
        if weight.dim() == 3:
            pairs = zip(x, weight, strict=True)
            return torch.stack([self._linear(*pair, None, form) for pair in pairs])
        if form == "bfloat16" and weight.untyped_storage().data_ptr() in self._biased:
            self._unrounded = self._exact(x, weight)
            return self._unrounded
        return self._linear(x, weight, product.bias, form)

    def _form(self, weight: object) -> str | None:
        if not isinstance(weight, Tensor):
            return None
        return self._forms.get(weight.untyped_storage().data_ptr())

    def _linear(self, x, weight, bias, form) -> Tensor:
        """Return x float32 [..., in] times a weight [out, in] stored in `form`."""
        if form == "bfloat16":
            exact = self._exact(x, weight)
            return self._round_bfloat16(
                exact if bias is None else exact + bias.bfloat16().float()
            )
        steps, scale = self._blocks(x) if self._in_blocks else self._rows(x)
        if form in INT4 and weight.shape[1] % BLOCK == 0:
            made = product_by_int4(steps, weight, INT4[form]) / scale
        elif form == "int8":
            values, weight_scale = int8_matrix(weight)
            made = exact_product(steps, values) / scale * weight_scale
        else:
            made = exact_product(steps, stored_table(weight, form)) / scale
        return made if bias is None else made + bias

    def _blocks(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Quantize rows in blocks, as the recipe cpu_q8 does.

        A block whose range takes fewer steps than int8 has is never clamped, so that
        its zero point does not matter.

        Returns:
            The number of steps of each value, and how many steps make 1.0 in each row.
        """
        width = x.shape[-1]
        padded = torch.nn.functional.pad(x, (0, -width % BLOCK))
        blocks = padded.unflatten(-1, (-1, BLOCK))
        low, high = blocks.amin(-1).clamp(max=0), blocks.amax(-1).clamp(min=0)
        spread = high - low
        most = spread.amax(-1, keepdim=True)
        rate = FACTORS / most.clamp(min=1e-30)
        factor = (spread * rate).ceil().clamp(1, FACTORS)
        assert factor.shape[-1] <= 66, "a row of more has smaller factors"
        self._note_factors(spread, most, rate)
        scale = torch.where(most > 0, LEVELS * rate, 1.0)
        step = scale / factor
        zero = zero_point(low * step, high * step)
        full = spread * step > LEVELS - 1
        self._note_blocks(blocks, low, high, step, zero.masked_fill(~full, 0), most)
        zero, step = zero.clamp(-128, 127).round()[..., None], step[..., None]
        q = ((blocks * step).round() + zero).clamp(-128, 127)
        steps = ((q - zero) * factor[..., None]).flatten(-2)
        return steps[..., :width], scale

    def _note_factors(self, spread: Tensor, most: Tensor, rate: Tensor) -> None:
        """Note how near each block's factor is to being rounded to another integer.

        A block's factor is its range in units of a fixed share of the widest range in
        the row, rounded up.
        """
        plain = (spread == most) | (spread * rate < 0.5)
        above = (spread + 0.5 / rate).masked_fill(plain, 0)
        self._ties.note(above, 1 / rate, APART, most.clamp(min=1e-30))

    def _note_blocks(self, blocks, low, high, step, zero, most) -> None:
        # The ends of the whole range are whole numbers of steps from its zero point.
        widest = (high - low == most)[..., None]
        ends = (blocks == low[..., None]) | (blocks == high[..., None])
        inner = blocks.masked_fill(ends & widest, 0).flatten(-2)
        extent = most.clamp(min=1e-30)
        each = step.repeat_interleave(BLOCK, -1)
        self._ties.note(inner, 1 / each, APART, extent)
        self._ties.note(torch.where(low == -high, 0, zero), 1.0, APART, extent * step)

    def _rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Quantize each row as the recipe xnnpack_q8 does.

        Returns:
            The number of steps of each value, and how many steps make 1.0 in each row.
        """
        low = x.amin(-1, keepdim=True).clamp(max=0)
        high = x.amax(-1, keepdim=True).clamp(min=0)
        scale = torch.where(low == high, 1.0, 255 / (high - low))
        a, b = low * scale, high * scale
        zero = zero_point(a, b)
        # Rows that clamping has made symmetric are so exactly: both ends are ties.
        inner = torch.where((x == low) | (x == high), 0, x)
        self._ties.note(inner, 1 / scale, APART, high - low)
        self._ties.note(torch.where(low == -high, 0, zero), 1.0, APART, 255.0)
        zero = zero.clamp(-128, 127).round()
        return ((x * scale).round() + zero).clamp(-128, 127) - zero, scale

    def _exact(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the unrounded product of x and weight, both rounded to bfloat16."""
        return exact_product(self._round_bfloat16(x), weight.bfloat16())

    def _round_bfloat16(self, x: Tensor) -> Tensor:
        self._ties.note_float(x, 8, 1e-5)
        return x.bfloat16().float()


@dataclass(frozen=True, slots=True)
class _Product:
    """The product of rows x [..., in] and a weight [out, in].

    A weight of three dims is one matrix for each item of x. With `is_table`, x has row
    numbers, and the result is those rows of the weight.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None = None
    is_table: bool = False


_ADDED = (Tensor.add, Tensor.__add__)
_MATMUL = (torch.matmul, Tensor.matmul, Tensor.__matmul__)


def _product_of(function, args, kwargs) -> _Product | None:
    """Return the product with a weight that a call computes; None for other calls."""
    if function is torch.nn.functional.linear:
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        return _Product(args[0], args[1], bias)
    if function is torch.nn.functional.embedding:
        return _Product(args[0], args[1], is_table=True)
    if function is torch.addmm:
        return _Product(args[1], args[2].t(), args[0])
    if function is torch.bmm or (function in _MATMUL and args[1].dim() == 2):
        return _Product(args[0], args[1].transpose(-1, -2))
    return None


def _forms(model: PreTrainedModel, names: Iterable[str]) -> dict[int, str]:
    found: dict[str, str] = {}
    for stored in names:
        name, _, form = stored.rpartition(".")
        if form in FORMS:
            found[name.removesuffix(".transposed").removesuffix(".divided")] = form
    weights = dict(model.named_parameters(remove_duplicate=False))
    unknown = found.keys() - weights.keys()
    assert not unknown, unknown
    return {
        weights[name].untyped_storage().data_ptr(): form for name, form in found.items()
    }


class _Rounding(DynamicCache):
    """A cache for one call that rounds keys and values as a narrow cache does."""

    def round_by(self, model: PreTrainedModel, dtype: str, ties: Ties) -> None:
        self._dtype, self._ties = dtype, ties
        # Which parts of keys and values are one row, and share a scale.
        self._latent = getattr(model.config, "kv_lora_rank", None) is not None
        self._pairs = model.config.model_type == "diffllama"

    def update(
        self, key: Tensor, value: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if self._dtype != "float32":
            key, value = self._rounded(key, value)
        return super().update(key, value, *args, **kwargs)

    def _rounded(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if self._latent:
            both = self._rows(torch.cat([key, value], -1))
            return both.tensor_split([key.shape[-1]], -1)
        if not self._pairs:
            return self._rows(key), self._rows(value)
        halves = [torch.cat(x.chunk(2, 1), -1) for x in (key, value)]
        return tuple(torch.cat(self._rows(x).chunk(2, -1), 1) for x in halves)

    def _rows(self, x: Tensor) -> Tensor:
        if self._dtype == "float16":
            self._ties.note_float(x, 11, 1e-4)
            return x.half().float()
        scale = x.abs().amax(-1, keepdim=True) / 127
        scale = scale.clamp(min=torch.finfo(torch.float32).tiny)
        self._ties.note(x, scale, APART, 127 * scale)
        return (x / scale).round() * scale


class _MiniMaxCache(_Rounding, MiniMaxCache):
    """The same for MiniMax, which takes only a cache of its own class.

    That cache has the states of MiniMax's linear attention as well.
    """


def _rounding(model: PreTrainedModel, dtype: str, ties: Ties) -> DynamicCache:
    own = model.config.model_type == "minimax"
    cache = _MiniMaxCache() if own else _Rounding(config=model.config)
    cache.round_by(model, dtype, ties)
    return cache


def rounded_logits(
    model: PreTrainedModel, names: Iterable[str], cache: str, tokens: np.ndarray
) -> tuple[np.ndarray, Ties]:
    """Return logits float32 [seq, vocab] of the rounded model, and its near ties.

    `cache` is the dtype of the cache: float32, float16 or int8.
    """
    ties = Ties(tokens.shape[1])
    given: dict[str, object] = {"use_cache": False}
    if cache != "float32":
        held = _rounding(model, cache, ties)
        given = {"past_key_values": held, "use_cache": True}
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")
    with torch.no_grad(), Rounded(model, names, ties):
        made = model(input_ids=torch.from_numpy(tokens), **given)
    return made.logits[0].numpy(), ties


def text_without_ties(
    model: PreTrainedModel, names: Iterable[str], cache: str, length: int
) -> np.ndarray:
    """Return tokens int64 [1, length] for which no rounded value is near a tie.

    Tokens are chosen one after the other, each from a few in random order: the first
    for which none of its values is near a tie, or else the one that stays farthest from
    ties. A new token changes values of earlier tokens only by the order of sums.
    """
    names, random = tuple(names), np.random.default_rng(11)
    tokens = np.zeros((1, 0), np.int64)
    while tokens.shape[1] < length:
        best, most = tokens, -1.0
        for token in 3 + random.permutation(VOCAB - 3)[: TRIES[cache]]:
            longer = np.append(tokens, [[token]], axis=1)
            _, ties = rounded_logits(model, names, cache, longer)
            apart = min(ties.last, 2 * ties.any)
            if apart > most:
                best, most = longer, apart
            if apart > 1:
                break
        tokens = best
    return tokens
