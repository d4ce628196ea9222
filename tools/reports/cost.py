"""What a bundle costs, in one line: on disk, in memory, and who computes."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvc.schema.model import Program
from kvc.schema.text import plural, share, size
from kvc.tools.reports.footprint import describe_footprint
from kvc.tools.reports.operators import OperatorReport


@dataclass(frozen=True, slots=True)
class CostReport:
    """What a bundle costs.

    Attributes:
        disk: bytes of the bundle and its data files.
        memory: bytes that it takes in all with one session, as `kvc dump --at` counts
            them, every size at its upper bound.
        tokens: that the session holds then, in each row.
        token: bytes of states that each takes.
        computing: instructions that compute, of all methods.
        delegated: those of them that backends run.
    """

    disk: int
    memory: int
    tokens: int
    token: int
    computing: int
    delegated: int


def describe_cost(
    program: Program, disk: int, operators: Sequence[OperatorReport]
) -> CostReport:
    """Put together what a bundle costs."""
    taken = describe_footprint(program, {})
    return CostReport(
        disk=disk,
        memory=taken.total,
        tokens=taken.tokens,
        token=taken.token,
        computing=sum(one.count for one in operators),
        delegated=sum(one.count for one in operators if one.backend),
    )


def cost_line(cost: CostReport) -> str:
    """Say it in a line."""
    memory = f"{size(cost.memory)} in memory"
    if cost.tokens:
        each = f", {size(cost.token)} each" * (cost.token > 0)
        memory += f" at {plural(cost.tokens, 'token')}{each}"
    parts = [f"{size(cost.disk)} on disk", memory]
    if cost.computing:
        parts.append(
            f"{share(cost.delegated, cost.computing)} of instructions in delegates"
        )
    return "; ".join(parts)
