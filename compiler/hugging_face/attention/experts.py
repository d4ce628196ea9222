"""Compute mixtures of experts with `kvc::expert_linear`.

In: the arguments of an expert layer of transformers: hidden states, and the experts
that the layer's router selected. Out: `kvc::expert_linear` for each projection of the
layer. This operator reads only selected experts, and its shapes do not depend on the
selection. `run_experts` is registered with transformers' public interface for experts,
as "kvc". In a few architectures that do not use the interface, functions of this module
replace the `forward` of the model's expert layers.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from kvc.compiler.hugging_face.attention.replaced import NAME
from kvc.compiler.hugging_face.reading.model_lines import name_of
from kvc.schema.errors import UnsupportedModel

if TYPE_CHECKING:
    from transformers.models.dbrx.modeling_dbrx import DbrxExperts
    from transformers.models.jetmoe.modeling_jetmoe import JetMoeMoE, JetMoeTopKGating
    from transformers.models.llama4.modeling_llama4 import Llama4TextMoe
    from transformers.models.longcat_flash.modeling_longcat_flash import (
        LongcatFlashExperts,
    )


class Experts(Protocol):
    """An expert layer of transformers.

    Attributes:
        has_gate: whether the first projection is `gate_up_proj`; if not, it is
            `up_proj`.
        has_bias: whether each projection has a bias, named like the projection with the
            suffix `_bias`.
        has_post_expert_norm: whether the experts' results are normalized before they
            are added.
        is_transposed: whether matrices are [in, out].
    """

    has_gate: bool
    has_bias: bool
    has_post_expert_norm: bool
    is_transposed: bool
    _is_expert_parallel: bool

    def act_fn(self, states: Tensor) -> Tensor:
        """Return the activation function's result for a projection without a gate."""
        ...

    def post_expert_norm(self, states: Tensor) -> Tensor:
        """Return the normalized results of the experts."""
        ...

    def _apply_gate(self, states: Tensor) -> Tensor: ...


@contextmanager
def own_experts(model: PreTrainedModel) -> Iterator[None]:
    """Make a model compute its experts by kvc's functions, if the model has experts."""
    with ExitStack() as stack:
        for module in model.modules():
            function = _OWN.get(name_of(module))
            if function is not None:
                setattr(module, _FORWARD, partial(function, module))
                stack.callback(delattr, module, _FORWARD)
        stack.enter_context(_by_interface(model))
        yield


@contextmanager
def _by_interface(model: PreTrainedModel) -> Iterator[None]:
    if not model._can_set_experts_implementation():
        yield
        return
    ALL_EXPERTS_FUNCTIONS.register(NAME, run_experts)
    before = model.get_experts_implementation()
    model.set_experts_implementation(NAME)
    try:
        yield
    finally:
        model.set_experts_implementation(before)


def run_experts(
    module: Experts, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Return the weighted sum of the experts' results for each token.

    Args:
        module: the layer of experts.
        hidden_states: [tokens, hidden].
        top_k_index: int64 [tokens, k], the experts of each token.
        top_k_weights: [tokens, k], the weights of these experts.

    Returns:
        The sums, [tokens, hidden].

    Raises:
        UnsupportedModel: the layer is divided among several processes.
    """
    if module._is_expert_parallel:
        reason = "its experts are spread over several processes"
        raise UnsupportedModel(model=type(module).__name__, reason=reason)
    chosen, experts = top_k_index.shape[1], top_k_index.reshape(-1)
    rows = hidden_states.repeat_interleave(chosen, dim=0)
    rows = _project(
        module, "gate_up_proj" if module.has_gate else "up_proj", rows, experts
    )
    rows = module._apply_gate(rows) if module.has_gate else module.act_fn(rows)
    rows = _project(module, "down_proj", rows, experts)
    if module.has_post_expert_norm:
        rows = module.post_expert_norm(rows)
    return _summed(rows, top_k_weights).to(hidden_states.dtype)


def _summed(rows: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of the rows of each token, [tokens, hidden].

    `rows` has one row for each selected expert of each token.
    """
    return (rows * weights.reshape(-1, 1)).view(*weights.shape, -1).sum(dim=1)


def _dbrx(
    module: "DbrxExperts",
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
) -> Tensor:
    """Compute DBRX's experts, whose matrices are concatenated into one matrix."""
    chosen, experts = top_k_index.shape[1], top_k_index.reshape(-1)
    rows = hidden_states.reshape(-1, module.hidden_size)
    rows = rows.repeat_interleave(chosen, dim=0)
    gate, up, down = (
        weight.view(module.num_experts, -1, module.hidden_size)
        for weight in (module.mlp.w1, module.mlp.v1, module.mlp.w2)
    )
    gated = module.mlp.activation_fn(_multiplied(rows, gate, experts))
    rows = _multiplied(gated * _multiplied(rows, up, experts), down, experts, True)
    return _summed(rows, top_k_weights).view(hidden_states.shape)


def _llama4(module: "Llama4TextMoe", hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    """Compute Llama 4's expert layer, whose own code runs all experts for each token.

    As in the layer's own code, weights multiply the inputs of experts, not the results.
    """
    states, own = hidden_states.reshape(-1, module.hidden_dim), module.experts
    logits = torch.nn.functional.linear(states, module.router.weight)
    best, chosen = logits.topk(module.top_k, dim=1)
    experts = chosen.reshape(-1)
    rows = states.repeat_interleave(module.top_k, dim=0)
    rows = rows * best.float().sigmoid().to(rows.dtype).reshape(-1, 1)
    gate, up = _multiplied(rows, own.gate_up_proj, experts, True).chunk(2, dim=-1)
    rows = _multiplied(up * own.act_fn(gate), own.down_proj, experts, True)
    routed = rows.view(*chosen.shape, -1).sum(dim=1)
    return module.shared_expert(states) + routed, logits


def _longcat(
    module: "LongcatFlashExperts",
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
) -> Tensor:
    """Compute LongCat's experts; the last ones return their input unchanged."""
    last = module.num_routed_experts - 1
    chosen, returned = top_k_index.clamp(max=last), top_k_index > last
    experts = chosen.reshape(-1)
    rows = hidden_states.repeat_interleave(chosen.shape[1], dim=0)
    gate, up = _multiplied(rows, module.gate_up_proj, experts).chunk(2, dim=-1)
    rows = _multiplied(module.act_fn(gate) * up, module.down_proj, experts)
    made = _summed(rows, top_k_weights.masked_fill(returned, 0))
    kept = top_k_weights.masked_fill(~returned, 0).sum(dim=1, keepdim=True)
    return (made + hidden_states * kept).to(hidden_states.dtype)


@dataclass(frozen=True, slots=True)
class Routed:
    """The experts that JetMoE's router selects for each token.

    Attributes:
        states: [tokens, hidden], the inputs of the experts.
        logits: float32 [tokens, experts], the router's logits.
        chosen: int64 [tokens, k], the selected experts of each token.
        weights: [tokens, k], the weights of these experts.
    """

    states: Tensor
    logits: Tensor
    chosen: Tensor
    weights: Tensor

    def repeated(self) -> Tensor:
        """Return the states once for each selected expert: [tokens * k, hidden]."""
        return self.states.repeat_interleave(self.chosen.shape[1], dim=0)

    def projected(self, rows: Tensor, weight: Tensor) -> Tensor:
        """Multiply each row of `rows` [tokens * k, in] by its expert's matrix.

        `weight` [experts, out, in] has the matrices of all experts.
        """
        return _multiplied(rows, weight, self.chosen.reshape(-1))

    def summed(self, rows: Tensor) -> Tensor:
        """Return the weighted sum of the rows of each token, [tokens, hidden]."""
        return _summed(rows, self.weights)


def jetmoe_routed(router: "JetMoeTopKGating", hidden_states: Tensor) -> Routed:
    """Return the selection of a JetMoE router for states [batch, seq, hidden].

    The router's own code cannot be used: it sorts rows by expert, and counts the rows
    of each expert.
    """
    states = hidden_states.reshape(-1, hidden_states.shape[-1])
    logits = router.layer(states).float()
    best, chosen = logits.topk(router.top_k, dim=1)
    return Routed(states, logits, chosen, best.softmax(dim=1).to(states.dtype))


def _jetmoe(module: "JetMoeMoE", layer_input: Tensor) -> Tensor:
    """Compute JetMoE's expert layer."""
    routed = jetmoe_routed(module.router, layer_input)
    rows = routed.projected(routed.repeated(), module.input_linear.weight)
    gate, up = rows.chunk(2, dim=-1)
    rows = module.activation(gate) * up
    out = routed.summed(routed.projected(rows, module.output_linear.weight))
    return out.view(layer_input.shape) + module.bias


def _doge(module: nn.Module, *_: object, **__: object) -> Tensor:
    """Refuse Doge's experts.

    Raises:
        UnsupportedModel: always.
    """
    reason = (
        "which experts a token goes to depends on the other tokens of its call, so "
        "nothing that is computed in parts equals the whole (is_moe in config.json)"
    )
    raise UnsupportedModel(model=type(module).__name__, reason=reason)


def _multiplied(
    rows: Tensor, weight: Tensor, experts: Tensor, transposed: bool = False
) -> Tensor:
    made: Tensor = torch.ops.kvc.expert_linear(rows, weight, experts, None, transposed)
    return made


def _project(module: Experts, name: str, rows: Tensor, experts: Tensor) -> Tensor:
    weight: Tensor = getattr(module, name)
    bias: Tensor | None = getattr(module, f"{name}_bias") if module.has_bias else None
    projected: Tensor = torch.ops.kvc.expert_linear(
        rows, weight, experts, bias, module.is_transposed
    )
    return projected


_FORWARD: Final = "forward"
# Expert layers that do not use the interface.
_OWN: Final[Mapping[str, Callable[..., object]]] = {
    "dbrx.DbrxExperts": _dbrx,
    "doge.DogeCDMoE": _doge,
    "jetmoe.JetMoeMoE": _jetmoe,
    "llama4.Llama4TextMoe": _llama4,
    "longcat_flash.LongcatFlashExperts": _longcat,
}
