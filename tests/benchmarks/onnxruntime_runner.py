"""Runs what `onnxruntime_peer.py` builds; needs onnxruntime and numpy, not onnx."""

import time
from pathlib import Path

import numpy as np
import onnxruntime as ort

VOCAB, LAYERS, KV_HEADS, HEAD_DIM, CAPACITY = 49152, 30, 3, 64, 2048


class Runner:
    """Runs the model with its cache bound in place."""

    def __init__(self, path: Path, threads: int = 2) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = ort.InferenceSession(path, options, ["CPUExecutionProvider"])
        shape = (1, KV_HEADS, CAPACITY, HEAD_DIM)
        self.binding = self.session.io_binding()
        for i in range(LAYERS):
            for n in "kv":
                cache = ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
                self.binding.bind_ortvalue_input(f"{n}{i}", cache)
                self.binding.bind_ortvalue_output(f"{n}o{i}", cache)
        logits = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 1, VOCAB), np.float32))
        self.binding.bind_ortvalue_output("logits", logits)

    def step(self, ids: np.ndarray, position: int) -> float:
        """Run ids at a position; return the seconds it took."""
        end = position + ids.shape[1]
        begin = time.perf_counter()
        self.binding.bind_cpu_input("ids", ids)
        self.binding.bind_cpu_input("seqlens", np.array([end - 1], np.int32))
        self.binding.bind_cpu_input("total", np.array(end, np.int32))
        self.session.run_with_iobinding(self.binding)
        return time.perf_counter() - begin
