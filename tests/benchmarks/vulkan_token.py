"""What a token costs on a Vulkan device beside the shaders themselves.

`python tests/benchmarks/vulkan_token.py [--recipe vulkan_q8] [--tokens 8]` compiles the
demo and decodes. Prints submissions, dispatches and bytes moved for each token, and the
time of the call outside of the device. `--recipe` may be any that runs on Vulkan.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from kvc.compiler import compile_program
from kvc.compiler.models import BUILTIN
from kvc.runtime import load
from kvc.runtime.delegates.vulkan.binding import Bound
from kvc.runtime.delegates.vulkan.commands import Commands


def main() -> None:
    """Compile, decode, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="vulkan_fp32")
    parser.add_argument("--tokens", type=int, default=8)
    given = parser.parse_args()
    ran: list[Bound] = []
    device: list[float] = []
    whole: list[float] = []
    call, run = Bound.__call__, Commands.run

    def noted(self: Bound) -> None:
        ran.append(self)
        call(self)

    def timed(self: Commands) -> None:
        began = time.perf_counter()
        run(self)
        device.append(time.perf_counter() - began)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo.kvc"
        spec = BUILTIN["demo"]()
        compile_program(
            spec.model, spec.methods, given.recipe, states=spec.states
        ).save(path)
        with load(path) as program, program.session() as session:
            session.prefill(np.array([[7, 8, 9]]))
            session.decode(np.array([[7]]))  # records
            Bound.__call__, Commands.run = noted, timed  # type: ignore[method-assign]
            for token in range(given.tokens):
                began = time.perf_counter()
                session.decode(np.array([[token]]))
                whole.append(time.perf_counter() - began)
            mirrors = ran[-1].mirrors
            outside = [a - b for a, b in zip(whole, device, strict=True)]
            own = statistics.median(outside)
            print(f"submissions {len(ran) / given.tokens:g}")
            print(f"dispatches {ran[-1].dispatches}")
            print(f"bytes to the device {mirrors.read_nbytes}")
            print(f"bytes back {mirrors.written_nbytes}")
            print(f"outside of the device {1000 * own:.2f} ms")
            print(f"whole token {1000 * statistics.median(whole):.0f} ms")


if __name__ == "__main__":
    main()
