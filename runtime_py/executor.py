"""The instruction loop: runs the steps of a frame, and says which one failed.

In: a frame whose inputs are filled. Out: its outputs hold the results. All work that
depends on shapes was done when the frame was bound; what is left is a flat list.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvc.runtime.arrays import Array
from kvc.schema.errors import KernelFailed, KvcError
from kvc.schema.model import Instruction

Step = tuple[Callable[..., object], tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Frame:
    """A graph bound to sizes and memory: every operand at its fixed address.

    Attributes:
        method: its name, for messages.
        inputs: arrays that the caller fills.
        outputs: arrays that hold the results after the last step.
        steps: functions and their arguments, in running order.
        places: index of the instruction that each step belongs to.
        instructions: of the graph.
        uses_torch: whether any step calls a torch kernel.
    """

    method: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    steps: tuple[Step, ...]
    places: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    uses_torch: bool

    def run(self) -> None:
        """Run all steps.

        Raises:
            KernelFailed: a kernel raised; errors of kvc's own pass through.
        """
        if not self.uses_torch:
            self._run()
            return
        import torch

        with torch.inference_mode():
            self._run()

    def _run(self) -> None:
        index = 0
        try:
            for index, (function, arguments) in enumerate(self.steps):  # noqa: B007
                function(*arguments)
        except Exception as error:
            place = self.places[index]
            fail(self.method, place, self.instructions[place], error)


def fail(method: str, index: int, instruction: Instruction, error: Exception) -> None:
    """Raise an instruction's error again, with where it comes from.

    Raises:
        KernelFailed: always, unless `error` is kvc's own, which is raised as it is.
    """
    if isinstance(error, KvcError):
        raise error
    raise KernelFailed(
        method=method,
        index=index,
        op=instruction.op,
        place=f" at {instruction.source}" if instruction.source else "",
        reason=str(error) or type(error).__name__,
    ) from error
