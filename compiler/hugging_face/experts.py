"""Compute mixtures of experts with `kvc::expert_linear`.

In: what a layer of experts of transformers is called with: hidden states and the
experts that its router chose. Out: `kvc::expert_linear` for each of its projections,
which reads only chosen experts and whose shapes do not depend on the choice. Registered
with transformers' public interface for experts, as "kvc".
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from kvc.compiler.hugging_face.attention import NAME
from kvc.schema.errors import UnsupportedModel


class Experts(Protocol):
    """What transformers says of a layer of experts.

    Attributes:
        has_gate: the first projection is `gate_up_proj`, otherwise `up_proj`.
        has_bias: projections have a bias each, `..._bias`.
        has_post_expert_norm: results are normalised before they are added.
        is_transposed: matrices are [in, out].
    """

    has_gate: bool
    has_bias: bool
    has_post_expert_norm: bool
    is_transposed: bool
    _is_expert_parallel: bool

    def act_fn(self, states: Tensor) -> Tensor:
        """Return the activation of an ungated projection."""
        ...

    def post_expert_norm(self, states: Tensor) -> Tensor:
        """Return results normalised."""
        ...

    def _apply_gate(self, states: Tensor) -> Tensor: ...


@contextmanager
def own_experts(model: PreTrainedModel) -> Iterator[None]:
    """Let the experts of a model, if it has any, be computed by `run_experts`."""
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
    """Return each token's weighted sum of what its experts make of it.

    Args:
        module: the layer of experts.
        hidden_states: [tokens, hidden].
        top_k_index: int64 [tokens, k], the experts of each token.
        top_k_weights: [tokens, k], how much each counts.

    Returns:
        [tokens, hidden].

    Raises:
        UnsupportedModel: the layer is one part of many that share the work.
    """
    if module._is_expert_parallel:
        reason = "its experts are spread over several processes"
        raise UnsupportedModel(model=type(module).__name__, reason=reason)
    tokens, chosen = top_k_index.shape
    experts = top_k_index.reshape(-1)
    rows = hidden_states.repeat_interleave(chosen, dim=0)
    rows = _project(
        module, "gate_up_proj" if module.has_gate else "up_proj", rows, experts
    )
    rows = module._apply_gate(rows) if module.has_gate else module.act_fn(rows)
    rows = _project(module, "down_proj", rows, experts)
    if module.has_post_expert_norm:
        rows = module.post_expert_norm(rows)
    weighted = rows * top_k_weights.reshape(-1, 1)
    return weighted.view(tokens, chosen, -1).sum(dim=1).to(hidden_states.dtype)


def _project(module: Experts, name: str, rows: Tensor, experts: Tensor) -> Tensor:
    weight: Tensor = getattr(module, name)
    bias: Tensor | None = getattr(module, f"{name}_bias") if module.has_bias else None
    projected: Tensor = torch.ops.kvc.expert_linear(
        rows, weight, experts, bias, module.is_transposed
    )
    return projected
