"""Choosing the next token from logits, with numpy alone."""

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


def choose_token(
    logits: Logits, temperature: float, top_k: int | None, random: np.random.Generator
) -> int:
    """Return a token id.

    Args:
        logits: float32 [vocab].
        temperature: 0 takes the greatest logit; above, the distribution is flatter.
        top_k: only the k greatest logits may be chosen; None for all.
        random: where chance comes from.
    """
    if temperature == 0:
        return int(np.argmax(logits))
    scaled = logits.astype(np.float64) / temperature
    if top_k is not None and top_k < scaled.size:
        floor = np.partition(scaled, -top_k)[-top_k]
        scaled = np.where(scaled >= floor, scaled, -np.inf)
    weights = np.exp(scaled - scaled.max())
    return int(random.choice(weights.size, p=weights / weights.sum()))
