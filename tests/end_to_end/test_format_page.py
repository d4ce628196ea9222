"""The example of schema/FORMAT.md: what it prints, and how far it is rewound."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from kvc.runtime import NotRewindable, load
from kvc.tools.cli import main

PAGE = (Path(__file__).parents[2] / "schema/FORMAT.md").read_text()
MODEL, COMMANDS, PRINTED = (
    re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0]
    for language in ("python", "sh", "text")
)


@pytest.fixture
def printed(tmp_path, monkeypatch):
    """What the example's last command prints, in the folder of its files."""
    (tmp_path / "ring.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for line in COMMANDS.splitlines():
        done = CliRunner().invoke(main, line.split()[1:])
        assert done.exit_code == 0, done.output
    sys.modules.pop("ring")
    return done.stdout


def test_the_ring_is_as_the_page_says(printed):
    assert printed == PRINTED
    with load("ring.kvc") as program, program.session() as session:
        for position in range(8):
            session.decode(np.full((1, 1, 1, 2), position, np.float32))
        assert session.state["k"][0, 0, :, 0].tolist() == [6, 7, 2, 3, 4, 5]
        with pytest.raises(NotRewindable):
            session.rewind(4)
        session.rewind(3)
        assert session.position.tolist() == [5]
