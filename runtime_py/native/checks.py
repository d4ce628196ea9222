"""Check native steps that were not made here, before they are first run.

In: steps, and the memory that they may use. Out: the first rule that a step breaks. The
rules are in C++: checks.cc has those of each operand, kernels have contracts beside
them.
"""

import ctypes
from collections.abc import Sequence

import numpy as np

from kvc.runtime.memory.arrays import Array, address_of
from kvc.runtime.native import Steps
from kvc.schema.frozen import frozen

# The layouts of `Region` and `Breach` in checks.h.
_REGION = np.dtype(
    [("begin", np.uint64), ("end", np.uint64), ("writable", np.int32)], align=True
)
_BREACH = np.dtype(
    [
        ("step", np.int32),
        ("operand", np.int32),
        ("rule", np.uint64),
        ("facts", np.int64, 2),
    ]
)


@frozen
class Breach:
    """A rule that a step breaks.

    Attributes:
        step: the index of the step.
        operand: the index of the operand that breaks the rule by itself; -1 if the
            contract of the kernel is broken.
        rule: what is wrong, in a few words.
        facts: two numbers that tell more, such as operands or sizes.
    """

    step: int
    operand: int
    rule: str
    facts: tuple[int, int]

    @property
    def told(self) -> str:
        """Return the rule, the operand and the facts as one text."""
        where = "" if self.operand < 0 else f"operand {self.operand}: "
        return f"{where}{self.rule} ({self.facts[0]}, {self.facts[1]})"


def find_breach(steps: Steps, regions: Sequence[Array]) -> Breach | None:
    """Return the first rule that a step breaks, or None.

    Args:
        steps: the steps, which are settled.
        regions: the memory that the steps may use: arrays without gaps, none over
            another. Only writable arrays may be written. After each, 4,096 bytes more
            must be readable.
    """
    encoded, counts = steps.settle(), steps.setting_counts()
    table = np.zeros(len(regions), _REGION)
    ordered = sorted(regions, key=address_of)
    table["begin"] = [address_of(region) for region in ordered]
    table["end"] = table["begin"] + np.array([r.nbytes for r in ordered], np.uint64)
    table["writable"] = [region.flags.writeable for region in ordered]
    found = np.zeros(1, _BREACH)
    fits = steps.library.check(
        address_of(encoded),
        address_of(counts),
        len(steps),
        address_of(table),
        len(table),
        address_of(found),
    )
    if fits:
        return None
    step, operand, rule, facts = found[0]
    told = ctypes.string_at(int(rule)).decode()
    return Breach(int(step), int(operand), told, (int(facts[0]), int(facts[1])))
