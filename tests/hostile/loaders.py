"""One loader, kvc's or another's: make a small file, or load damaged ones.

`PYTHON tests/hostile/loaders.py LOADER make FILE` writes a linear layer and relu, in
the loader's own format; `... try FILE FOLDER COUNT` loads and runs FOLDER/0, FOLDER/1
and so on, each in a process of its own, and prints a list of what came of them as JSON.
Runs in an environment that has the loader's package; `rivals.py` starts it.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from ctypes import (
    CDLL,
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_int64,
    c_size_t,
    c_void_p,
    string_at,
)
from pathlib import Path
from typing import NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from forked_batches import Ended, Limits, answers

LIMITS = Limits(seconds=10, nbytes=4 << 30)
WIDTH, OUT = 8, 4
WEIGHT = [[(7 * i + 3 * j) % 11 - 5 for j in range(WIDTH)] for i in range(OUT)]
INPUT = [[0.5 * i - 1 for i in range(WIDTH)]]


class Loader(NamedTuple):
    """What writes a file, and what loads one and returns bytes of what is in it."""

    make: Callable[[Path], None]
    run: Callable[[Path], bytes]


def _torch_model():
    import torch

    layer = torch.nn.Linear(WIDTH, OUT)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(WEIGHT) / 8)
        layer.bias.copy_(torch.arange(OUT) / 4)
    return torch.nn.Sequential(layer, torch.nn.ReLU()).eval()


def _make_kvc(path: Path) -> None:
    import torch

    from kvc.compiler import Method, compile_program

    method = Method("forward", args=(torch.tensor(INPUT),))
    compile_program(_torch_model(), [method], "cpu_fp32").save(path)


def _run_kvc(path: Path) -> bytes:
    import numpy as np

    from kvc.runtime import load

    with load(path) as program, program.session() as session:
        return session.forward(np.array(INPUT, np.float32)).tobytes()


def _make_executorch(path: Path) -> None:
    import torch
    from executorch.exir import to_edge

    exported = torch.export.export(_torch_model(), (torch.tensor(INPUT),))
    path.write_bytes(to_edge(exported).to_executorch().buffer)


def _run_executorch(path: Path) -> bytes:
    import torch
    from executorch.extension.pybindings import portable_lib

    raw = path.read_bytes()  # which the module goes on reading
    module = portable_lib._load_for_executorch_from_buffer(raw)
    (result,) = module.forward((torch.tensor(INPUT),))
    return result.numpy().tobytes()


def _make_onnx(path: Path) -> None:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save

    weight = numpy_helper.from_array(np.array(WEIGHT, np.float32) / 8, "weight")
    bias = numpy_helper.from_array(np.arange(OUT, dtype=np.float32) / 4, "bias")
    nodes = [
        helper.make_node("Gemm", ["x", "weight", "bias"], ["y"], transB=1),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTH])
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, OUT])
    graph = helper.make_graph(nodes, "model", [x], [z], [weight, bias])
    opsets = [helper.make_opsetid("", 21)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def _run_onnx(path: Path) -> bytes:
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options)
    (result,) = session.run(None, {"x": np.array(INPUT, np.float32)})
    return result.tobytes()


def _make_gguf(path: Path) -> None:
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(16)
    writer.add_token_list(["a", "b", "c"])
    writer.add_tensor("weight", np.array(WEIGHT, np.float32) / 8)
    writer.add_tensor("bias", np.arange(OUT, dtype=np.float32) / 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class _InitParams(Structure):
    _fields_ = (("no_alloc", c_bool), ("context", POINTER(c_void_p)))


def _run_gguf(path: Path) -> bytes:
    """Load a file as llama.cpp does, and return its tensors: nothing here runs them."""
    ggml = CDLL(os.environ["GGML_LIBRARY"])
    for name in ("gguf_init_from_file", "ggml_get_first_tensor"):
        getattr(ggml, name).restype = c_void_p
    for name in ("ggml_get_next_tensor", "ggml_get_data"):
        getattr(ggml, name).restype = c_void_p
    ggml.ggml_get_name.restype = c_char_p
    ggml.ggml_nbytes.restype = c_size_t
    ggml.gguf_get_n_kv.restype = c_int64
    context = c_void_p()
    params = _InitParams(False, POINTER(c_void_p)(context))
    opened = ggml.gguf_init_from_file(str(path).encode(), params)
    if not opened:
        raise ValueError("refused")
    found = [str(ggml.gguf_get_n_kv(c_void_p(opened))).encode()]
    tensor = ggml.ggml_get_first_tensor(context)
    while tensor:
        one = c_void_p(tensor)
        nbytes = ggml.ggml_nbytes(one)
        found += [ggml.ggml_get_name(one), string_at(ggml.ggml_get_data(one), nbytes)]
        tensor = ggml.ggml_get_next_tensor(context, one)
    return b"\0".join(found)


LOADERS = {
    "kvc": Loader(_make_kvc, _run_kvc),
    "executorch": Loader(_make_executorch, _run_executorch),
    "onnxruntime": Loader(_make_onnx, _run_onnx),
    "gguf": Loader(_make_gguf, _run_gguf),
}


def digest_of(loader: Loader, path: Path) -> str:
    """Return a digest of what a loader makes of a file; what it raises otherwise."""
    try:
        return hashlib.sha256(loader.run(path)).hexdigest()
    except Exception as error:
        return f"error: {type(error).__name__}"


def try_all(loader: Loader, whole: Path, folder: Path, count: int) -> list[str]:
    """Return what came of each damaged file."""
    right = digest_of(loader, whole)
    if right.startswith("error"):
        raise SystemExit(f"the whole file: {right}")

    def try_cases(cases: range) -> list[str]:
        (number,) = cases
        found = digest_of(loader, folder / str(number))
        if found.startswith("error"):
            return ["error"]
        return ["same" if found == right else "differs"]

    made = []
    for number in range(count):
        ((_, answer),) = answers(try_cases, range(number, number + 1), LIMITS)
        if isinstance(answer, Ended):
            answer = "runs on" if answer.too_long else "ends the process"
        made.append(str(answer))
    return made


def main() -> None:
    """Do what is asked."""
    name, what, path, *more = sys.argv[1:]
    loader = LOADERS[name]
    if what == "make":
        loader.make(Path(path))
        return
    folder, count = Path(more[0]), int(more[1])
    print(json.dumps(try_all(loader, Path(path), folder, count)))


if __name__ == "__main__":
    main()
