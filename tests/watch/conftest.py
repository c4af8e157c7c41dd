"""A browser for the tests of the page."""

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TOKEN = "a-word-of-its-own"


@pytest.fixture
def browser() -> Iterator[Any]:
    """Chromium without a window; skips where it or its driver is missing."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium or chromedriver is not installed (Debian: chromium, chromium-driver)")
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = chromium
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,1400"):
        options.add_argument(word)
    made = webdriver.Chrome(options=options, service=Service(driver))
    yield made
    made.quit()


@pytest.fixture
def serve(browser: Any) -> Iterator[Callable[..., str]]:
    """Return a function that serves folders, opens the page in the browser, and returns host and port."""
    uvicorn = pytest.importorskip("uvicorn")
    from ptymesh.watch.server import make_app

    servers = []

    def start(root: Path, **options: bool) -> str:
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # so that the browser may come before the server
        host = f"127.0.0.1:{listening.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(make_app([root], TOKEN, [host], **options), log_level="error"))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        servers.append((server, thread))
        browser.get(f"http://{host}/?token={TOKEN}")
        return host

    yield start
    for server, thread in servers:
        server.should_exit = True
        thread.join(20)
