"""Models as OpenAI tells of them."""

from collections.abc import Sequence


def model_object(name: str, created: int) -> dict[str, object]:
    """Return the object of one model."""
    return {"id": name, "object": "model", "created": created, "owned_by": "kvc"}


def model_list(names: Sequence[str], created: int) -> dict[str, object]:
    """Return the object of a list of models."""
    listed = [model_object(name, created) for name in names]
    return {"object": "list", "data": listed}
