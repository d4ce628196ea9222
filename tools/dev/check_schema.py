"""Check that `schema/_generated.py` is what its generator makes of `program.fbs`."""

import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import copy2

ROOT = Path(__file__).resolve().parents[2]
GENERATOR, SOURCE, MADE = (
    Path("tools/dev/gen_schema.py"),
    Path("schema/program.fbs"),
    Path("schema/_generated.py"),
)


def main() -> None:
    """Run the generator in a copy and compare.

    Raises:
        SystemExit: they differ.
    """
    with tempfile.TemporaryDirectory(prefix="kvc-schema-") as folder:
        for path in (GENERATOR, SOURCE):
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            copy2(ROOT / path, Path(folder) / path)
        subprocess.run([sys.executable, Path(folder) / GENERATOR], check=True)
        if (Path(folder) / MADE).read_bytes() != (ROOT / MADE).read_bytes():
            sys.exit(f"{MADE} is out of date: run python {GENERATOR}")


if __name__ == "__main__":
    main()
