"""Point to `export_hf` in the error when the capture of a transformers model fails."""

from torch import nn

from kvc.schema.errors import CaptureError


def with_front_end(model: nn.Module, error: CaptureError) -> CaptureError | None:
    """Return an error with the front end for this model, None if there is none.

    Told from the names of classes, so that transformers is not imported.
    """
    kinds = {
        (kind.__module__.split(".")[0], kind.__name__) for kind in type(model).__mro__
    }
    if ("transformers", "PreTrainedModel") not in kinds:
        return None
    advice = (
        "models of transformers are compiled with their caches by "
        "kvc.compiler.export_hf(folder), which declares the methods itself"
    )
    facts = vars(error) | {"reason": f"{error.reason}. Instead: {advice}"}
    return type(error)(**facts)
