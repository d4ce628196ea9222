"""Products that are added with one rounding, as the instruction `fma` adds them."""

import numpy as np


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a * b + c of float32, rounded once.

    In float64 the product is exact, and the sum is rounded to odd: with 29 bits more
    than float32 has, that leaves the second rounding what it would be without the
    first (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    product, added = np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)
    total = product + added
    part = total - product
    rest = (product - (total - part)) + (added - part)  # what the sum has lost
    even = total.view(np.int64) & 1 == 0
    inexact = np.isfinite(total) & (rest != 0) & even
    toward = np.where(rest > 0, np.inf, -np.inf)
    return np.where(inexact, np.nextafter(total, toward), total).astype(np.float32)
