"""What pages and the docstrings of modules name is there."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = subprocess.run(
    ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
).stdout.split()
NAMES = frozenset(Path(path).name for path in FILES)
TEXTS = {path: (ROOT / path).read_text() for path in FILES if path.endswith(".py")}
DOCSTRINGS = {
    path: found[1]
    for path, text in TEXTS.items()
    if (found := re.match(r'(?:#.*\n)?"""(.*?)"""', text, re.DOTALL))
}
PAGES = {
    path: (ROOT / path).read_text()
    for path in FILES
    if path.endswith(".md") and path != "CHANGELOG.md"
}
OWN = {"total.py", "toy.toml", "toy_compiler.py", "toy_runtime.py"}  # of a user

pytestmark = pytest.mark.skipif(not FILES, reason="these files are no clone")


def is_there(name, path):
    """Tell whether a file is there by its path, its end, or beside who names it."""
    if "/" not in name:
        return name in NAMES
    if (ROOT / path).parent.joinpath(name).is_file():
        return True
    return any(f"/{one}".endswith(f"/{name}") for one in FILES)


def test_files_that_are_named_are_there():
    missing = [
        (path, name)
        for path, text in (PAGES | DOCSTRINGS).items()
        for name in re.findall(r"`([\w./-]+\.(?:py|toml|cc|inc|glsl))`", text)
        if name not in OWN and not is_there(name, path)
    ]
    assert missing == []


def test_members_of_classes_that_docstrings_name_are_there():
    named = {
        (path, owner, member)
        for path, text in DOCSTRINGS.items()
        for owner, member in re.findall(r"`([A-Z]\w*[a-z]\w*)\.(\w+)[`(]", text)
    }
    assert named, "some are named"
    for path, owner, member in named:
        homes = [text for text in TEXTS.values() if f"class {owner}" in text]
        there = any(re.search(rf"\b{member}\b", text) for text in homes)
        assert there, f"{path} names {owner}.{member}"


def test_the_page_of_the_compiler_lists_its_parts():
    parts = {Path(path).parts[1] for path in FILES if path.startswith("compiler/")}
    code = {name for name in parts if not name.endswith((".md", ".typed"))}
    missing = {name for name in code if f"`{name}" not in PAGES["compiler/README.md"]}
    assert missing == {"__init__.py"}
