"""Model A's shape in ONNX Runtime, int8 weights and activations: decode and prefill.

Needs only `pip install onnx==1.23.2 onnxruntime==1.31.1`. Weights are random. Each
linear is a `DynamicQuantizeMatMul` (int8 weights per output channel, one activation
scale per tensor), attention is `GroupQueryAttention` over a cache of 2,048 that is
bound as input and output, so that it is updated in place. Prints one JSON line.
"""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_runner import CAPACITY, HEAD_DIM, KV_HEADS, LAYERS, VOCAB, Runner

DIM, HEADS, FFN = 576, 9, 1536
FLOAT, INT8 = TensorProto.FLOAT, TensorProto.INT8


class GraphBuilder:
    """Collects nodes and initializers."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def node(
        self,
        op: str,
        inputs: list[str],
        outputs: list[str],
        domain: str = "",
        **attrs: object,
    ) -> str:
        self.nodes.append(helper.make_node(op, inputs, outputs, domain=domain, **attrs))
        return outputs[0]

    def weight(self, name: str, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def linear(self, name: str, x: str, width: int, out: int) -> str:
        values = self.random.integers(-127, 128, (width, out)).astype(np.int8)
        scale = np.full(out, 0.01 / np.sqrt(width), np.float32)
        inputs = [x, self.weight(f"{name}.w", values), self.weight(f"{name}.s", scale)]
        return self.node("DynamicQuantizeMatMul", inputs, [name], "com.microsoft")

    def layer(self, i: int, x: str, residual: str) -> tuple[str, str]:
        """Add a layer on the normed x and the residual; return both of the next."""
        kv = KV_HEADS * HEAD_DIM
        qkv = self.linear(f"qkv{i}", x, DIM, DIM + 2 * kv)
        inputs = [qkv, "", "", f"k{i}", f"v{i}", "seqlens", "total", "cos", "sin"]
        heads = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": 1}
        outputs = [f"att{i}", f"ko{i}", f"vo{i}"]
        y = self.node("GroupQueryAttention", inputs, outputs, "com.microsoft", **heads)
        y = self.linear(f"o{i}", y, DIM, DIM)
        y, residual = self.norm(f"ffn_norm{i}", y, residual)
        gate = self.linear(f"gate{i}", y, DIM, FFN)
        up = self.linear(f"up{i}", y, DIM, FFN)
        sigmoid = self.node("Sigmoid", [gate], [f"sig{i}"])
        gated = self.node("Mul", [gate, sigmoid], [f"silu{i}"])
        hidden = self.node("Mul", [gated, up], [f"hidden{i}"])
        return self.norm(
            f"norm{i}", self.linear(f"down{i}", hidden, FFN, DIM), residual
        )

    def norm(self, name: str, x: str, residual: str) -> tuple[str, str]:
        ones = self.weight(f"{name}.w", np.ones(DIM, np.float32))
        outputs = [name, "", "", f"{name}.sum"]
        self.node(
            "SkipSimplifiedLayerNormalization",
            [x, residual, ones],
            outputs,
            "com.microsoft",
            epsilon=1e-5,
        )
        return name, f"{name}.sum"


def build(folder: Path) -> Path:
    """Write the model, weights as external data."""
    b = GraphBuilder()
    table = b.random.standard_normal((VOCAB, DIM)).astype(np.float32)
    x = b.node("Gather", [b.weight("embed", table), "ids"], ["embedded"])
    angles = np.outer(
        np.arange(CAPACITY), 1e5 ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    )
    b.weight("cos", np.cos(angles).astype(np.float32))
    b.weight("sin", np.sin(angles).astype(np.float32))
    ones = b.weight("norm_in.w", np.ones(DIM, np.float32))
    y = b.node(
        "SimplifiedLayerNormalization", [x, ones], ["norm_in"], axis=-1, epsilon=1e-5
    )
    residual = x
    for i in range(LAYERS):
        y, residual = b.layer(i, y, residual)
    last = b.weight("last", np.array([-1], np.int64))
    tail = b.node("Gather", [y, last], ["tail"], axis=1)
    b.linear("logits", tail, DIM, VOCAB)
    cache = [1, KV_HEADS, CAPACITY, HEAD_DIM]
    value = helper.make_tensor_value_info
    inputs = [
        value("ids", TensorProto.INT64, [1, "seq"]),
        value("seqlens", TensorProto.INT32, [1]),
        value("total", TensorProto.INT32, []),
    ]
    inputs += [value(f"{n}{i}", FLOAT, cache) for i in range(LAYERS) for n in "kv"]
    outputs = [value("logits", FLOAT, [1, 1, VOCAB])]
    outputs += [value(f"{n}o{i}", FLOAT, cache) for i in range(LAYERS) for n in "kv"]
    graph = helper.make_graph(b.nodes, "a", inputs, outputs, b.weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    path = folder / "a.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="a.data")
    return path


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        path = build(Path(folder))
        nbytes = sum(file.stat().st_size for file in Path(folder).iterdir())
        begin = time.perf_counter()
        runner = Runner(path)
        load = time.perf_counter() - begin
        prompt = np.random.default_rng(0).integers(0, VOCAB, (1, 128))
        prefill = min(runner.step(prompt, 0) for _ in range(3))
        steps = sorted(runner.step(prompt[:, :1], 128 + i) for i in range(48))
    figures = {
        "load_ms": load * 1e3,
        "prefill_128_tokens_per_s": 128 / prefill,
        "decode_tokens_per_s": 1 / steps[len(steps) // 2],
        "file_mb": nbytes / 1e6,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
