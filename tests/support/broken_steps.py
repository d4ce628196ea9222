"""Make a call fail in the middle: raise an error at one of its steps."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from kvc.runtime.execution.executor import Frame, RunProgress
from kvc.runtime.execution.list_frames import ListFrame
from kvc.schema.errors import KernelFailed

Function = Callable[..., None]


class Broken(Exception):
    """The error that `broken_step` raises."""


@contextmanager
def broken_step(
    number: int, after: bool, error: type[BaseException] = Broken
) -> Iterator[list[Frame]]:
    """Make one step of a call raise an error; yield a list of the frames that have run.

    Args:
        number: the number of the step; steps of branches count too.
        after: whether the step does its work before it raises the error.
        error: the class of the error.
    """
    run, numbers = Frame._run, itertools.count()
    frames: list[Frame] = []

    def breaking(function: Function) -> Function:
        def step(*arguments: object) -> None:
            here = next(numbers) == number
            if not here or after:
                function(*arguments)
            if here:
                raise error

        return step

    def broken(self: Frame, progress: RunProgress) -> None:
        frames.append(self)
        steps = tuple((breaking(function), given) for function, given in self.steps)
        run(replace(self, steps=steps), progress)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Frame, "_run", broken)
        yield frames


@contextmanager
def broken_run(number: int, share: float) -> Iterator[None]:
    """Make a run fail when this share of its steps is done; a bound list at its end."""
    run, numbers, run_list = Frame.run, itertools.count(), ListFrame.run

    def broken(self: Frame, progress: RunProgress | None = None) -> None:
        if next(numbers) != number:
            run(self, progress)
            return
        with broken_step(int(share * len(self.steps)), after=True):
            run(self, progress)

    def broken_list(self: ListFrame, progress: RunProgress) -> None:
        run_list(self, progress)
        if next(numbers) == number:
            facts = {"method": "", "index": 0, "op": "", "place": ""}
            raise KernelFailed(**facts, reason="broken")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Frame, "run", broken)
        patch.setattr(ListFrame, "run", broken_list)
        yield
