"""Make links in `.typing/kvc/`, so that mypy finds folders by their import names.

Run it once after a clone: `python tools/dev/link_types.py`. mypy cannot follow the
import hook of an editable install; `mypy_path` in pyproject.toml points to `.typing`.
The files of the package `kvc` itself are linked there too.
"""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Link every folder that pyproject.toml maps to a package."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    links = ROOT / ".typing" / "kvc"
    links.mkdir(parents=True, exist_ok=True)
    for package, folder in settings["tool"]["setuptools"]["package-dir"].items():
        if package == "kvc":
            for file in (ROOT / folder).iterdir():
                point(links / file.name, Path("../..") / folder / file.name)
        else:
            point(links / package.removeprefix("kvc."), Path("../..") / folder)


def point(link: Path, target: Path) -> None:
    """Make a link, replacing an existing one."""
    link.unlink(missing_ok=True)
    link.symlink_to(target)


if __name__ == "__main__":
    main()
