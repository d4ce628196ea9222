"""The copy budget: limits what writing the states of a method may copy."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kvc.compiler.place import Verdict
from kvc.schema.errors import CompileError, CopyBudgetExceeded, listing, meant


def check_budgets(methods: Sequence[str], budget: Mapping[str, int]) -> None:
    """Check what the caller asks for, before anything is traced.

    Args:
        methods: names of those that are compiled.
        budget: method -> bytes in a call.

    Raises:
        CompileError: there is no such method, or a budget is no number of bytes.
    """
    for method, allowed in budget.items():
        if method not in methods:
            near, known = meant(method, methods), listing(list(methods))
            message = f"max_copy_bytes: there is no method {method!r}{near}; "
            raise CompileError(message=f"{message}methods: {known}")
        if type(allowed) is not int or allowed < 0:
            expected = "expected an int of 0 or more"
            message = f"max_copy_bytes of {method}: {expected}, found {allowed!r}"
            raise CompileError(message=message)


def check_copy_budget(
    verdicts: Mapping[str, Sequence[Verdict]], budget: Mapping[str, int]
) -> None:
    """Check that no method copies more than it may.

    Args:
        verdicts: on the writes of each method.
        budget: method -> bytes in a call, with every size at its greatest.

    Raises:
        CopyBudgetExceeded: a method does; lists its copies, the largest first, and
            what changes would save.
    """
    for method, allowed in budget.items():
        nbytes = sum(verdict.nbytes for verdict in verdicts[method])
        if nbytes > allowed:
            lines = "\n".join([*_lines(verdicts[method]), *_changes(verdicts[method])])
            raise CopyBudgetExceeded(
                method=method, nbytes=nbytes, allowed=allowed, listing=lines
            )


def _lines(verdicts: Sequence[Verdict]) -> list[str]:
    copies = sorted((v for v in verdicts if v.nbytes), key=lambda v: -v.nbytes)
    return [
        f"  {v.memory}: {v.nbytes:,} bytes{f' at {v.source}' if v.source else ''}: "
        f"{v.reason}"
        for v in copies
    ]


def _changes(verdicts: Sequence[Verdict]) -> list[str]:
    """Say what each change of a line of the model would save, the most first."""
    saved: dict[tuple[str, str], int] = defaultdict(int)
    for v in verdicts:
        if v.nbytes and v.remedy:
            saved[v.source, v.remedy] += v.nbytes
    if not saved:
        return []
    changes = sorted(saved.items(), key=lambda change: -change[1])
    return [
        "changes that would save these:",
        *(
            f"  {nbytes:,} bytes{f' at {source}' if source else ''}: {remedy}"
            for (source, remedy), nbytes in changes
        ),
    ]
