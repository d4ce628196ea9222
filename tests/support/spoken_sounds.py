"""Artificial sounds that resemble speech: changing pitches, pauses and noise."""

import numpy as np

RATE = 16_000


def sound(seconds: float, seed: int = 0) -> np.ndarray:
    """Return a sound as samples float32 [n] at 16 kHz."""
    times = np.arange(round(seconds * RATE)) / RATE
    pitch = np.cumsum(150 + 900 * np.abs(np.sin(1.7 * times))) / RATE
    voice = sum(np.sin(2 * np.pi * pitch * n) / n for n in (1, 2, 3, 5))
    loud = np.clip(np.sin(3.1 * times) + 0.6, 0, 1)
    noise = np.random.default_rng(seed).normal(size=times.size)
    return (0.3 * voice * loud + 0.003 * noise).astype(np.float32)
