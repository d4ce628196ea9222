"""`compile_model`: one way to compile, whatever the model is; `kvc.compile`.

In: methods of a module, or a model of transformers or its folder. Out: a `Bundle`.
"""

from collections.abc import Sequence
from typing import Any

from kvc.compiler.emit.bundle import Bundle
from kvc.compiler.pipeline import compile_program
from kvc.compiler.request.spec import Method
from kvc.recipes import DEFAULT, Wanted


def compile_model(
    model: Any,  # noqa: ANN401  what either of the two takes
    methods: Sequence[Method] = (),
    recipe: Wanted = DEFAULT,
    **options: Any,  # noqa: ANN401
) -> Bundle:
    """Compile methods of a module; without methods, a model of transformers.

    Args:
        model: a module; or a model of transformers, or the path of its folder.
        methods: the methods to compile; none for a model of transformers.
        recipe: as in `compile_program`.
        options: more arguments of `compile_program`, or of `export_hf`.

    Raises:
        MissingTransformers: no methods are given, and transformers is not installed.
        CompileError: as `compile_program` or `export_hf`.
    """
    if methods:
        return compile_program(model, methods, recipe, **options)
    from kvc.compiler.hugging_face import export_hf

    return export_hf(model, recipe=recipe, **options)
