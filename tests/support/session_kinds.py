"""A model of tokens for every kind of state, for random tests of sessions.

Another model is one more line of `KINDS`. All take tokens int64 [1, seq], and have a
reference: logits [1, seq, vocab] of one forward over all tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from branching_caches import InBranch, Merged, branch_method, merged_method
from cached_models import (
    SLOTS,
    Append,
    IndexCopy,
    Linear,
    OneLayer,
    Recurrent,
    RecurrentWhereTold,
    Shifting,
    append_methods,
    placed_methods,
    simple_methods,
    told_methods,
)
from int8_models import (
    Exact,
    HalfLinear,
    HalfShortRing,
    HalfSwapped,
    ShortRing,
    Swapped,
)

from kvc.compiler import Dim, Method
from kvc.compiler.request.spec import StateSpec
from kvc.recipes import Recipe, load_recipe
from kvc.runtime import Program, Session
from kvc.schema.errors import NoPosition, NotRewindable

INT8 = load_recipe("fp32", cache="int8")
FLOAT16 = load_recipe("fp32", cache="float16")
SIZED = (StateSpec("[kv]", axis=2, capacity=Dim("capacity", 2, SLOTS)),)
Arguments = Callable[[np.ndarray, int, bool], tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A model, how it is compiled, and what its sessions can do."""

    model: Callable[[], OneLayer]  # makes it
    # to compile: one that takes many tokens, and one for the last
    methods: Sequence[Method]
    states: Sequence[StateSpec] = ()  # what is said of its states
    recipe: str | Recipe = "fp32"  # to compile with
    counts: bool = True  # whether it has a position, and a capacity can be chosen
    goes_back: bool = True  # whether tokens can be forgotten, and failed calls put back
    # of a call: its tokens, how many there are before, whether they are kept
    arguments: Arguments = lambda tokens, held, kept: (tokens,)
    # whether tokens may be lost; the reference takes such a one as ~token
    loses: bool = False

    def forward(self, tokens: Sequence[int]) -> np.ndarray:
        with torch.no_grad():
            found: np.ndarray = self.model().reference(torch.tensor([tokens])).numpy()
        return found


_PLAIN = Kind(Recurrent, simple_methods(), counts=False, goes_back=False)

KINDS: dict[str, Kind] = {
    "linear": Kind(Linear, simple_methods(), SIZED),
    "append": Kind(Append, append_methods()),
    "index_copy": Kind(IndexCopy, placed_methods()),
    "int8": Kind(Exact, simple_methods(), SIZED, INT8),
    "int8, slots before heads": Kind(Swapped, simple_methods(), recipe=INT8),
    "float16": Kind(HalfLinear, simple_methods(), SIZED, FLOAT16),
    "float16, slots before heads": Kind(HalfSwapped, simple_methods(), recipe=FLOAT16),
    "recurrent": _PLAIN,
    "shifting": replace(_PLAIN, model=Shifting),
    "told": Kind(RecurrentWhereTold, told_methods(), goes_back=False),
    "branch": Kind(
        InBranch,
        [branch_method()],
        SIZED,
        arguments=lambda tokens, held, kept: (tokens, np.array(kept)),
        loses=True,
    ),
    "append in a branch": Kind(
        Merged,
        [merged_method()],
        arguments=lambda tokens, held, kept: (tokens, np.array(held > 0)),
    ),
}


def _ring_methods() -> list[Method]:
    prefill, decode = simple_methods()
    sizes = {"tokens": {1: Dim("seq", 1, ShortRing.LONGEST)}}
    return [replace(prefill, dynamic=sizes), decode]


# Those that forget: a machine of their own knows how far they go back.
RINGS: dict[str, Kind] = {
    "ring that keeps": Kind(ShortRing, _ring_methods()),
    "int8 ring that keeps": Kind(ShortRing, _ring_methods(), recipe=INT8),
    "float16 ring that keeps": Kind(HalfShortRing, _ring_methods(), recipe=FLOAT16),
}


TOKENS = np.arange(7)[None]


def behaviour(program: Program, kind: Kind, folder: Path) -> dict[str, object]:
    """Run a fixed series of operations on a session, and return what they gave.

    The operations are calls, a fork, saving, rewinding and trimming. The result has the
    capacity, the size of the saved file, the positions (or the refusal of going back),
    and the results of calls and states.
    """
    with program.session() as session:
        results = _feed(session, kind, 0, 4)
        with session.fork() as twin:
            results += _feed(twin, kind, 4, 2)
        session.save(folder / "saved")
        found: dict[str, object] = {
            "capacity": session.capacity,
            "nbytes": (folder / "saved").stat().st_size,
        }
        try:
            found["position"] = session.position.tolist()
            found["rewindable"] = session.rewindable.tolist()
            session.rewind(2)
        except (NoPosition, NotRewindable) as error:
            found["refused"] = str(error)
        results += _feed(session, kind, 4, 1)
        session.trim()
        results += [np.array(found) for found in session.state.values()]
    return {**found, "results": results}


def _feed(session: Session, kind: Kind, first: int, count: int) -> list[np.ndarray]:
    """Run the first method on `count` of the tokens, from number `first` on."""
    tokens = TOKENS[:, first : first + count]
    arguments = kind.arguments(tokens, first, True)
    result = session.call(kind.methods[0].name, *arguments)
    return list(result.values()) if isinstance(result, dict) else [result]
