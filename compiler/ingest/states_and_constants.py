"""Classify the tensors of a model as states or constants, by identity.

In: the model's tensors and the tensors that each traced method mutates. Out: for each
tensor in a graph, the state or constant that stands for the tensor. A tensor that has
several names in the model gets one of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sympy  # type: ignore[import-untyped]
from torch import Tensor
from torch.utils._sympy.value_ranges import ValueRanges

from kvc.compiler.checkpoints.filled import attached
from kvc.compiler.ingest.symbols import TORCH_DTYPES, SizeReader
from kvc.compiler.ir import Constant, Method, State
from kvc.compiler.weights.sources import Slot, Source, TensorSource
from kvc.compiler.weights.tensor_identity import Identity, overlapping, overlaps_itself
from kvc.compiler.weights.weight_reader import is_zero
from kvc.schema.errors import CompileError, StateConflict
from kvc.schema.types import TensorType


class TensorTable:
    """Names the tensors of a program; constants are added when a method reads them."""

    def __init__(
        self,
        named: Mapping[str, Tensor],
        mutated: Iterable[Tensor],
        sized: Mapping[str, TensorType] | None = None,
        slots: Iterable[str] = (),
    ) -> None:
        """Name the states.

        Args:
            named: name -> tensor of the model, for all names of each tensor.
            mutated: the tensors that any method writes.
            sized: name -> type, for tensors whose size a session chooses.
            slots: names of constants that the bundle does not have.

        Raises:
            StateConflict: a state shares memory with another tensor, or a state whose
                size a session chooses does not start as zeros.
        """
        self.named = named
        self._sized = {Identity.of(named[n]): kind for n, kind in (sized or {}).items()}
        self._names: dict[Identity, str] = {}
        self._stored: dict[Identity, Source] = {
            Identity.of(named[name]): Slot(name, tuple(named[name].shape))
            for name in slots
        }
        for name, tensor in named.items():
            self._names.setdefault(Identity.of(tensor), name)
            stored = attached(tensor)
            if stored is not None:
                self._stored[Identity.of(tensor)] = stored
        self._taken = set(self._names.values())
        self.constants: dict[Identity, Constant] = {}
        self.initial: list[Constant] = []
        self.states: dict[Identity, State] = {}
        self._written: dict[str, Tensor] = {}
        for tensor in mutated:
            if Identity.of(tensor) not in self.states:
                self._add_state(tensor)

    def state(self, tensor: Tensor) -> State | None:
        """Return the state for a tensor, None if no method writes the tensor."""
        return self.states.get(Identity.of(tensor))

    def constant(self, tensor: Tensor, provenance: str) -> Constant:
        """Return the constant for a tensor; add a constant with `provenance` if needed.

        Raises:
            StateConflict: the tensor shares memory with a state.
        """
        key = Identity.of(tensor)
        if key not in self.constants:
            name = self._names.get(key) or self._free_name(provenance)
            self._check_apart(name, tensor)
            self.constants[key] = Constant(
                name, static_type(name, tensor), self._source(tensor), provenance
            )
        return self.constants[key]

    def _check_apart(self, name: str, tensor: Tensor) -> None:
        """Refuse a constant that lies in the memory of a state."""
        for state in overlapping(tensor, self._written):
            reason = (
                f"a method writes it, and {name!r} is over the same memory but cannot "
                "be traced as a part of it; take views of the buffer, in the code"
            )
            raise StateConflict(state=state, reason=reason)

    def _source(self, tensor: Tensor) -> Source:
        """Return where a tensor's values are read: a checkpoint, or else the tensor."""
        return self._stored.get(Identity.of(tensor)) or TensorSource(tensor)

    def _free_name(self, stem: str) -> str:
        number = 0
        while (name := f"{stem}.{number}") in self._taken:
            number += 1
        self._taken.add(name)
        return name

    def _add_state(self, tensor: Tensor) -> None:
        key = Identity.of(tensor)
        name = self._names.get(key) or self._free_name("state")
        if overlaps_itself(tensor):
            raise StateConflict(
                state=name,
                reason="a method writes it, and elements of it share memory (shape "
                f"{tuple(tensor.shape)}, strides {tensor.stride()}), so that one write "
                "would change several; register a .clone() of it as the buffer",
            )
        for other in overlapping(tensor, self.named):
            reason = (
                f"a method writes it, and it shares memory with {other!r} in another "
                "shape or place; keep one buffer and take views of it in the code"
            )
            raise StateConflict(state=name, reason=reason)
        kind = static_type(name, tensor)
        initial = None
        source = self._source(tensor)
        if not is_zero(source):
            if key in self._sized:
                raise _starts_otherwise(name)
            initial = f"{name}.initial"
            self.initial.append(Constant(initial, kind, source, "initial value"))
        self._written[name] = tensor
        self.states[key] = State(name, self._sized.get(key, kind), initial)


def _starts_otherwise(name: str) -> StateConflict:
    reason = (
        "its size is chosen when a session is opened (StateSpec), so that it can only "
        "start as zeros, but the model's buffer holds other values; zero it, or leave "
        "it out of the pattern"
    )
    return StateConflict(state=name, reason=reason)


def static_type(name: str, tensor: Tensor) -> TensorType:
    """Return the type of a tensor with its current sizes.

    Raises:
        CompileError: kvc does not have the tensor's dtype.
    """
    if tensor.dtype not in TORCH_DTYPES:
        raise CompileError(
            message=f"{name} has dtype {tensor.dtype}, which kvc does not have"
        )
    return TensorType(TORCH_DTYPES[tensor.dtype], tuple(tensor.shape))


# Data shared by all graphs of one method while they are imported.


@dataclass(frozen=True, slots=True)
class Model:
    """The data that all graphs of one method share while they are imported.

    Attributes:
        method: the name of the method.
        tensors: the table of the model's tensors.
        sizes: converts torch's symbolic sizes to `Dim`s.
        ranges: torch's symbol -> the range of the symbol's values.
        blocks: the blocks of the program imported so far; new blocks are appended.
    """

    method: str
    tensors: TensorTable
    sizes: SizeReader
    ranges: Mapping[sympy.Symbol, ValueRanges[sympy.Expr]]
    blocks: list[Method]
