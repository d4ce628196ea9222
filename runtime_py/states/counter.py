"""Counters: small integer states to which methods add.

Counters are copied before each call that writes them. A rewind subtracts the dropped
tokens.
"""

from collections.abc import Sequence

import numpy as np

from kvc.runtime.states.kind import Kind
from kvc.runtime.states.owner import WHOLE
from kvc.schema.graph import AccessMode


class Counter(Kind):
    """Counter states of a session."""

    undoes = frozenset(AccessMode)
    copied = True

    def why_lost(self, counting: frozenset[str]) -> str:
        others = self.group.writers ^ counting
        why = f"method {min(others, default='')} does not advance it"
        return f"{why} together with the position" if others else ""

    def rewind(
        self, starts: Sequence[int], ends: Sequence[int], firsts: Sequence[int]
    ) -> None:
        content = self.store.read()  # [states, rows, ...] or [states, ...]
        counts = np.subtract(starts, ends)
        if len(set(counts.tolist())) == 1:
            counts = counts[:1]
        content -= counts.reshape((-1,) + (1,) * (content.ndim - 2))  # type: ignore[misc]
        self.store.write(WHOLE, content)
