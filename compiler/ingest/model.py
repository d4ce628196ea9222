"""What all graphs of one method share while they are imported."""

from collections.abc import Mapping
from dataclasses import dataclass

import sympy  # type: ignore[import-untyped]
from torch.utils._sympy.value_ranges import ValueRanges

from kvc.compiler.ingest.symbols import SizeReader
from kvc.compiler.ingest.tensors import TensorTable
from kvc.compiler.ir import Method


@dataclass(frozen=True, slots=True)
class Model:
    """What all graphs of one method share.

    Attributes:
        method: its name.
        tensors: the model's.
        sizes: what torch's symbols are.
        ranges: what torch knows of its symbols.
        blocks: of the whole program so far; blocks that are imported are added.
    """

    method: str
    tensors: TensorTable
    sizes: SizeReader
    ranges: Mapping[sympy.Symbol, ValueRanges[sympy.Expr]]
    blocks: list[Method]
