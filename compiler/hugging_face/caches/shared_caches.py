"""Models whose last layers have no caches, and attend over earlier layers' caches.

For a prompt, layers without caches need only the positions whose logits are requested
(Gemma 4). Whether transformers leaves out the other positions depends on the length of
the call, which a trace cannot follow. In: a model. Out: inside `last_alone`, the layers
without caches and the head of the model get only the last positions, for any length of
the call.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from kvc.compiler.hugging_face.reading.model_lines import name_of

_METHOD: Final = "_maybe_slice_kv_shared_inputs"
_FIRST: Final = "first_kv_shared_layer_idx"
_HEADS: Final = frozenset(
    {
        "gemma4.Gemma4ForCausalLM",
        "gemma4.Gemma4ForConditionalGeneration",
        "gemma4_unified.Gemma4UnifiedForCausalLM",
        "gemma4_unified.Gemma4UnifiedForConditionalGeneration",
    }
)


@contextmanager
def last_alone(model: PreTrainedModel) -> Iterator[None]:
    """Run layers without caches on the last positions only."""
    with ExitStack() as stack:
        for module in model.modules():
            if _shares(module):
                vars(module)[_METHOD] = _last
                stack.callback(vars(module).pop, _METHOD)
        if name_of(model) in _HEADS and any(map(_shares, model.modules())):
            original: Callable[..., object] = model.forward
            vars(model)["forward"] = wraps(original)(partial(_forward, model))
            stack.callback(vars(model).pop, "forward")
        yield


def _shares(module: nn.Module) -> bool:
    """Tell whether some layers of a module attend over the caches of other layers."""
    if not hasattr(type(module), _METHOD):
        return False
    return int(str(getattr(module, _FIRST))) < len(module.layers)  # type: ignore[arg-type]


def _last(*given: object, **_: object) -> tuple[object, ...]:
    """Replace the model's method that selects positions for layers without caches.

    Return the arguments, cut to the last `keep` positions; 0 keeps all positions.
    """
    *whole, keep = given
    assert isinstance(keep, int), "it is given with each call"
    return tuple(whole) if not keep else tuple(_cut(one, keep) for one in whole)


def _cut(given: object, keep: int) -> object:
    """Return tensors cut to their last `keep` positions.

    A `MaskStandIn` stays unchanged.
    """
    match given:
        case Tensor():
            return given[:, -keep:]
        case Mapping():
            return {kind: _cut(one, keep) for kind, one in given.items()}
        case (Tensor(), Tensor()):
            return tuple(part[:, -keep:] for part in given)
    return given


def _forward(
    model: PreTrainedModel, *args: object, **given: object
) -> CausalLMOutputWithPast:
    """Replace a model's forward: return logits of the positions that are left.

    These are the last positions, to which `_last` has cut the tensors of layers.
    """
    made = model.base_model(*args, **given)
    logits: Tensor = model.lm_head(made.last_hidden_state)
    cap = model.config.get_text_config().final_logit_softcapping
    if cap is not None:
        logits = torch.tanh(logits / cap) * cap
    return CausalLMOutputWithPast(logits=logits, past_key_values=made.past_key_values)
