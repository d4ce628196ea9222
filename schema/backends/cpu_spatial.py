"""Support list of the backend `cpu` for pools, resizing and norms over channels."""

from typing import Final

from kvc.schema.backends.operands import Rule

SPATIAL: Final[dict[str, Rule]] = {}
