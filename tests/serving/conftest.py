"""Bundles that several tests serve, and a server of them."""

import pytest
import served_models
from running_servers import running


@pytest.fixture(scope="session", autouse=True)
def _without_threads_of_tokenizers():
    """Set what `kvc serve` sets in its process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        yield


@pytest.fixture(scope="session")
def chat_bundle(tmp_path_factory):
    """The path of a tiny chat with tools; "poet.kva" beside it is an adapter."""
    return served_models.write_chat_bundle(tmp_path_factory.mktemp("chat") / "chat.kvc")


@pytest.fixture(scope="session")
def embedding_bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("embed") / "embed.kvc"
    return served_models.write_embedding_bundle(path)


@pytest.fixture(scope="session")
def speech_bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("speech") / "speech.kvc"
    return served_models.write_speech_bundle(path)


@pytest.fixture(scope="session")
def server(chat_bundle):
    """A server of the chat, and of its adapter."""
    adapters = [("poet", chat_bundle.parent / "poet.kva")]
    with running({"chat": chat_bundle}, adapters=adapters) as found:
        yield found


@pytest.fixture(scope="session")
def client(server):
    return server.client()
