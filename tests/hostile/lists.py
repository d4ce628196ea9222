"""Try hostile bound lists: `python tests/hostile/lists.py FOLDER [--cases 2000]`.

Bundles with bound lists are changed in places that mean something, sealed again with
right digests (`tests/support/list_mutations.py`), and a script of calls is played by
Python and by libkvc (`list_plays.py`). Both must refuse a file, or both must give the
same bytes. A crash, more than five seconds, an error that is no `KvcError`, or a code
that says libkvc has made a mistake are findings. FOLDER gets the bundles, counts, and
each finding's file.

`--c` plays by libkvc alone, as under a sanitizer. `--verify` also asks `kvc verify`
about files that run: it must tell that something differs. `--case SEED NUMBER` tries
one again, in this process.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

# Forked processes have no threads but one, and would wait for those of OpenMP.
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from forked_batches import Ended, Limits, answers
from list_mutations import ListMutations
from list_plays import compare, play_c, play_python
from list_seeds import LIST_SEEDS

from kvc.runtime.bound_lists import check_lists
from kvc.schema.container import verify_file
from kvc.schema.errors import KvcError

BATCH = 50  # cases that one process tries
SLOW = 4  # times slower that a sanitizer makes all
LIMITS = Limits(seconds=5, nbytes=6 << 30)
AGREED = ("same", "refused", "unchanged", "runs", "no lists in C", "graph")
FAMILY, KIND, OURS, THEIRS, VERIFIED = range(5)


def seed_file(name: str, folder: Path) -> Path:
    """Return the file of a seed, compiled unless it is there."""
    path = folder / "seeds" / f"{name}.kvc"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        print(f"compiling {name}", file=sys.stderr)
        LIST_SEEDS[name].write(path)
    return path


def verified(path: Path) -> str:
    """Return what `kvc verify` says of a file: "", or what differs."""
    try:
        found = verify_file(str(path), ())
        if found.program is not None and (why := check_lists(str(path), found.program)):
            return f"not compared: {why}"
    except KvcError as error:
        return type(error).__name__
    return ""


class Campaign:
    """The variants of one seed.

    `c_alone` plays by libkvc only. `verify` asks `kvc verify` about files that run.
    """

    def __init__(self, name: str, folder: Path, c_alone: bool, verify: bool) -> None:
        self._seed = LIST_SEEDS[name]
        self._mutations = ListMutations(seed_file(name, folder))
        self._c_alone, self._verify = c_alone, verify

    def content(self, number: int) -> bytes | None:
        """Return the file of a case, None if there is none."""
        return self._mutations.content(number)[1]

    def try_case(self, number: int) -> list[str]:
        """Return the family, the kind of verdict, what each side and verify say."""
        family, content = self._mutations.content(number)
        if content is None:
            return [family, "unchanged", "", "", ""]
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            path = Path(folder) / "changed.kvc"
            path.write_bytes(content)
            theirs = play_c(path, self._seed, Path(folder))
            if self._c_alone:
                kind = "c escapes" if theirs.finding else theirs.refused or "runs"
                kind = "refused" if theirs.refused and not theirs.finding else kind
                return [family, kind, "", f"{theirs.refused}: {theirs.text}", ""]
            found = compare(play_python(path, self._seed, Path(folder)), theirs)
            said = "unasked"
            if found.kind == "same" and self._verify:
                said = verified(path)
        kind = found.kind
        if kind == "c alone refuses" and found.theirs.startswith(UNLISTED):
            kind = "no lists in C"
        return [family, kind, found.ours, found.theirs, said]


# Python binds methods from their graphs where libkvc has nothing to run.
UNLISTED = ("NOT_BOUND", "OTHER_KERNELS")


def run(name: str, cases: range, folder: Path, campaign: Campaign) -> list[list[str]]:
    """Try cases of a seed; return a verdict for each."""
    limits = LIMITS
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        limits = Limits(LIMITS.seconds * SLOW, LIMITS.nbytes)
    found = []

    def try_cases(numbers: range) -> Sequence[object]:
        return [campaign.try_case(number) for number in numbers]

    for first in range(cases.start, cases.stop, BATCH):
        some = range(first, min(first + BATCH, cases.stop))
        for number, answer in answers(try_cases, some, limits):
            match answer:
                case Ended():
                    kind = "hangs" if answer.too_long else "crashes"
                    verdict = ["", kind, f"code {answer.code}", "", ""]
                case list():
                    verdict = [str(one) for one in answer]
            found.append(verdict)
            silent = verdict[VERIFIED] == ""
            if verdict[KIND] not in AGREED or (verdict[KIND] == "same" and silent):
                keep(name, number, verdict, folder, campaign)
    return found


def keep(
    name: str, number: int, verdict: list[str], folder: Path, campaign: Campaign
) -> None:
    """Print a finding, and write its file."""
    print(name, number, *verdict, sep=" | ", flush=True)
    content = campaign.content(number)
    if content is not None:
        path = folder / "findings" / f"{name} {number}.kvc"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


def main() -> int:
    """Run the command; return 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=2000, help="of each seed")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seeds", nargs="*", default=list(LIST_SEEDS))
    parser.add_argument("--c", action="store_true")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--case", nargs=2, metavar=("SEED", "NUMBER"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.case:
        name, number = options.case
        campaign = Campaign(name, options.folder, options.c, options.verify)
        print(*campaign.try_case(int(number)), sep="\n")
        return 0
    start, counts = time.monotonic(), dict[str, Counter[str]]()
    campaigns = {
        name: Campaign(name, options.folder, options.c, options.verify)
        for name in options.seeds
    }
    for first in range(options.first, options.first + options.cases, BATCH):
        if time.monotonic() - start > options.seconds:
            break
        for name, campaign in campaigns.items():
            end = min(first + BATCH, options.first + options.cases)
            found = run(name, range(first, end), options.folder, campaign)
            counts.setdefault(name, Counter()).update(one[KIND] for one in found)
    print(json.dumps(counts, indent=1))
    total = sum(counts.values(), Counter[str]())
    print(dict(total), sum(total.values()), f"{time.monotonic() - start:.0f} s")
    return 1 if set(total) - set(AGREED) else 0


if __name__ == "__main__":
    sys.exit(main())
