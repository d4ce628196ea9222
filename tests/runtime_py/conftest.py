"""Programs made by hand, opened for one test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hand_built import Built, write_bundle

from kvc.runtime import Program, load

Open = Callable[..., Program]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Open a program from a bundle of its own; all are closed after the test."""
    programs: list[Program] = []

    def open_program(built: Built, name: str = "p.kvc") -> Program:
        programs.append(load(write_bundle(tmp_path / name, built)))
        return programs[-1]

    yield open_program
    for program in programs:
        program.close()
