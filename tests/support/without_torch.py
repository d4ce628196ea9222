"""A process that cannot import torch from its start, and runs bundles when asked.

In: the path of a bundle, and calls of its method `forward`, of numpy arrays. Out: the
results of each call. The process is this file, run as a program.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

Call = tuple[Sequence[object], dict[str, object]]


class FailedThereError(Exception):
    """The process could not run a bundle; the text has the exception's name."""


class WithoutTorch:
    """Runs many bundles in one such process; a new one if it has ended."""

    def __init__(self) -> None:
        self._process = _started()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, path: Path, calls: Sequence[Call]) -> list[object]:
        """Return the results of calls in one session.

        Raises:
            FailedThereError: loading or a call has failed, or the process has ended.
        """
        process = self._process
        try:
            pickle.dump((path, calls), process.stdin)
            process.stdin.flush()
            failed, made = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError):
            code = process.wait()
            self._process = _started()
            raise FailedThereError(f"the process has ended with {code}") from None
        if failed:
            raise FailedThereError(made)
        return made


def _started() -> subprocess.Popen:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe)


def _serve() -> None:
    """Answer requests until there are no more."""
    sys.modules["torch"] = None  # cannot be imported
    from kvc.runtime import load

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    while True:
        try:
            path, calls = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            with load(path, reference=False) as bundle, bundle.session() as session:
                made = [session.call("forward", *args, **kw) for args, kw in calls]
            answer = False, made
        except Exception as error:
            answer = True, f"{type(error).__name__}: {error}"
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    _serve()
