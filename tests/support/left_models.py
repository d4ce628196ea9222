"""A model of which one method has an operator that no backend runs."""

import torch
from torch import Tensor, nn


class Sorting(nn.Module):
    """Sorts what it projects, or does not."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)

    def ordered(self, x: Tensor) -> Tensor:
        """Return what no backend computes."""
        return torch.sort(self.project(x))[0]

    def plain(self, x: Tensor) -> Tensor:
        """Return what all backends compute."""
        return self.project(x)
