"""How error messages name an instruction."""

from kvc.schema.model import Instruction


def place(where: str, index: int, step: Instruction) -> str:
    """Return an instruction's place for a message; `where` is its graph's."""
    source = f" ({step.source})" if step.source else ""
    return f"{where}, instruction {index}, {step.op}{source}"
