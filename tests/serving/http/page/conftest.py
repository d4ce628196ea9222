from collections.abc import Iterator

import pytest
from chat_server import ChatServer, Desk
from chromium import BROWSER, Chromium, Page


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[Chromium]:
    if BROWSER is None:
        pytest.skip("there is no Chromium here")
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="session")
def server() -> Iterator[ChatServer]:
    with ChatServer() as server:
        yield server


@pytest.fixture
def desk(server) -> Desk:
    server.desk.__init__()
    return server.desk


@pytest.fixture
def page(browser, server, desk) -> Iterator[Page]:
    """The page in a browser that knows no chats; a test ends without its complaints."""
    page = browser.open(server.url)
    page.wait("document.getElementById('model').value === 'smol'")
    yield page
    assert page.problems() == []
    page.close()
