"""Programs and data files of ExecuTorch, `.pte` and `.ptd`, described by `kvc dump`.

In: a file, recognized by its first bytes. Out: the reports that a bundle has, as far as
the file holds the facts. Nothing in the file is run, and the data of weights is never
read.
"""

from typing import TYPE_CHECKING

from kvc.schema.container import OpenFile
from kvc.schema.container.kinds import PTD_MARK, PTE_MARK

if TYPE_CHECKING:
    from kvc.tools.executorch.contents import PteMethod
    from kvc.tools.executorch.report import PteReport

    Described = tuple[PteReport, tuple[PteMethod, ...]]


def describe_executorch(path: str) -> "Described | None":
    """Return the reports on a file of ExecuTorch and its methods, None for other files.

    Raises:
        FileProblem: the system cannot read the file, or it is no plain file.
        BadStructure, Truncated, LimitExceeded: the file is damaged.
    """
    with OpenFile(path) as file:
        mark = file.pread(0, min(8, file.size))[4:]
    if mark not in (PTD_MARK, PTE_MARK):
        return None
    from kvc.tools.executorch.reading import read_ptd, read_pte
    from kvc.tools.executorch.report import describe_ptd, describe_pte

    if mark == PTD_MARK:
        return describe_ptd(read_ptd(path)), ()
    program = read_pte(path)
    return describe_pte(program), program.methods
