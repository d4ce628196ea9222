"""Tell how far a compilation is; where something is told, an interrupt ends it."""

from kvc.schema.container import Progress
from kvc.schema.interrupts import check_interrupts


def reporting(progress: Progress | None) -> Progress:
    """Return what tells progress, if anybody wants to know.

    It raises an interrupt that came and whose exception was swallowed.
    """

    def report(stage: str, done: int, total: int, item: str = "") -> None:
        check_interrupts()
        if progress is not None:
            progress(stage, done, total, item)

    return report
