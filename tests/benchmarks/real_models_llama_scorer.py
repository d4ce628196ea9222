"""llama.cpp as a scorer of `kvc.runtime.scoring`: windows in, logits out.

In: the interpreter of an environment that has llama.cpp, a gguf. The process is
`real_models_llama.py`, which says what goes through its pipes.
"""

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from kvc.runtime.scoring.scorers import Logits

SCRIPT = Path(__file__).with_name("real_models_llama.py")
ROWS = 64  # that are read at once


def run_stage(python: Path, *arguments: object) -> None:
    """Run a stage of the script that ends by itself."""
    subprocess.run([python, SCRIPT, *map(str, arguments)], check=True)


class LlamaScorer:
    """A process with a model; see `Scorer`.

    Attributes:
        nbytes, weights_nbytes: of its file, and of the tensors in it.
        types: of these.
    """

    method = "llama_decode"
    most: int | None = None

    def __init__(self, python: Path, path: Path, length: int) -> None:
        self._process = subprocess.Popen(
            [python, SCRIPT, "logits", path, "--length", str(length)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asked, self._told = self._process.stdin, self._process.stdout
        told = json.loads(self._told.readline())
        self._vocab: int = told["vocab"]
        self.nbytes: int = told["nbytes"]
        self.weights_nbytes: int = told["weights_nbytes"]
        self.types: list[str] = told["types"]

    def __enter__(self) -> "LlamaScorer":
        return self

    def __exit__(self, *exc: object) -> None:
        self._asked.close()
        self._told.close()
        self._process.wait()

    def logits(self, tokens: Sequence[int], first: int) -> Iterator[Logits]:
        """Yield some rows at a time; see `Scorer`."""
        given = np.array([len(tokens), first, *tokens], np.int32)
        self._asked.write(given.tobytes())
        self._asked.flush()
        left = len(tokens) - first
        while left:
            count = min(left, ROWS)
            raw = self._told.read(count * self._vocab * 4)
            yield np.frombuffer(raw, np.float32).reshape(count, self._vocab)
            left -= count
