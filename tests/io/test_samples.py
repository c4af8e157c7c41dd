"""Samples are fetched once, checked, and named in recipes; a server of our own stands in for their home."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import ptymesh as pm
from ptymesh.cli import main as module
from ptymesh.errors import BadInput
from ptymesh.io import samples
from ptymesh.io.samples import SAMPLES, Sample, fetch
from ptymesh.recipe.schema import Recipe, load_recipe


class _Handler(SimpleHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def log_message(self, *arguments: Any) -> None:
        _Handler.asked.append(self.path)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A folder with a small tike npz, and its address in `home.name`; requests are in `_Handler.asked`."""
    folder = tmp_path / "home"
    folder.mkdir()
    rng = np.random.default_rng(1)
    data = rng.poisson(9.0, (1, 5, 16, 16)).astype(np.uint16)
    np.savez(folder / "tiny.npz", data=data, scan=rng.random((1, 5, 2)) * 9)
    _Handler.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    (folder / "port").write_text(str(server.server_port))
    yield folder
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def tiny(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a sample at that home; fetched into tmp_path/kept."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    digest = hashlib.sha256((home / "tiny.npz").read_bytes()).hexdigest()
    address = f"http://127.0.0.1:{(home / 'port').read_text()}/tiny.npz"
    monkeypatch.setitem(SAMPLES, "tiny", Sample(address, digest, "nobody"))
    monkeypatch.setenv("PTYMESH_DATA", str(tmp_path / "kept"))
    return "tiny"


def test_fetched_once(home: Path, tiny: str, tmp_path: Path) -> None:
    path = pm.fetch(tiny)
    assert path == tmp_path / "kept" / "tiny.npz" and path.read_bytes() == (home / "tiny.npz").read_bytes()
    assert pm.fetch(tiny) == path and _Handler.asked == ["/tiny.npz"]


def test_a_file_that_is_there_needs_no_network(home: Path, tiny: str, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (home / "tiny.npz").rename(tmp_path / "kept" / "tiny.npz")
    fetch(tiny)
    assert _Handler.asked == []


def test_without_the_variable_in_the_users_cache(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PTYMESH_DATA")
    monkeypatch.setattr("pooch.os_cache", lambda project: tmp_path / "user" / project)
    assert fetch(tiny) == tmp_path / "user" / "ptymesh" / "tiny.npz"


def test_another_content_is_not_kept(home: Path, tiny: str, tmp_path: Path) -> None:
    (home / "tiny.npz").write_bytes(b"something else")
    with pytest.raises(
        BadInput, match=r"is not the file that tiny should be \(its SHA-256 differs\), and was not kept"
    ):
        fetch(tiny)
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_server_that_has_it_no_more(home: Path, tiny: str, tmp_path: Path) -> None:
    (home / "tiny.npz").unlink()
    sentence = f"tiny cannot be fetched, the server answers 404; put {SAMPLES[tiny].url} into {tmp_path / 'kept'} your"
    with pytest.raises(BadInput, match=re.escape(sentence)):
        fetch(tiny)


def test_no_connection(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SAMPLES, tiny, Sample("http://127.0.0.1:1/tiny.npz", "0", "nobody"))
    with pytest.raises(BadInput, match="tiny cannot be fetched, there is no connection; put http"):
        fetch(tiny)


def test_a_folder_that_cannot_be_written(tiny: str, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file")
    with pytest.raises(BadInput, match=r"cannot be kept in .*kept \(.*\); set PTYMESH_DATA"):
        fetch(tiny)


def test_unknown_name() -> None:
    with pytest.raises(BadInput, match="There is no sample 'simens-star'; known are siemens-star"):
        pm.load("sample:simens-star")


def test_recipes_and_commands_name_samples(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.yaml").write_text("data: {path: 'sample:tiny'}")
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert str(recipe.data.path) == "sample:tiny" == str(Recipe.from_yaml(recipe.to_yaml()).data.path)
    scan = pm.load("sample:tiny")
    assert scan.views == 5 and scan.path == str(tmp_path / "kept" / "tiny.npz") and scan.name == "tiny"
    for argument in ("sample:tiny", str(tmp_path / "recipe.yaml")):
        monkeypatch.setattr(sys, "argv", ["ptymesh", "inspect", argument])
        with pytest.raises(SystemExit):
            module.main()
        assert "5, windows of 16 x 16" in capfd.readouterr().out


def test_the_real_ones(data_dir: Path) -> None:
    """The digests are those of the files that the other tests use."""
    for sample in SAMPLES.values():
        assert sample.url.startswith("https://") and sample.owner
        assert hashlib.sha256((data_dir / sample.file).read_bytes()).hexdigest() == sample.sha256
    assert samples.located(Path("scan.cxi")) == Path("scan.cxi")


def test_what_is_no_file_is_not_opened(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").mkdir()
    os.mkfifo(tmp_path / "kept" / "tiny.npz")
    with pytest.raises(BadInput, match=r"tiny\.npz, where tiny belongs, is not a file; remove it"):
        fetch(tiny)
    monkeypatch.setenv("PTYMESH_DATA", "~nosuchuser/x")
    with pytest.raises(BadInput, match=r"PTYMESH_DATA is ~nosuchuser/x, which is no folder"):
        fetch(tiny)
