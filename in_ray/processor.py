"""`build_processor`: generation as a step of a Ray Data pipeline.

    dataset --preprocess--> requests --actors--> answers --postprocess--> dataset

It has the shape of `ray.data.llm.build_processor`. A row has `prompt` or `messages`,
and if needed `sampling_params`; it gets `generated_text` and other columns, or `error`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kvc.ray.config import BundleConfig
from kvc.ray.package import check_processors, find_ray
from kvc.schema.errors import BadSetting
from kvc.serving.batch import Answering, Outcome, row_from

if TYPE_CHECKING:
    import pyarrow
    from ray.data import Dataset

Fields = dict[str, Any]
Function = Callable[[Fields], Fields]

REQUEST: Final = "__kvc_request"  # the column of requests, between the steps
_ASKED: Final = (
    "prompt",
    "messages",
    "sampling_params",
    "adapter",
    "tools",
    "system",
    "chat_template_kwargs",
)
# The columns that answers have; of a row that has failed, the empty values.
_EMPTY: Final[Mapping[str, object]] = {
    "generated_text": "",
    "generated_tokens": (),
    "finish_reason": "",
    "num_input_tokens": 0,
    "num_generated_tokens": 0,
    "error": "",
}


class Processor:
    """A step that answers the rows of datasets."""

    def __init__(
        self,
        config: BundleConfig,
        preprocess: Function | None,
        postprocess: Function | None,
        preprocess_map_kwargs: Mapping[str, Any],
        postprocess_map_kwargs: Mapping[str, Any],
    ) -> None:
        """Remember the settings; nothing is loaded here."""
        self.config = config.on_nodes()
        self._before = _Preparing(preprocess), preprocess_map_kwargs
        self._after = postprocess, postprocess_map_kwargs

    def __call__(self, dataset: "Dataset") -> "Dataset":
        """Return the dataset of answers; nothing runs before it is read.

        Raises:
            BadSetting: the cluster has too few processors: one is needed for reading.
        """
        config = self.config
        check_processors(find_ray(), config.actors[0], config.num_cpus, spare=1)
        pool, more = _pool_of(config)
        prepare, beside = self._before
        dataset = dataset.map(prepare, **beside)
        dataset = dataset.map_batches(
            _Generating,
            fn_constructor_args=(config,),
            batch_size=config.batch_size,
            batch_format="pyarrow",
            compute=pool,
            num_cpus=config.num_cpus,
            **more,
            **config.ray_remote_args,
        )
        function, beside = self._after
        return dataset if function is None else dataset.map(function, **beside)


def build_processor(
    config: BundleConfig,
    preprocess: Function | None = None,
    postprocess: Function | None = None,
    preprocess_map_kwargs: Mapping[str, Any] | None = None,
    postprocess_map_kwargs: Mapping[str, Any] | None = None,
) -> Processor:
    """Return a step that answers the rows of a dataset.

    Args:
        config: the bundle, the actors, the settings of generation.
        preprocess: turns a row into one with a `prompt` or `messages`, and whatever
            else kvc batch reads; columns that it does not return stay.
        postprocess: turns a row with an answer into the row of the result.
        preprocess_map_kwargs: arguments of `Dataset.map` for `preprocess`.
        postprocess_map_kwargs: arguments of `Dataset.map` for `postprocess`.

    Raises:
        MissingPackage: Ray is not installed.
    """
    find_ray()
    return Processor(
        config,
        preprocess,
        postprocess,
        preprocess_map_kwargs or {},
        postprocess_map_kwargs or {},
    )


def _pool_of(config: BundleConfig) -> tuple[Any, Mapping[str, int]]:
    """Return Ray's pool of actors, and what `map_batches` is told beside it."""
    from ray.data import ActorPoolStrategy

    least, most = config.actors
    calls = config.max_concurrent_batches
    try:
        pool = ActorPoolStrategy(
            min_size=least, max_size=most, max_concurrent_calls_per_actor=calls
        )
    except TypeError:  # a Ray that has no such argument yet
        pool = ActorPoolStrategy(min_size=least, max_size=most)
        return pool, {"max_concurrency": calls}
    return pool, {}


class _Preparing:
    """Turns a row into one with a request, as JSON.

    A table of Arrow gives all mappings of a column the same keys: a schema would get
    those of other rows. So requests are texts from here on.
    """

    def __init__(self, function: Function | None) -> None:
        self._function = function

    def __call__(self, row: Fields) -> Fields:
        if self._function is not None:
            row = {**row, **self._function(row)}
        asked = {name: row[name] for name in _ASKED if row.get(name) is not None}
        return {**row, REQUEST: json.dumps(_without_nulls(asked), default=_plain)}


def _without_nulls(found: object) -> object:
    """Return a value without the keys that only other rows have."""
    if isinstance(found, Mapping):
        kept = {key: one for key, one in found.items() if one is not None}
        return {key: _without_nulls(one) for key, one in kept.items()}
    if hasattr(found, "tolist"):
        found = found.tolist()
    if isinstance(found, list | tuple):
        return [_without_nulls(one) for one in found]
    return found


def _plain(found: object) -> object:
    """Return a value of another library as one of JSON.

    Raises:
        BadSetting: it cannot be one.
    """
    if isinstance(found, Mapping):
        return dict(found)
    expected = "what JSON has: texts, numbers, lists, objects"
    raise BadSetting(name="row", expected=expected, found=repr(found)[:80])


class _Generating:
    """The actor: answers batches, of which it has several at a time."""

    def __init__(self, config: BundleConfig) -> None:
        self._config = config
        self._program, prompts = config.opened()
        self._answering = Answering(self._program, prompts, config.limits)

    async def __call__(self, batch: "pyarrow.Table") -> AsyncIterator["pyarrow.Table"]:
        requests = batch.column(REQUEST).to_pylist()
        outcomes = await asyncio.gather(*map(self._answer, requests))
        yield _with_answers(batch.drop_columns([REQUEST]), outcomes)

    async def _answer(self, request: str) -> Outcome:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Outcome] = loop.create_future()

        def tell(outcome: Outcome) -> None:
            loop.call_soon_threadsafe(ended.set_result, outcome)

        row = row_from(json.loads(request), 1)
        while not self._answering.offer(row, tell):
            await asyncio.sleep(0.01)
        outcome = await ended
        if outcome.has_failed and not self._config.should_continue_on_error:
            raise RuntimeError(_message(outcome))
        return outcome


def _message(outcome: Outcome) -> str:
    error = outcome.fields["error"]
    assert isinstance(error, Mapping)
    return f"{error['code']}: {error['message']}"


def _with_answers(
    table: "pyarrow.Table", outcomes: Sequence[Outcome]
) -> "pyarrow.Table":
    """Return a table with the columns of answers, in place of columns of that name."""
    import pyarrow

    types = {
        "generated_tokens": pyarrow.list_(pyarrow.int64()),
        "num_input_tokens": pyarrow.int64(),
        "num_generated_tokens": pyarrow.int64(),
    }
    rows = [
        {"error": _message(one)} if one.has_failed else {**one.fields, "error": ""}
        for one in outcomes
    ]
    for name, empty in _EMPTY.items():
        column = [row.get(name) or empty for row in rows]
        made = pyarrow.array(column, types.get(name, pyarrow.string()))
        if name in table.column_names:
            table = table.drop_columns([name])
        table = table.append_column(name, made)
    return table
