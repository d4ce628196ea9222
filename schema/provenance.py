"""Where a bundle comes from, and with which samples."""

from kvc.schema.frozen import frozen


@frozen
class Calibration:
    """The samples by which ranges were found, or int4 weights were rounded.

    Attributes:
        kind: of the samples: "text", "arrays", or "generated" by the model itself.
        digest: SHA-256 of their file, or of the tokens that were generated, in
            hexadecimal.
        samples: how many: sequences of tokens, or calls of each method.
        tokens: of these sequences together, 0 where there are none.
        method: what is made of them: "minmax", ranges; "gptq", int4 weights.
    """

    kind: str
    digest: str
    samples: int
    tokens: int
    method: str


@frozen
class Provenance:
    """Where a bundle comes from; nothing in it changes between equal builds.

    Attributes:
        kvc_version, torch_version: that made it.
        recipe, recipe_text: by which, and its TOML.
        source_digest: of the model's code as it was imported.
        calibration: the samples, None where there were none.
    """

    kvc_version: str
    torch_version: str
    recipe: str
    recipe_text: str
    source_digest: str
    calibration: Calibration | None = None
