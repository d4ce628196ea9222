"""Errors of tokenizers and chat templates, and of packages that may be missing."""

from kvc.schema.errors.compiling import CompileError
from kvc.schema.errors.executing import ExecutionError
from kvc.schema.errors.loading import LoadError


class MissingPackage(LoadError):
    """An optional package that something needs is not installed."""

    what: str
    package: str
    reason: str
    install: str
    template = "{what} needs the package {package}: {reason}; get it with `{install}`"


class BadTokenizer(LoadError):
    """The tokenizer of a bundle cannot be read."""

    file: str
    reason: str
    template = "the tokenizer {file} cannot be used: {reason}"


class TokenizerTooLarge(CompileError):
    """A tokenizer makes tokens that the model does not know."""

    file: str
    highest: int
    token: str
    vocabulary: int
    template = "the tokenizer {file} does not fit the model: it has tokens up to {highest} ({token!r}), the model knows those below {vocabulary}; take the tokenizer that belongs to the model, or resize its embedding"


class BadChatTemplate(ExecutionError):
    """The chat template of a bundle is wrong, or refuses a conversation."""

    file: str
    reason: str
    template = "the chat template {file}: {reason}"


class TemplateLimit(ExecutionError):
    """The chat template of a bundle takes more than the caller allows.

    Attributes: file, limit (what it may take, with its unit), setting (what changes it).
    """

    file: str
    limit: str
    setting: str
    template = "the chat template {file} takes more than {limit}, the most that chat_template_of({setting}=) allows"
