"""Print how long decoding and verifying a program of 10,000 instructions takes.

Run it by hand: `python tests/benchmarks/decode_speed.py`. The goal is 100 ms in all.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from sample_programs import layered_program

from kvc.schema.codec import decode, encode
from kvc.schema.verify import verify_program
from kvc.schema.verify.structure import verify_structure


def milliseconds(work: Callable[[], object], repeats: int = 7) -> float:
    """Return the least time of a few runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times) * 1000


def main() -> None:
    """Measure and print."""
    program = layered_program(10_000)
    raw = encode(program)
    decoded = decode(raw, "bench")
    assert decoded == program
    steps = sum(len(method.graph.instructions) for method in program.methods)
    structure = milliseconds(lambda: verify_structure(raw, "Program", b"KVCP", "bench"))
    whole = milliseconds(lambda: decode(raw, "bench"))
    verify = milliseconds(lambda: verify_program(decoded, "bench"))
    thorough = milliseconds(lambda: verify_program(decoded, "bench", thorough=True), 1)
    sys.stdout.write(
        f"{steps} instructions, {len(raw)} bytes\n"
        f"encode           {milliseconds(lambda: encode(program), 3):8.1f} ms\n"
        f"decode           {whole:8.1f} ms, of which structure {structure:.1f} ms\n"
        f"verify           {verify:8.1f} ms\n"
        f"decode + verify  {whole + verify:8.1f} ms\n"
        f"verify, thorough {thorough:8.1f} ms\n"
    )


if __name__ == "__main__":
    main()
