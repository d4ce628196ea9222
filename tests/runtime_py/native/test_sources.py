"""The library is built of all of its sources, wherever it is built."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_source_and_header_is_listed():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (module,) = settings["tool"]["setuptools"]["ext-modules"]
    listed = {*module["sources"], *module["depends"]}
    folder = ROOT / "runtime_py" / "native"
    found = [p for kind in ("cc", "h", "inc") for p in folder.glob(f"*.{kind}")]
    assert listed == {str(path.relative_to(ROOT)) for path in found}
