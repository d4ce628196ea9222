"""This kvc beside another checkout of it: what sessions and calls take, in pairs.

`python tests/benchmarks/versions.py OTHER [--rounds 7] [--recipes fp32,xnnpack_q8]`.
`--calls` tells instead through how many Python functions of kvc, and how many files, a
decode step goes.
OTHER is the folder of a checkout, of an older commit for instance. Each compiles the
model `demo`, and runs its own bundle in processes of its own, one after the other in
each round. Told are the medians here, and the medians of the rounds' ratios: below 1
this one is faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

HERE = Path(__file__).resolve().parents[2]
PROMPT, CAPACITY, FORGOTTEN = 64, 512, 4


def median(times: int, run: Callable[[], object]) -> float:
    """Return the median of the microseconds of some runs, after a first one."""
    run()
    return statistics.median(once(run) for _ in range(times))


def measure(path: str) -> dict[str, float]:
    """Return what one bundle takes in this process, in microseconds."""
    import numpy as np

    from kvc.runtime import load

    tokens, token = np.full((1, PROMPT), 7), np.array([[7]])
    found = {"load": median(10, lambda: load(path).close())}
    with load(path) as program:
        found["open"] = median(50, lambda: program.session(capacity=CAPACITY).close())
        with program.session(capacity=CAPACITY) as session:

            def prefill() -> None:
                session.reset()
                session.prefill(tokens)

            def decode() -> None:
                session.decode(token)
                if session.position[0] == CAPACITY:
                    session.rewind(CAPACITY - PROMPT)

            found["prefill"] = median(20, prefill)
            found["decode"] = median(300, decode)
            found["fork"] = median(50, lambda: session.fork().close())
            taken = []
            for _ in range(50):
                for _ in range(FORGOTTEN):
                    decode()
                taken.append(once(lambda: session.rewind(FORGOTTEN)))
            found["rewind"] = statistics.median(taken)
    return found


def count_calls(path: str) -> dict[str, int]:
    """Return how many functions of kvc a decode step calls, and in how many files."""
    import numpy as np

    import kvc.schema
    from kvc.runtime import load

    own = str(Path(str(kvc.schema.__file__)).parents[1])
    files: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(own) and name != __file__:
            files.append(name)

    token = np.array([[7]])
    with load(path) as program, program.session(capacity=CAPACITY) as session:
        for _ in range(4):
            session.decode(token)
        sys.setprofile(note)
        session.decode(token)
        sys.setprofile(None)
    return {"calls": len(files), "files": len(set(files))}


def once(run: Callable[[], object]) -> float:
    """Return the microseconds of processor time of one run."""
    began = time.process_time()
    run()
    return 1e6 * (time.process_time() - began)


def of(tree: Path, *arguments: str) -> str:
    """Return what a Python of a checkout prints."""
    links = tree / ".typing"
    if not links.exists():
        subprocess.run([sys.executable, tree / "tools/dev/link_types.py"], check=True)
    env = {**os.environ, "PYTHONPATH": str(links), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return done.stdout


def main() -> None:
    """Compile, measure in rounds, print a table a recipe."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--recipes", default="fp32,xnnpack_q8")
    parser.add_argument("--calls", action="store_true")
    chosen = parser.parse_args()
    trees = {"here": HERE, "other": chosen.other.resolve()}
    with tempfile.TemporaryDirectory() as folder:
        for recipe in chosen.recipes.split(","):
            paths = {}
            for name, tree in trees.items():
                paths[name] = f"{folder}/{name}_{recipe}.kvc"
                words = ("compile", "demo", "--recipe", recipe, "-o", paths[name])
                of(tree, "-m", "kvc.tools", *words)
            what = "--count" if chosen.calls else "--measure"
            rounds = [
                {
                    name: json.loads(of(tree, __file__, what, paths[name]))
                    for name, tree in trees.items()
                }
                for _ in range(1 if chosen.calls else chosen.rounds)
            ]
            unit = "" if chosen.calls else ", us"
            heads = f"{'here' + unit:>12}{'other' + unit:>12}{'ratio':>8}"
            print(f"\n{recipe:<12}{heads}")
            for what in rounds[0]["here"]:
                pairs = [(one["here"][what], one["other"][what]) for one in rounds]
                here, other = (
                    statistics.median(side) for side in zip(*pairs, strict=True)
                )
                ratio = statistics.median(a / b for a, b in pairs)
                print(f"{what:<12}{here:>12,.0f}{other:>12,.0f}{ratio:>8.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--count"]:
        print(json.dumps(count_calls(sys.argv[2])))
    elif sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        main()
