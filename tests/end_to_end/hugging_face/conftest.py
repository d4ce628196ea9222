"""What modules have in common: a session of their program, a model with pictures."""

from collections.abc import Iterator

import pytest

from kvc.runtime import Program, Session


@pytest.fixture
def session(program: Program) -> Iterator[Session]:
    """Open a session of the module's own `program`."""
    with program.session() as opened:
        yield opened
