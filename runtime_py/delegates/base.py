"""What a backend's run-time half is: two small protocols, with numpy at the seam.

A `Delegate` turns a payload into a `Handle`, once per program. A handle prepares a
call for arrays at fixed addresses, so that nothing that depends on shapes is left to
do while it runs. Neither needs torch; bfloat16 arrays come through `ml_dtypes`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvc.runtime.arenas import Arena
from kvc.runtime.arrays import Array
from kvc.runtime.data import FreeableBuffer
from kvc.schema.model import Delegate as Part
from kvc.schema.model import Program


@dataclass(frozen=True, slots=True)
class Options:
    """What a backend may want to know of its surroundings.

    Attributes:
        path: of the bundle, for messages.
        program: the verified program that the part belongs to.
    """

    path: str
    program: Program


class Handle(Protocol):
    """A payload that is ready to be prepared; used from many threads."""

    def prepare(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        workspace: Arena | None,
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Return a function that computes the outputs from the inputs.

        Args:
            inputs: arrays at addresses that stay, of any strides; states included.
            outputs: as `inputs`; the function writes them.
            workspace: an arena of at least the part's `workspace_nbytes`, shared by all
                calls of one execution context, of which one runs at a time.
            sizes: of the program's symbols in the calls that it is prepared for.
        """

    def packed(self) -> Mapping[str, int]:
        """Return how many bytes the handle keeps in a form of its own, by data name."""

    def close(self) -> None:
        """Release what the handle holds; no prepared function runs afterwards."""


class Delegate(Protocol):
    """A backend's run-time half."""

    def init(
        self, part: Part, data: Mapping[str, FreeableBuffer], options: Options
    ) -> Handle:
        """Decode and check a payload, and take the data that it needs.

        Raises:
            FormatError: the payload is damaged, or names what it may not.
        """
