"""Say what became of the matrices that a checkpoint has quantized."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from kvc.compiler.weights.sources import (
    SCALES,
    STORED_SCALES,
    Derived,
    Source,
    StoredSource,
    base_of,
    layout_of,
)

_AS_THEY_ARE: Final = "as they are"
_BY_RECIPE: Final = "quantized again as the recipe says"


def stored_forms(sources: Iterable[Source]) -> Mapping[str, int]:
    """Return what became of quantized matrices -> how many, in words.

    Matrices that are stored as floats are not counted.
    """
    found = Counter[str]()
    for source in sources:
        if not isinstance(source, Derived):
            continue
        base = base_of(source)
        layout = layout_of(base)
        if layout is None or not isinstance(base, StoredSource):
            continue
        kind = getattr(base.stored, "kind", "")
        if source.transform in STORED_SCALES:
            found[f"{kind} {layout.loss or _AS_THEY_ARE}"] += 1
        elif source.transform in SCALES:
            found[f"{kind} {_BY_RECIPE}"] += 1
    return dict(sorted(found.items()))
