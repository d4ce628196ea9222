"""Models as OpenAI tells of them, and what they read."""

from collections.abc import Iterable

from kvc.serving.models.catalog import Found


def model_object(found: Found, created: int) -> dict[str, object]:
    """Return the object of one model.

    Args:
        found: the model, and the adapter.
        created: when the server began, in seconds since 1970.
    """
    return {
        "id": found.id,
        "object": "model",
        "created": created,
        "owned_by": "kvc",
        "input_modalities": list(found.model.reads),
    }


def model_list(models: Iterable[Found], created: int) -> dict[str, object]:
    """Return the object of a list of models."""
    listed = [model_object(one, created) for one in models]
    return {"object": "list", "data": listed}
