"""The checks of a bundle, named by file, function and line of code.

In: an error, or nothing. Out: the check that raised the error, or all checks. A check
is a call of `require`, `fail`, `limit` and the like, or a `raise`, in the code that
reads and verifies programs or computes the shapes of operators.
"""

import ast
import linecache
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from kvc.schema import errors

ROOT = Path(__file__).parents[2]
FOLDERS = ("schema/verify", "schema/codec", "schema/ops")
# Errors that are raised again as one of a file.
_INNER = frozenset(("Misfit", "BadResult", "Conflict", "ShapeMismatch"))
# What raises for those who call it.
REFUSING = frozenset(
    ("require", "_require", "fail", "_fail", "limit", "unique", "name", "text")
)


def place_of(error: BaseException) -> str:
    """Return the check that raised an error, named as in `all_checks`.

    If the error was made of another one, the check that raised the first is returned.
    """
    inner: BaseException | None = error
    found = "?"
    while inner is not None:
        place = _place_in(inner.__traceback__)
        found = found if place == "?" else place
        inner = inner.__cause__ or inner.__context__
    return found


def _place_in(trace: TracebackType | None) -> str:
    found = "?"
    while trace is not None:
        code = trace.tb_frame.f_code
        path = Path(code.co_filename)
        inside = path.is_relative_to(ROOT) and code.co_name not in REFUSING
        if inside and path.relative_to(ROOT).as_posix().startswith("schema/"):
            line = linecache.getline(code.co_filename, trace.tb_lineno).strip()
            found = named(path, code.co_name, line)
        trace = trace.tb_next
    return found


def all_checks() -> set[str]:
    """Return the names of all checks: file, function and source line of each.

    The text of the line is used and not its number, since it stays the same when other
    lines are added.
    """
    found = set()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).glob("*.py")):
            text = path.read_text()
            lines = text.splitlines()
            for function in ast.walk(ast.parse(text)):
                if not isinstance(function, ast.FunctionDef):
                    continue
                if function.name not in REFUSING:
                    found |= {
                        named(path, function.name, lines[node.lineno - 1].strip())
                        for node in refusals(function)
                    }
    return found


def named(path: Path, function: str, line: str) -> str:
    return f"{path.relative_to(ROOT).as_posix()}, {function}: {line}"


def refusals(function: ast.FunctionDef) -> Iterator[ast.Call | ast.Raise]:
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=name)):
                reports = ast.unparse(owner).endswith(("report", "self"))
                if name in REFUSING and reports:
                    yield node
            case ast.Call(func=ast.Name(id=name)) if name in REFUSING:
                yield node
            case ast.Raise(exc=ast.Call(func=ast.Name(id=name))):
                if name in _INNER or hasattr(errors, name):
                    yield node
