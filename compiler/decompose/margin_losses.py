"""Margin losses, decomposed as torch's kernels compute them.

In: a call of a margin loss while it is traced. Out: the same numbers by operators of
the table; or None, which keeps the call. torch's kernels add only margins above zero,
so they skip a NaN. torch's own decompositions (2.13) add a NaN, and treat the entries
that follow a row's last label as labels of class 0.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_REDUCTIONS = "none", "mean", "sum"  # at torch's numbers
_NONE, _MEAN, _SUM = range(3)


def multi_margin_loss(
    x: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor | None:
    """Compute a loss that compares each row's labeled class with all other classes.

    This function replaces `functional.multi_margin_loss`, since torch decomposes the
    operator before it looks up a table of decompositions.
    """
    if (size_average, reduce) != (None, None) or reduction not in _REDUCTIONS:
        return None
    if x.dim() > 2 or p not in (1, 2):
        return None
    rows = x.reshape(-1, x.shape[-1] if x.dim() else 1)  # [batch, class]
    classes, labels = rows.shape[1], target.reshape(-1, 1)
    if labels.shape[0] != rows.shape[0]:
        return None
    margins = margin - rows.gather(-1, labels) + rows
    losses = margins if p == 1 else margins * margins
    if weight is not None:
        losses = losses * weight.reshape(-1)[labels]
    counted = (margins > 0) & (torch.arange(classes) != labels)
    loss = torch.where(counted, losses, 0.0).sum(-1) / classes
    return _reduced(loss.reshape(target.shape), _REDUCTIONS.index(reduction))


def numbered_multi_margin_loss(
    x: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor | None:
    """Compute `multi_margin_loss` for torch's operator.

    The operator takes the reduction as a number.
    """
    if reduction not in range(len(_REDUCTIONS)):
        return None
    return multi_margin_loss(
        x, target, p, margin, weight, reduction=_REDUCTIONS[reduction]
    )


def bound_multi_margin_loss(
    x: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: int = _NONE,  # the default differs from the operator's
) -> Tensor | None:
    """Compute `multi_margin_loss` for the Python binding in `torch._C._nn`."""
    return numbered_multi_margin_loss(x, target, p, margin, weight, reduction)


def _multilabel_margin_loss(
    self: Tensor, target: Tensor, reduction: int
) -> tuple[Tensor, Tensor]:
    """Compute a loss that compares each labeled class with all other classes.

    The labels of a row end at the first -1.
    """
    shape = (-1, self.shape[-1] if self.dim() else 1)
    x, labels = self.reshape(shape), target.reshape(shape)
    classes = x.shape[1]
    place = torch.arange(classes)
    ends = torch.where(labels == -1, place, classes).amin(-1, keepdim=True)
    counts = place < ends
    given = torch.where(counts, labels, 0)
    # [batch, label, class]
    margins = 1 - x.gather(-1, given).unsqueeze(-1) + x.unsqueeze(1)
    chosen = (given.unsqueeze(-1) == place) & counts.unsqueeze(-1)
    is_target = chosen.any(1)
    counted = (margins > 0) & ~is_target.unsqueeze(1) & counts.unsqueeze(-1)
    loss = torch.where(counted, margins, 0.0).sum((1, 2)) / classes
    targets = is_target.to(x.dtype).reshape(target.shape)
    return _reduced(loss.reshape(self.shape[:-1]), reduction), targets


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    if reduction == _NONE:
        return loss
    return loss.mean() if reduction == _MEAN else loss.sum()


MARGINS: Mapping[torch._ops.OperatorBase, Callable[..., object]] = {
    torch.ops.aten.multilabel_margin_loss_forward.default: _multilabel_margin_loss,
}
