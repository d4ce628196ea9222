"""Save the bundles whose bound lists are mutated: `list_seeds.py FOLDER`."""

import sys
from pathlib import Path

from libkvc_models import kind_bundle, save
from ring_models import RingDecoder, Shape, ring_methods


def main(folder: str) -> None:
    """Save one bundle of each kind of cache."""
    for name in ("linear", "append", "recurrent"):
        kind_bundle(name, Path(folder) / f"{name}.kvc")
    shape = Shape(windows=(5, None), slots=24, length=128)
    methods = ring_methods(shape.longest)
    save(RingDecoder(shape), methods, Path(folder) / "ring.kvc")


if __name__ == "__main__":
    main(sys.argv[1])
