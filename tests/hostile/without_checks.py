"""Take each check of bundles out in turn, and see whether a test turns red.

`python tests/hostile/without_checks.py FOLDER --note tests/schema` runs these tests,
and notes in FOLDER in which of them each check refuses; more runs note more. Without
`--note` it takes out each check, in a process of its own, and runs there the tests in
which it refuses, one after the other until one fails, first those in which the fewest
checks refuse; that one must pass with the check in place. What has an answer is not
tried again, unless `--again` asks for those checks without which no test failed.
`--page FILE` writes the answers as a page, and runs nothing.
"""

import argparse
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import pytest
from forked_batches import Limits, answers
from removed_checks import FILES, Check, checks_of, noting, without
from verifier_checks import ROOT

MOST_TESTS = 24  # that are kept of each check
LIMITS = Limits(seconds=20, nbytes=16 << 30)
QUIET = ["-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
GUARDED, UNGUARDED, UNTRIED = "a test fails", "no test fails", "it never refuses"
UNSOUND = "a test fails, with the check too"
Tests = tuple[str, ...]


class Noticing:
    """Notes which checks refuse in which tests that pass.

    Attributes:
        tests: of each check, by file and place.
    """

    def __init__(self) -> None:
        self.tests: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        self._refusing: set[tuple[str, int]] = set()

    def note(self, path: str, place: int) -> None:
        """Note that a check refuses now."""
        self._refusing.add((path, place))

    def pytest_runtest_logstart(self) -> None:
        """Begin a test."""
        self._refusing.clear()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End the call of a test."""
        if report.when == "call" and report.passed:
            for check in self._refusing:
                self.tests[check].append(report.nodeid)


class Only:
    """Runs tests of these names, whatever pytest would read into a name.

    Attributes:
        failed: those that did.
    """

    def __init__(self, tests: Iterable[str]) -> None:
        self._tests = frozenset(tests)
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out all others."""
        items[:] = [item for item in items if item.nodeid in self._tests]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that fails."""
        if report.failed:
            self.failed.append(report.nodeid)


class Answers:
    """What is known of each check; kept in a file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "checks.json"
        known = json.loads(self._path.read_text()) if self._path.exists() else {}
        self.tests: dict[str, list[str]] = known.get("tests", {})
        self.found: dict[str, str] = known.get("found", {})

    def add_tests(self, check: Check, tests: Sequence[str]) -> None:
        """Keep tests in which a check refuses, of as many files as there are."""
        some = [*tests, *self.tests.get(key_of(check), [])]
        turn: Counter[str] = Counter()
        ranks = {}
        for test in dict.fromkeys(some):
            file = test.partition("::")[0]
            ranks[test] = turn[file]
            turn[file] += 1
        self.tests[key_of(check)] = sorted(ranks, key=ranks.__getitem__)[:MOST_TESTS]

    def telling(self) -> dict[str, list[str]]:
        """Return the tests of each check, those first in which few others refuse.

        A test in which many refuse is likely one of damage at random: it is slow, and
        seldom fails for the lack of one check.
        """
        met = Counter(test for tests in self.tests.values() for test in tests)
        return {
            key: sorted(tests, key=met.__getitem__) for key, tests in self.tests.items()
        }

    def save(self) -> None:
        """Write it."""
        content = {"tests": self.tests, "found": self.found}
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(content, indent=1))
        beside.rename(self._path)


def key_of(check: Check) -> str:
    """Return what a check is kept under: its name, and which of that name it is."""
    same = [one for one in checks_of(check.path) if one.name == check.name]
    return f"{check.name} #{same.index(check)}"


def all_of_them() -> list[Check]:
    """Return the checks of all files."""
    return [check for path in FILES for check in checks_of(path)]


def note(folder: Path, tests: Sequence[str]) -> int:
    """Run tests, and keep in which of them each check refuses."""
    noticing = Noticing()
    noting(noticing.note)
    code = int(pytest.main(["-q", "-p", "no:cacheprovider", *tests], [noticing]))
    known = Answers(folder)
    for check in all_of_them():
        known.add_tests(check, noticing.tests[str(check.path), check.place])
    known.save()
    return code


def try_all(folder: Path, only: str, again: bool) -> int:
    """Take out each check that has no answer; return how many no test guards."""
    known = Answers(folder)
    checks = [check for check in all_of_them() if only in check.name]
    old = (GUARDED,) if again else (GUARDED, UNGUARDED)
    left = [one for one in checks if known.found.get(key_of(one)) not in old]
    _import_tests({test for one in left for test in known.tests.get(key_of(one), ())})
    for number, answer in _outcomes(left, known):
        key = key_of(left[number])
        known.found[key] = answer
        known.save()
        if answer != GUARDED:
            print(answer, key, sep=" | ", flush=True)
    return sum(known.found[key_of(one)] != GUARDED for one in checks)


def _outcomes(left: Sequence[Check], known: Answers) -> Iterator[tuple[int, str]]:
    """Yield what comes of each check, by its number."""
    tests = known.telling()
    for number, check in enumerate(left):
        some = tests.get(key_of(check))
        if not some:
            yield number, UNTRIED
            continue
        found, red = _in_a_process(check, tuple(some))
        if found == GUARDED and _in_a_process(None, red)[0] != UNGUARDED:
            found = UNSOUND
        yield number, found


@cache
def _in_a_process(check: Check | None, tests: Tests) -> tuple[str, Tests]:
    """Run tests without a check, in a process of its own, until one fails.

    Return what came of it, and which tests turned red: those that fail, or all if the
    process ends or runs on.
    """

    def run(_: range) -> list[object]:
        if check is not None:
            without(check)
        return [outcome(tests)]

    ((_, answer),) = answers(run, range(1), LIMITS)
    match answer:
        case [str(found), list(red)]:
            return found, tuple(map(str, red))
    return GUARDED, tests


def _import_tests(tests: Iterable[str]) -> None:
    """Import the files of tests, once and not in each process."""
    files = sorted({str(ROOT / test.partition("::")[0]) for test in tests})
    with _quiet():
        pytest.main([*QUIET, "--collect-only", *files])


@contextmanager
def _quiet() -> Iterator[None]:
    """Let nothing be printed."""
    known = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    try:
        yield
    finally:
        os.dup2(known, 1)
        os.close(known), os.close(nothing)


def outcome(tests: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Run tests until one fails; say whether one did, and which."""
    for some in (tests[:1], tests[1:3], tests[3:]):  # each file takes its time
        if some:
            only = Only(some)
            with _quiet():
                files = {str(ROOT / test.partition("::")[0]) for test in some}
                code = pytest.main([*QUIET, *sorted(files)], [only])
            if code == pytest.ExitCode.TESTS_FAILED:
                return GUARDED, only.failed
            if code != pytest.ExitCode.OK:
                return f"pytest ends with {code!r}", ()
    return UNGUARDED, ()


def page(folder: Path) -> str:
    """Return what is known, as Markdown."""
    known, checks = Answers(folder), all_of_them()
    found = {key_of(one): known.found.get(key_of(one), "not tried") for one in checks}
    rows = [f"| {kind} | {count} |" for kind, count in Counter(found.values()).items()]
    lost = [f"- {kind}: `{key}`" for key, kind in found.items() if kind != GUARDED]
    return "\n".join(
        [
            "# Checks that are taken out",
            "",
            "Written by `python tests/hostile/without_checks.py FOLDER --page FILE`;",
            f"do not edit. There are {len(checks)} checks in {len(FILES)} files that",
            "read and verify bundles. Each that has been tried was taken out of the",
            "code, and tests in which it refuses were run.",
            "",
            "| what comes of it | checks |",
            "| --- | ---: |",
            *rows,
            "",
            *lost,
            "",
        ]
    )


def main() -> int:
    """Run the command; return 1 if there is a check that no test guards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--note", nargs="+", metavar="TESTS")
    parser.add_argument(
        "--again", action="store_true", help="those without which no test failed"
    )
    parser.add_argument("--only", default="", help="checks whose name has this text")
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.note:
        return note(options.folder, options.note)
    if options.page:
        options.page.write_text(page(options.folder))
        return 0
    return 1 if try_all(options.folder, options.only, options.again) else 0


if __name__ == "__main__":
    sys.exit(main())
