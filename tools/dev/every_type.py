"""Compile a tiny model of every type that transformers has, and compare results.

    python tools/dev/every_type.py [--jobs 2] [--task generate] [TYPE...]

For each type that generates text, a small model with random weights is built from a
reduced default configuration, and compiled and run in a new process. Either its logits
equal those of transformers, or kvc refuses it with a message. Prints the outcome of
each type and kvc's message. If the message gives advice (`--no-pictures`, `--max-length
N`), the advice is tried. The program takes half an hour and is not part of any check.
Not shipped.
"""

import argparse
import multiprocessing
import os
import re
import resource
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvc.compiler import CacheConfig, export_hf
from kvc.compiler.hugging_face.reading.tasks import (
    TASKS,
    Task,
    class_of,
    config_of,
    maker_of,
)
from kvc.runtime import Session, load
from kvc.schema.errors import KvcError
from kvc.tools.dev.shrunken import shrunken

SUPPORT: Final = Path(__file__).parents[2] / "tests" / "support"
sys.path.insert(0, os.fspath(SUPPORT))

from hf_models import MODELS, rescale  # noqa: E402  it lies beside the tests

SECONDS: Final = 240
BYTES: Final = 4 << 30
CAPACITY: Final = 64
PIECES: Final = (7, 5, 1, 1, 1)
TOLERANCE: Final = 1e-3  # as a share of the spread of logits
_LENGTH: Final = re.compile(r"max_length=(\d+)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a type.

    Attributes:
        name: name of the type.
        kind: "equal", "runs", "refused", "WRONG", "ERROR", "unbuilt" or "killed".
        said: kvc's message, or the distance of the logits from the model's.
        seconds: seconds that the type took.
    """

    name: str
    kind: str
    said: str
    seconds: float = 0.0

    def line(self) -> str:
        """Return the outcome as text; a message of several lines keeps its lines."""
        said = self.said.replace("\n", "\\n")
        return f"{self.kind:8} {self.name:32} {self.seconds:5.0f}s  {said}"


def types_of(task: Task) -> list[str]:
    """Return the model types for which transformers has a class that does a task."""
    return [name for name in CONFIG_MAPPING if _has(name, task)]


def _has(name: str, task: Task) -> bool:
    config = CONFIG_MAPPING[name]
    try:
        return maker_of(task, config()) is not None
    except Exception:  # has no defaults: `build` reports that
        return True


def build(name: str, task: Task) -> PreTrainedModel:
    """Return a tiny model of a type."""
    config = _config(name)
    wide = AutoModelForImageTextToText._model_mapping
    if type(config) in wide:  # the whole model, not its text part alone
        config.architectures = [str(getattr(wide[type(config)], "__name__", ""))]
    maker = maker_of(task, config)
    if maker is None:  # a type named on the command line
        raise ValueError(f"transformers has no model of it for the task {task}")
    kind = class_of(maker, config)
    model: PreTrainedModel = kind._from_config(  # type: ignore[no-untyped-call]
        config_of(kind, config), dtype=torch.float32, attn_implementation="eager"
    )
    rescale(model, 0)
    model.train(False)
    return model


def _config(name: str) -> PreTrainedConfig:
    """Return a tiny configuration: the tests' own, or a reduced default one."""
    known = [tiny for tiny in MODELS.values() if tiny.model_type == name]
    if known:
        return AutoConfig.for_model(name, **known[0].settings)
    try:
        return shrunken(name)
    except Exception:  # some types need as many key heads as query heads
        return shrunken(name, num_key_value_heads=4)


def attempt(name: str, task: Task) -> tuple[str, str]:
    """Return the kind of an outcome and its message."""
    try:
        model = build(name, task)
    except Exception as error:
        return "unbuilt", _told(error)
    try:
        return _compiled(model, task, {})
    except KvcError as error:
        return "refused", f"{error}{_advised(model, task, str(error))}"
    except Exception as error:
        return "ERROR", _told(error)


def _compiled(
    model: PreTrainedModel, task: Task, options: Mapping[str, object]
) -> tuple[str, str]:
    """Compile a model and compare it with the original; warnings are in the message."""
    given = {"cache": CacheConfig(), **options}
    if task == "generate":
        given["prefill_chunk"] = 16
    with warnings.catch_warnings(record=True) as caught, TemporaryDirectory() as folder:
        warnings.simplefilter("always")
        bundle = export_hf(model, task=task, **given)  # type: ignore[arg-type]
        path = Path(folder) / "model.kvc"
        bundle.save(path)
        told = [
            str(one.message)
            for one in caught
            if one.category.__module__.startswith("kvc.")
        ]
        with load(path) as program:
            if task != "generate" or "encode" in program.methods:
                return "runs", "; ".join([", ".join(program.methods), *told])
            if "embed_image" in program.methods:
                told.append("with pictures")
            with program.session(capacity=CAPACITY) as session:
                distance = _distance(model, session)
    kind = "equal" if distance < TOLERANCE else "WRONG"
    return kind, "; ".join([f"{distance:.1e}", *told])


def _distance(model: PreTrainedModel, session: Session) -> float:
    """Return the distance of logits from the model's, as a share of their spread."""
    vocab = model.config.get_text_config().vocab_size
    tokens = np.random.default_rng(7).integers(3, min(vocab, 60), (1, sum(PIECES)))
    with torch.no_grad():
        made = model(input_ids=torch.from_numpy(tokens), use_cache=False).logits[0]
    found, ends = [], np.cumsum(PIECES)
    for end, count in zip(ends, PIECES, strict=True):
        call = session.decode if count == 1 else session.prefill
        found.append(call(tokens[:, end - count : end])[0].copy())
    wanted = made.numpy()[ends - 1]
    return float(np.abs(np.stack(found) - wanted).max() / made.numpy().std())


def _advised(model: PreTrainedModel, task: Task, said: str) -> str:
    """Return the outcome of following the advice in a message."""
    options: dict[str, object] = {}
    length = _LENGTH.search(said)
    if length is not None:
        options["cache"] = CacheConfig(max_length=int(length[1]))
    if "--no-pictures" in said:
        options["pictures"] = False
    if not options:
        return ""
    try:
        kind, what = _compiled(model, task, options)
    except KvcError as error:
        kind, what = "REFUSED", str(error)
    except Exception as error:
        kind, what = "ERROR", _told(error)
    return f" [as advised: {kind} {what}]"


def _told(error: Exception) -> str:
    """Return the text of a Python error and the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    return f"{type(error).__name__} at {where}: {error}"


def _child(name: str, task: Task, end: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)
    end.send(attempt(name, task))


@dataclass(slots=True)
class _Running:
    """A process that tries a type."""

    name: str
    process: BaseProcess
    end: Connection
    since: float


def outcomes(names: Sequence[str], task: Task, jobs: int) -> Iterator[Outcome]:
    """Try each type in a new process, with `jobs` processes at a time."""
    waiting, running = [*reversed(names)], list[_Running]()
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(_started(waiting.pop(), task))
        time.sleep(0.05)
        for one in [*running]:
            found = _ended(one)
            if found is not None:
                running.remove(one)
                yield found


def _started(name: str, task: Task) -> _Running:
    context = multiprocessing.get_context("fork")  # torch has computed nothing here
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(name, task, theirs))
    process.start()
    theirs.close()
    return _Running(name, process, ours, time.monotonic())


def _ended(one: _Running) -> Outcome | None:
    """Return the outcome of a process that has ended, or must be killed."""
    seconds = time.monotonic() - one.since
    if one.end.poll():
        try:
            kind, said = one.end.recv()
        except EOFError:
            kind, said = "killed", f"it ended without a word ({one.process.exitcode})"
        one.process.join()
        return Outcome(one.name, kind, said, seconds)
    if seconds > SECONDS:
        reason = f"after {SECONDS} seconds"
    elif _resident(one.process.pid) > BYTES:
        reason = f"with more than {BYTES >> 30} GiB"
    else:
        return None
    one.process.kill()
    one.process.join()
    return Outcome(one.name, "killed", reason, seconds)


def _resident(process: int | None) -> int:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text("ascii").split()[1])
    except (OSError, IndexError):
        return 0
    return pages * resource.getpagesize()


def main() -> None:
    """Print a line for each type."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--task", choices=TASKS, default="generate")
    asked = parser.parse_args()
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    counts = Counter[str]()
    for found in outcomes(asked.types or types_of(asked.task), asked.task, asked.jobs):
        counts[found.kind] += 1
        print(found.line(), flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))


if __name__ == "__main__":
    main()
