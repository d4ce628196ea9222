"""The process that times ONNX Runtime: `python -P onnx_process.py PLAN`, a JSON text.

It imports nothing of kvc, so that any Python with onnxruntime can run it. Prints the
seconds of each test as JSON. Caches go from one run to the next as ONNX Runtime made
them, without a copy.
"""

import json
import sys
import time
from typing import Any, Protocol

import numpy as np
import onnxruntime  # type: ignore[import-not-found,import-untyped,unused-ignore]
from numpy.typing import NDArray

TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}
CACHE_AXES = 4  # row, head, position, width


class Value(Protocol):
    """An input or output as a session describes it; a variable size is a name."""

    name: str
    type: str
    shape: list[int | str]


class Decoder:
    """A decoder that takes its caches as inputs, and returns new caches as outputs."""

    def __init__(self, model: str, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
        inputs = self.session.get_inputs()
        outputs = self.session.get_outputs()
        tokens = [i for i in inputs if "int" in i.type and len(i.shape) == 2]
        self.pasts = [i for i in inputs if _is_cache(i)]
        self.presents = [o.name for o in outputs if _is_cache(o)]
        self.logits = outputs[0].name
        if not tokens or len(self.pasts) != len(self.presents):
            raise ValueError("no decoder: it takes no tokens, or returns other caches")
        if not self.pasts or any(isinstance(i.shape[2], int) for i in self.pasts):
            raise ValueError("its caches do not grow along axis 2, as they must here")
        fixed = [i.shape[axis] for i in self.pasts for axis in (1, 3)]
        if not all(isinstance(size, int) for size in fixed):
            raise ValueError("its caches do not say how many heads they have, how wide")
        if other := sorted({i.type for i in inputs} - TYPES.keys()):
            raise ValueError(f"it has inputs that are {', '.join(other)}")
        self.tokens: Value = tokens[0]
        self.others = [i for i in inputs if i not in (self.tokens, *self.pasts)]
        self.caches: list[Any] = []
        self.length = 0
        self.reset()

    def reset(self) -> None:
        """Begin with empty caches."""
        self.length = 0
        self.caches = [
            onnxruntime.OrtValue.ortvalue_from_numpy(
                np.zeros((1, past.shape[1], 0, past.shape[3]), TYPES[past.type])
            )
            for past in self.pasts
        ]

    def run(self, count: int) -> None:
        """Run `count` tokens, and keep the resulting caches."""
        made = onnxruntime.OrtValue.ortvalue_from_numpy
        tokens = np.random.default_rng(count).integers(0, 100, (1, count))
        feeds = {self.tokens.name: made(tokens.astype(TYPES[self.tokens.type]))}
        for other in self.others:
            feeds[other.name] = made(self._other(other, count))
        feeds |= dict(zip([past.name for past in self.pasts], self.caches, strict=True))
        results = [self.logits, *self.presents]
        self.caches = self.session.run_with_ort_values(results, feeds)[1:]
        self.length += count

    def _other(self, other: Value, count: int) -> NDArray[np.generic]:
        kind = TYPES[other.type]
        if "mask" in other.name:
            return np.ones((1, self.length + count), kind)
        if "position" in other.name:
            return np.arange(self.length, self.length + count, dtype=kind)[None]
        if "branch" in other.name:
            return np.array([self.length > 0], kind)
        if "num_logits_to_keep" in other.name:
            return np.array(1, kind)
        raise ValueError(f"it has an input {other.name!r} that kvc bench does not know")


def _is_cache(value: Value) -> bool:
    return "float" in value.type and len(value.shape) == CACHE_AXES


def timed(decoder: Decoder, prompt: int, steps: int, depth: int) -> float:
    """Return the seconds of a test, timed as `kvc bench` times bundles."""
    decoder.reset()
    decoder.run(prompt or 1)
    decoder.reset()
    if depth:
        decoder.run(depth)
    began = time.perf_counter()
    for _ in range(steps if not prompt else 1):
        decoder.run(prompt or 1)
    return time.perf_counter() - began


def main() -> None:
    """Run the tests of the plan, and print the seconds of each as JSON."""
    plan = json.loads(sys.argv[1])
    decoder = Decoder(plan["model"], plan["threads"])
    sys.stdout.write(json.dumps([timed(decoder, **test) for test in plan["tests"]]))


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        sys.exit(str(error).strip().replace("\n", " ") or repr(error))
