"""Where a bundle and its calibration samples come from."""

from kvc.schema.frozen import frozen


@frozen
class Calibration:
    """The calibration samples of a bundle: for ranges, or for rounding int4 weights.

    Attributes:
        kind: kind of the samples: "text", "arrays", or "generated" by the model itself.
        digest: SHA-256 of the samples' file, or of the generated tokens, in
            hexadecimal.
        samples: the number of token sequences, or of calls of each method.
        tokens: the number of tokens in these sequences, 0 if there are none.
        method: the use of the samples: "minmax" for ranges, "gptq" for int4 weights.
    """

    kind: str
    digest: str
    samples: int
    tokens: int
    method: str


@frozen
class Provenance:
    """Where a bundle comes from; equal builds have equal provenance.

    Attributes:
        kvc_version, torch_version: the versions that compiled the bundle.
        recipe, recipe_text: name of the recipe, and its TOML text.
        source_digest: digest of the model's code as it was imported.
        calibration: the calibration samples, None if there were none.
    """

    kvc_version: str
    torch_version: str
    recipe: str
    recipe_text: str
    source_digest: str
    calibration: Calibration | None = None
