"""`Catalog`: all models that are served, by name, with their adapters.

In: models. Out: for a name, the model, and the adapter after the colon.
"""

from collections.abc import Iterator, Mapping, Sequence

from kvc.schema.closing import Closing
from kvc.schema.errors import UnknownModel, WrongModel
from kvc.schema.frozen import frozen
from kvc.serving.models.embedding_model import EmbeddingModel
from kvc.serving.models.speech_model import SpeechModel
from kvc.serving.models.text_model import TextModel

Served = TextModel | EmbeddingModel | SpeechModel


@frozen
class Found:
    """What a request is for.

    Attributes:
        id: the name, with the adapter.
        model: the model.
        adapter: the name of the adapter, None for none.
        scale: the scale of the adapter.
    """

    id: str
    model: Served
    adapter: str | None = None
    scale: float = 1.0

    def text_model(self, asked: str) -> TextModel:
        """Return the model, if it answers with text.

        Args:
            asked: what is asked of it, for the message.

        Raises:
            WrongModel: it does something else.
        """
        if isinstance(self.model, TextModel):
            return self.model
        raise WrongModel(name=self.id, does=self.model.does, asked=asked)

    def embedding_model(self) -> EmbeddingModel:
        """Return the model, if it embeds texts.

        Raises:
            WrongModel: it does something else.
        """
        if isinstance(self.model, EmbeddingModel):
            return self.model
        raise WrongModel(name=self.id, does=self.model.does, asked="embed texts")

    def speech_model(self) -> SpeechModel:
        """Return the model, if it hears speech.

        Raises:
            WrongModel: it does something else.
        """
        if isinstance(self.model, SpeechModel):
            return self.model
        raise WrongModel(name=self.id, does=self.model.does, asked="hear speech")


class Catalog(Closing):
    """The models that are served.

    Attributes:
        models: name -> the model.
    """

    def __init__(self, models: Sequence[Served]) -> None:
        """Take models of different names."""
        self.models: Mapping[str, Served] = {one.name: one for one in models}
        self._found = {found.id: found for found in self._all()}

    def _all(self) -> Iterator[Found]:
        for model in self.models.values():
            yield Found(model.name, model)
            if isinstance(model, TextModel):
                for name, scale in model.adapters.items():
                    yield Found(f"{model.name}:{name}", model, name, scale)

    @property
    def all(self) -> tuple[Found, ...]:
        """Return all models and their adapters."""
        return tuple(self._found.values())

    @property
    def ids(self) -> tuple[str, ...]:
        """Return all names that requests may ask for."""
        return tuple(self._found)

    def find(self, name: str | None) -> Found:
        """Return what a name is of; the only model, if there is no name.

        Raises:
            UnknownModel: there is no such model, or no name although there are several.
        """
        if name is None and len(self.models) == 1:
            name = next(iter(self.models))
        found = self._found.get(name or "")
        if found is None:
            raise UnknownModel(name=name or "", known=self.ids)
        return found

    def close(self, seconds: float = 0.0) -> None:
        """Close all models."""
        for model in self.models.values():
            model.close(seconds)
