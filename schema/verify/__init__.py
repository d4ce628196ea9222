"""The checks that both sides run on a program, whatever it came from."""

from kvc.schema.model import Program


def verify_program(program: Program, path: str, thorough: bool = False) -> None:
    """Check a program."""
