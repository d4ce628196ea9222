"""Compare texts with files in `tests/golden/`, which change only with KVC_BLESS=1."""

import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


def assert_golden(name: str, text: str) -> None:
    """Assert that a text equals a golden file; with KVC_BLESS=1, write it first."""
    path = FOLDER / f"{name}.txt"
    if os.environ.get("KVC_BLESS") == "1":
        path.write_text(text)
    assert path.exists(), f"no golden {path.name}: run with KVC_BLESS=1"
    assert text == path.read_text(), f"{path.name} differs: read the diff, then bless"


def golden_parts(name: str) -> tuple[str, str]:
    before, after = (FOLDER / f"{name}.txt").read_text().split("\n# after\n")
    return before.removeprefix("# before\n"), after
