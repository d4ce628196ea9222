"""Take checks of bundles out of the code, one at a time, in this process.

A check is a statement, found as in `verifier_checks`. `without` compiles a function
from its source with one check left out. `noting` compiles all functions so that each
check that refuses a bundle is reported: a missing check can show only in tests in which
the check refuses.
"""

import ast
import builtins
import importlib
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType

from verifier_checks import ROOT, named, refusals

# The verifier, what reads files for it, and what backends check of their partitions.
FILES = (
    *sorted((ROOT / "schema/verify").glob("*.py")),
    *sorted((ROOT / "schema/codec").glob("*.py")),
    *sorted((ROOT / "schema/ops").glob("*.py")),
    ROOT / "schema/container/header.py",
    ROOT / "schema/container/open_file.py",
    ROOT / "schema/container/bundle_file.py",
    ROOT / "runtime_py/delegates/operands.py",
    ROOT / "runtime_py/delegates/xnnpack/checks.py",
)
NOTE = "__a_check_refuses__"


@dataclass(frozen=True, slots=True)
class Check:
    path: Path  # of the file
    # the names of the function that has it, and of what that is in
    function: tuple[str, ...]
    place: int  # of the statement among those of the file that refuse
    name: str  # for people; two may share one


@cache
def checks_of(path: Path) -> tuple[Check, ...]:
    lines = path.read_text().splitlines()
    found = []
    for place, (names, statement) in enumerate(_statements(_parsed(path))):
        text = lines[statement.lineno - 1].strip()
        found.append(Check(path, names, place, named(path, names[-1], text)))
    return tuple(found)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _statements(tree: ast.Module) -> Iterator[tuple[tuple[str, ...], ast.stmt]]:
    for names, function in _functions(tree, ()):
        refusing = {id(node) for node in refusals(function)}
        for statement in ast.walk(function):
            simple = isinstance(statement, ast.Expr | ast.Return | ast.Raise)
            if simple and any(id(node) in refusing for node in ast.walk(statement)):
                yield names, statement


def _functions(node, names) -> Iterator[tuple[tuple[str, ...], ast.FunctionDef]]:
    for each in node.body:
        match each:
            case ast.FunctionDef():
                yield (*names, each.name), each
            case ast.ClassDef():
                yield from _functions(each, (*names, each.name))


class _Without(ast.NodeTransformer):
    """Replaces one statement by `pass`."""

    def __init__(self, lost: ast.stmt) -> None:
        self._lost = lost

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if node is self._lost:
            return ast.copy_location(ast.Pass(), node)
        return super().generic_visit(node)


class _Noting(ast.NodeTransformer):
    """Wraps statements so that they report when they raise."""

    def __init__(self, places: dict[int, int], path: Path) -> None:
        self._places, self._path = places, path

    def generic_visit(self, node: ast.AST) -> ast.AST:
        made = super().generic_visit(node)
        if id(node) not in self._places:
            return made
        note = f"{NOTE}({str(self._path)!r}, {self._places[id(node)]})"
        text = f"try:\n    pass\nexcept BaseException:\n    {note}\n    raise"
        (trying,) = ast.parse(text).body
        assert isinstance(trying, ast.Try)
        assert isinstance(made, ast.stmt)
        trying.body = [made]
        for each in ast.walk(trying):
            if not hasattr(each, "lineno") or each.lineno < made.lineno:
                ast.copy_location(each, made)
        return ast.copy_location(trying, made)


def without(check: Check) -> None:
    """Remove a check from the functions of this process."""
    tree = deepcopy(_parsed(check.path))
    _, lost = list(_statements(tree))[check.place]
    _put_in(check.path, _Without(lost).visit(tree), {check.function})


def noting(note: Callable[[str, int], None]) -> None:
    """From now on call `note` with file and number of each check that refuses."""
    setattr(builtins, NOTE, note)
    for path in FILES:
        tree = deepcopy(_parsed(path))
        found = list(_statements(tree))
        places = {id(statement): i for i, (_, statement) in enumerate(found)}
        changed = _Noting(places, path).visit(tree)
        _put_in(path, changed, {names for names, _ in found})


def _put_in(path: Path, tree: ast.Module, functions: Iterable[tuple[str, ...]]) -> None:
    code = compile(ast.fix_missing_locations(tree), str(path), "exec")
    module = importlib.import_module(_module_name(path))
    for names in functions:
        owner: object = module
        for name in names:
            owner = vars(owner)[name]
        _function_in(owner).__code__ = _code_in(code, names)


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    first = parts[0].removesuffix("_py")
    return ".".join(("kvc", first, *(part for part in parts[1:] if part != "__init__")))


def _function_in(found: object) -> FunctionType:
    while not isinstance(found, FunctionType):
        if isinstance(found, property):
            found = found.fget
        else:
            getattr(found, "cache_clear", lambda: None)()
            holds = "__wrapped__" if hasattr(found, "__wrapped__") else "__func__"
            found = getattr(found, holds)
    return found


def _code_in(code: CodeType, names: tuple[str, ...]) -> CodeType:
    for name in names:
        inner = [each for each in code.co_consts if isinstance(each, CodeType)]
        code = next(each for each in inner if each.co_name == name)
    return code
