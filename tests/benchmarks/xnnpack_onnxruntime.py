"""ONNX Runtime's side of `xnnpack.py`; the model is that of `onnxruntime_peer.py`.

Needs `pip install onnx==1.23.2 onnxruntime==1.31.1`, onnx only to build.
"""

import argparse
from pathlib import Path

from xnnpack_measure import Ids, add_run_options, measure_process


class OnnxRuntime:
    """A session whose cache is bound in place."""

    def __init__(self, threads: int) -> None:
        import onnxruntime_runner

        self._make, self._threads = onnxruntime_runner.Runner, threads

    def load(self, path: str) -> None:
        """Open a session, and bind its caches."""
        self._runner = self._make(Path(path), self._threads)

    def step(self, ids: Ids, position: int) -> None:
        """Append tokens at a position."""
        self._runner.step(ids, position)


def build(path: Path) -> None:
    """Write the model, and its weights beside it."""
    import onnxruntime_peer

    path.parent.mkdir(exist_ok=True)
    onnxruntime_peer.build(path.parent).rename(path)


def main() -> None:
    """Do one stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    stages = parser.add_subparsers(dest="stage", required=True)
    stages.add_parser("build").add_argument("path", type=Path, help="of the .onnx")
    add_run_options(stages.add_parser("run"))
    options = parser.parse_args()
    if options.stage == "build":
        build(options.path)
        return
    measure_process(options, OnnxRuntime)


if __name__ == "__main__":
    main()
