"""Interrupt compilations: `python tests/hostile/interrupts.py --module 2000 --seed 0`.

`kvc compile` gets one SIGINT, as by Ctrl-C, at a moment that the seed draws from the
time that a whole run takes. It must end with 130, soon, without a traceback, and leave
the old file and no temporary one; where the interrupt came after the work, the new file
and 0 are right too. `--module` counts compilations of a tiny decoder, each a fork of a
process that has imported the compiler, `--folder` those of a transformers folder, each
a process from its start on. `--first N` goes on from moment N.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from forked_commands import COMPILER, Forked, Running, Spawned, import_first
from hand_built import affine_program, write_bundle
from killed_runs import apart

KVC = (sys.executable, "-m", "kvc.tools")
# What a shell calls 130 may be the signal: so Python ends where an interrupt has come
# through code that was made of text, whoever caught it later.
INTERRUPTED = (130, -signal.SIGINT)
BEFORE = "Fatal Python error: init_import_site"  # Python itself was not ready
SAY = 50
LATE_SHARE, LATE_SECONDS = 0.2, 0.5  # what may be left to do when nobody hears it
IGNORED = "Exception ignored in"  # how Python tells of a finalizer's exception

Start = Callable[[Path, Path], Running]  # with the bundle to write, and a log


class Interrupter:
    """Interrupts compilations of one model again and again."""

    def __init__(self, name: str, start: Start) -> None:
        """Compile it, once to be warm and once for the time."""
        self.name, self._start = name, start
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []
        self._whole: dict[str, str] = {}
        for _ in range(2):
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                code = start(Path(folder) / "model.kvc", Path(os.devnull)).wait()
                assert code == 0, f"{name} ended with {code}"
                self.seconds = time.monotonic() - began
                self._whole = dict(apart(Path(folder))[0])

    def at_moment(self, share: float) -> None:
        """Interrupt it at a share of the time that it takes."""
        with tempfile.TemporaryDirectory() as folder:
            files, log = Path(folder) / "files", Path(folder) / "log"
            files.mkdir()
            log.touch()
            write_bundle(files / "model.kvc", affine_program())
            before = dict(apart(files)[0])
            running = self._start(files / "model.kvc", log)
            try:
                running.wait(share * self.seconds)
            except subprocess.TimeoutExpired:
                running.interrupt()
            sent = time.monotonic()
            code = _ended(running, 10 + 2 * self.seconds)
            found = self._found(code, time.monotonic() - sent, log.read_text())
            after, leftovers = apart(files)
            if after not in (before, self._whole):
                found.append("a file is neither old nor new")
            if code == 0 and after == before:
                found.append("it ended with 0 and wrote nothing")
            found += [f"{name} is left over" for name in leftovers]
            for one in found:
                where = f"at {share:.4f} of {self.seconds:.2f} s"
                self.findings.append(f"{self.name}, {where}: {one}")
                print(self.findings[-1], flush=True)

    def _found(self, code: int | None, seconds: float, said: str) -> list[str]:
        """Return what is wrong with how a run ended after its interrupt."""
        if said.startswith(BEFORE):
            self.counts["before Python had begun"] += 1
            return []
        self.counts["interrupted" if code in INTERRUPTED else "ended"] += 1
        self.counts["with an exception that was ignored"] += IGNORED in said
        found = []
        if code is None:
            return ["it did not end"]
        if code not in (0, *INTERRUPTED):
            found.append(f"it ended with {code}: {said[-2000:]}")
        elif "Traceback" in said and IGNORED not in said:
            found.append(f"it says {said[-2000:]}")
        late = max(LATE_SECONDS, LATE_SHARE * self.seconds)
        if code == 0 and seconds > late:
            found.append(f"it went on for {seconds:.2f} s")
        return found


def _ended(running: Running, timeout: float) -> int | None:
    try:
        return running.wait(timeout)
    except subprocess.TimeoutExpired:
        running.kill()
        return None


def _module(path: Path, log: Path) -> Running:
    command = ["compile", "tiny_decoder:factory", "-o", str(path), "-q"]
    return Forked(command, log=log)


def _folder(model: Path) -> Start:
    def start(path: Path, log: Path) -> Running:
        command = [*KVC, "compile", str(model), "-o", str(path), "-q"]
        return Spawned(command, log=log)

    return start


def _make_folder(model: Path) -> None:
    """Save a tiny random decoder as transformers does, in a process of its own."""
    code = (
        "import sys; from transformers import LlamaConfig, LlamaForCausalLM; "
        "LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, "
        "intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)"
        ").save_pretrained(sys.argv[1])"
    )
    command = [sys.executable, "-c", code, str(model)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def _try(interrupter: Interrupter, moments: Sequence[int], seed: int) -> None:
    print(f"{interrupter.name} takes {interrupter.seconds:.2f} s", flush=True)
    for number in moments:
        drawn = random.Random(f"{seed} {interrupter.name} {number}")
        interrupter.at_moment(drawn.random())
        if number % SAY == SAY - 1:
            print(f"{interrupter.name}: {number + 1} interrupts", flush=True)


def main() -> int:
    """Run the command; return 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--module", type=int, default=200)
    parser.add_argument("--folder", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = sys.path[0]  # for the factory that is compiled
    # A shell has what it starts in the background ignore it, and so would the children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import_first(COMPILER)
    with tempfile.TemporaryDirectory() as at:
        wanted = {"module": options.module, "folder": options.folder}
        starts: dict[str, Start] = {"module": _module}
        if options.folder:
            _make_folder(Path(at) / "model")
            starts["folder"] = _folder(Path(at) / "model")
        done = [
            Interrupter(name, start) for name, start in starts.items() if wanted[name]
        ]
        for one in done:
            _try(one, range(options.first, wanted[one.name]), options.seed)
    print(json.dumps({one.name: one.counts for one in done}, indent=1))
    findings = sum(len(one.findings) for one in done)
    print(f"{findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
