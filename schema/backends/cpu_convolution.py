"""Support list of the backend `cpu` for convolutions."""

from typing import Final

from kvc.schema.backends.operands import Rule

CONVOLUTIONS: Final[dict[str, Rule]] = {}
