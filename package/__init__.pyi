# ruff: noqa: I001  each name twice, which is how a stub re-exports it
"""The names of `kvc`, for type checkers; `__init__.py` looks them up."""

from kvc import (
    compiler as compiler,
    ray as ray,
    recipes as recipes,
    runtime as runtime,
    schema as schema,
    serving as serving,
    tools as tools,
    transformers as transformers,
)
from kvc.compiler import (
    Bundle as Bundle,
    CacheConfig as CacheConfig,
    Checkpoint as Checkpoint,
    Dim as Dim,
    Method as Method,
    ModelSpec as ModelSpec,
    StateSpec as StateSpec,
    compile_program as compile_program,
    empty_parameters as empty_parameters,
    export_hf as export_hf,
    register_backend as register_backend,
)
from kvc.compiler.compiling import (
    compile_model as compile_model,
)
from kvc.recipes import (
    Recipe as Recipe,
    load_recipe as load_recipe,
)
from kvc.runtime import (
    BatchGeneration as BatchGeneration,
    Conversation as Conversation,
    Generation as Generation,
    GenerationSettings as GenerationSettings,
    GrowingArray as GrowingArray,
    KvcError as KvcError,
    Prefix as Prefix,
    Program as Program,
    Session as Session,
    classify as classify,
    classify_images as classify_images,
    embed as embed,
    embed_images as embed_images,
    generate as generate,
    load as load,
    record as record,
    register_delegate as register_delegate,
    similarity as similarity,
)
from kvc.runtime.speech import (
    transcribe as transcribe,
)

__version__: str

compile = compile_model
