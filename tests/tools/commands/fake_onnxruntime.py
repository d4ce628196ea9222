"""Stands for onnxruntime in a process of `kvc bench`: a decoder checks its inputs."""

from pathlib import Path
from types import SimpleNamespace as Some

CACHE = ["rows", 2, "past", 4]
IDS = {
    "input_ids": ["rows", "new"],
    "attention_mask": ["rows", "all"],
    "position_ids": ["rows", "new"],
}


def floats(*names):
    return [Some(name=name, type="tensor(float)", shape=CACHE) for name in names]


class SessionOptions:
    """Options that nothing reads but the session below."""


class OrtValue(Some):
    """An array, or only its shape."""

    @staticmethod
    def ortvalue_from_numpy(array):
        return OrtValue(array=array, shape=array.shape)


class InferenceSession:
    """Fails on a file that says it is broken; one may have another input."""

    def __init__(self, path, options, providers):
        if b"broken" in Path(path).read_bytes():
            raise ValueError("no\nmodel")
        self.other = b"other" in Path(path).read_bytes()
        assert options.intra_op_num_threads > 0
        assert providers == ["CPUExecutionProvider"]

    def get_inputs(self):
        ids = [Some(name=n, type="tensor(int64)", shape=s) for n, s in IDS.items()]
        if self.other:
            ids.append(Some(name="scale", type="tensor(double)", shape=[1]))
        return ids + floats("past.k", "past.v")

    def get_outputs(self):
        logits = Some(name="logits", type="tensor(float)", shape=["rows", "new", 9])
        return [logits, *floats("new.k", "new.v")]

    def run_with_ort_values(self, names, feeds):
        assert names == ["logits", "new.k", "new.v"]
        past, (_, count) = feeds["past.k"].shape[2], feeds["input_ids"].shape
        assert feeds["attention_mask"].shape == (1, past + count)
        assert feeds["position_ids"].array[0, 0] == past
        return [OrtValue(shape=(1, 2, past + count, 4)) for _ in names]
