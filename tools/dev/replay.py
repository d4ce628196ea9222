"""Compare results of the native kernels on two machines; the second needs no torch.

    python tools/dev/replay.py record FOLDER     on a machine that can compile
    python tools/dev/replay.py replay FOLDER     on the other, for each instruction set

Kernels are called with numbers that both machines make. `record` also compiles bundles
of a tiny decoder. Integers and int8 products must have the same bits. Floats must agree
within 1e-5 of the greatest, and results of quantized activations within 1e-2, because
an activation can be rounded to the neighboring step.
"""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import numpy as np
from ml_dtypes import bfloat16

from kvc.runtime import load
from kvc.runtime.native import Failure, NativeCall, NativePartition, Steps
from kvc.runtime.native.library import find_library

Arrays = list[np.ndarray]
ROWS = (1, 2, 3, 4, 7, 8, 16, 17, 24, 40)
BUNDLES = [
    (recipe, cache)
    for recipe in ("cpu_fp32", "cpu_bf16", "cpu_q8", "cpu_q4")
    for cache in ("float32", "float16", "int8")
]


def calls() -> Iterator[tuple[str, float, Callable[[], Arrays]]]:
    """Yield each kernel call: its name, its tolerance, and a function that runs it."""
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> np.ndarray:
        return (rng.random(shape) * 2 - 1).astype(np.float32)

    def integers(low: int, high: int, dtype: type, *shape: int) -> np.ndarray:
        return rng.integers(low, high, shape).astype(dtype)

    def quantized(rows: int, depth: int) -> Arrays:
        q = integers(-128, 128, np.int8, rows, depth)
        return [q, floats(rows, 1) + 2, integers(-128, 128, np.int32, rows, 1)]

    def in_blocks(rows: int, depth: int) -> Arrays:
        q, scale, _ = quantized(rows, depth)
        of_blocks = rows, -(-depth // 32)
        zeros = integers(-128, 128, np.int8, *of_blocks)
        return [q, scale, zeros, integers(1, 32, np.int8, *of_blocks)]

    for rows in ROWS:
        for columns, depth, parts in (
            (1, 1, 1),
            (25, 33, 1),
            (50, 96, 3),
            (7, 1152, 4),
            (30, 448, 2),
        ):
            weight = integers(-128, 128, np.int8, columns, depth)
            inputs = [*in_blocks(rows, depth), weight, floats(columns, parts), None]
            out = np.empty((rows, columns), np.float32)
            run = call("linear_q8", [out], inputs)
            yield f"int8 in blocks {rows} {columns} {depth}", 0, run
            made = [np.empty(s.shape, s.dtype) for s in in_blocks(rows, depth)]
            run = call("quantize_blocks", made, [floats(rows, depth) * 100])
            yield f"blocks {rows} {depth} {columns}", 0, run
        for columns, depth in ((1, 1), (25, 33), (50, 96), (9, 200), (7, 264)):
            weight = integers(-128, 128, np.int8, columns, depth)
            inputs = [*quantized(rows, depth), weight, floats(columns), floats(columns)]
            out = np.empty((rows, columns), np.float32)
            yield f"int8 {rows} {columns} {depth}", 0, call("linear_qd8", [out], inputs)
            x, weight = floats(rows, depth), floats(columns, depth)
            inputs = [x, weight, floats(columns)]
            run = call("linear", [out.copy()], inputs, "aten")
            yield f"float32 {rows} {columns} {depth}", 1e-5, run
            made = [np.empty(s.shape, s.dtype) for s in quantized(rows, depth)]
            run = call("quantize_rows", made, [x * 100])
            yield f"quantize {rows} {depth} {columns}", 0, run
        for columns, depth, block in ((8, 32, 32), (32, 96, 32), (56, 320, 64)):
            groups = columns // 8
            weight = integers(0, 256, np.uint8, groups, depth // 8, 8, 4)
            scale = integers(0x3C00, 0x4000, np.uint16, groups, depth // block, 8)
            weights = [weight, scale.view(bfloat16), floats(columns)]
            inputs = [*quantized(rows, depth), *weights]
            out = np.empty((rows, columns), np.float32)
            yield f"int4 {rows} {columns}", 1e-5, call("linear_qb4", [out], inputs)
            minimum = floats(groups, depth // block, 8)
            for least in (None, minimum.astype(np.float16), minimum):
                kind = "none" if least is None else least.dtype
                inputs = [*in_blocks(rows, depth), *weights, least]
                run = call("linear_q4", [out.copy()], inputs)
                yield f"int4 in blocks {rows} {columns} {kind}", 1e-5, run


def call(
    kernel: str, outs: Arrays, inputs: list[np.ndarray | None], family: str = "kvc"
) -> Callable[[], Arrays]:
    def fail(failure: Failure) -> NoReturn:
        raise SystemExit(f"{kernel} failed: {failure}")

    def run() -> Arrays:
        steps = Steps(find_library(), 2)
        steps.add(f"{family}::{kernel}", [*outs, *inputs], [], [])
        NativeCall([NativePartition(steps, fail)])()
        return outs

    return run


def answers(path: Path) -> Arrays:
    with load(path, reference=False) as program, program.session() as session:
        found = [session.prefill(np.arange(13)[None])]
        found += [session.decode(np.array([[token]])) for token in range(4)]
        return [np.asarray(array).astype(np.float32) for array in found]


def compile_bundles(folder: Path) -> None:
    sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
    from kvc.compiler import compile_program
    from kvc.recipes import load_recipe

    spec = import_module("tiny_decoder").factory()
    for recipe, cache in BUNDLES:
        compile_program(
            spec.model,
            spec.methods,
            recipe=load_recipe(recipe, cache=cache),
            metadata=spec.metadata,
        ).save(folder / f"{recipe} {cache}.kvc")


def everything(folder: Path) -> Iterator[tuple[str, float, Arrays]]:
    for name, tolerance, run in calls():
        yield name, tolerance, run()
    for recipe, cache in BUNDLES:
        name = f"{recipe} {cache}"
        tolerance = 1e-5 if name == "cpu_fp32 float32" else 1e-2
        yield name, tolerance, answers(folder / f"{name}.kvc")


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    greatest = np.abs(expected.astype(np.float64)).max(initial=1e-30)
    return float(np.abs(found.astype(np.float64) - expected).max(initial=0) / greatest)


def main() -> None:
    """Record results, or compare with recorded results."""
    mode, folder = sys.argv[1], Path(sys.argv[2])
    if mode == "record":
        compile_bundles(folder)
        found = {
            f"{name} {i}": array
            for name, _, arrays in everything(folder)
            for i, array in enumerate(arrays)
        }
        np.savez(folder / "recorded.npz", **found)  # type: ignore[arg-type]
        return
    processor, worst = find_library().processor, 0.0
    with np.load(folder / "recorded.npz") as recorded:
        for name, tolerance, arrays in everything(folder):
            for i, array in enumerate(arrays):
                off = difference(array, recorded[f"{name} {i}"])
                worst = max(worst, off)
                if not off <= tolerance:
                    raise SystemExit(f"{processor}: {name} is off by {off}")
        count = len(recorded.files)
    print(f"{processor}: {count} results agree; the farthest is off by {worst:.1e}")


if __name__ == "__main__":
    main()
