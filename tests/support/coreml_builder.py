"""Process that builds the Core ML packages of jobs, one after another.

Its argument is the path of `runtime_py/delegates/coreml/worker.py`. It reads one JSON
string per line, the folder of a job. It answers with one JSON string per line: the
traceback of the error, or "".
"""

import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path


def serve(path: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # coremltools prints
    spec = importlib.util.spec_from_file_location("worker", path)
    assert spec is not None
    assert spec.loader is not None
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    worker.hide_converters()
    for line in sys.stdin:
        try:
            worker.build(Path(json.loads(line)))
            said = ""
        except Exception:
            said = traceback.format_exc()
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
