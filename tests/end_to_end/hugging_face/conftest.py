"""What modules have in common: a session of their program, a model with pictures."""

from collections.abc import Iterator
from pathlib import Path

import joined_pictures
import pytest

from kvc.runtime import Program, Session


@pytest.fixture
def session(program: Program) -> Iterator[Session]:
    """Open a session of the module's own `program`."""
    with program.session() as opened:
        yield opened


@pytest.fixture(scope="session")
def joined_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model in which the places of a picture see each other."""
    return joined_pictures.write_folder(tmp_path_factory.mktemp("joined"))


@pytest.fixture(scope="session")
def joined_bundle(
    joined_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a bundle of that model."""
    path = tmp_path_factory.mktemp("joined") / "model.kvc"
    return joined_pictures.write_bundle(joined_folder, path)
