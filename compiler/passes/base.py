"""The interface of passes, and `run_passes`, which verifies after each pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from kvc.compiler.ir import Program
from kvc.compiler.ir.text import argument_text
from kvc.compiler.ir.verify import Malformed, VerifiedNodes, verify
from kvc.schema.errors import PassFailed
from kvc.schema.interrupts import check_interrupts


class Pass(Protocol):
    """A frozen dataclass with a name; its fields are its options."""

    name: ClassVar[str]

    def run(self, program: Program) -> Program:
        """Return the rewritten program."""
        ...


@dataclass(frozen=True, slots=True)
class PassReport:
    """The effect of a pass: counts of nodes and constants before and after the pass."""

    name: str
    nodes: tuple[int, int]
    constants: tuple[int, int]


def run_passes(
    passes: Sequence[Pass], program: Program
) -> tuple[Program, tuple[PassReport, ...]]:
    """Run passes in order, verifying after each.

    Raises:
        PassFailed: a pass returned a program that does not verify. The error names the
            pass, method, node and the line of the user's source.
    """
    known = VerifiedNodes()
    check(program, "import", known)
    reports = []
    for one in passes:
        check_interrupts()
        changed = one.run(program)
        check(changed, one.name, known)
        reports.append(
            PassReport(
                one.name,
                (_count_nodes(program), _count_nodes(changed)),
                (len(program.constants), len(changed.constants)),
            )
        )
        program = changed
    return program, tuple(reports)


def check(program: Program, step: str, known: VerifiedNodes | None = None) -> None:
    """Verify a program after a step of compiling; `step` names the step in errors.

    Nodes in `known` are not verified in detail again.

    Raises:
        PassFailed: the program breaks a rule of the IR.
    """
    try:
        verify(program, known)
    except Malformed as error:
        reason = f"{error.reason} at {error.sizes}" if error.sizes else error.reason
        node, place, text = error.node, "", "the method itself"
        if node is not None:
            arguments = ", ".join(argument_text(a) for a in node.arguments)
            text = f"node {node.op}({arguments})"
            place = f" at {node.source}" if node.source else ""
        raise PassFailed(
            step=step, method=error.method, node=text, place=place, reason=reason
        ) from error


def _count_nodes(program: Program) -> int:
    return sum(len(method.nodes) for method in program.methods)
