"""The table of backends: from a name to the class of its run-time half."""

from collections.abc import Callable

from kvc.runtime.delegates.base import Delegate, Options
from kvc.runtime.delegates.xnnpack import Xnnpack
from kvc.schema.errors import MissingDelegate, listing
from kvc.schema.model import Program

DELEGATES: dict[str, Callable[[Options], Delegate]] = {"xnnpack": Xnnpack}


def check_backends(program: Program, path: str) -> None:
    """Check that every part's backend is there.

    Raises:
        MissingDelegate: for the first one that is not.
    """
    for part in program.delegates:
        if part.backend not in DELEGATES:
            raise MissingDelegate(
                path=path,
                method=program.methods[part.method].name,
                backend=part.backend,
                known=listing(list(DELEGATES)),
            )
