"""Runs are stopped, and asked for checkpoints, by a word in their folder; a page does so only with --control."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ptymesh.run_folder.control import Control, read_request, write_request
from watched_runs import end, start, summary, wait_for

pytest.importorskip("starlette")
pytest.importorskip("httpx2")
from starlette.testclient import TestClient

from ptymesh.watch.server import make_app

TOKEN, HOST = "a-word-of-its-own", "127.0.0.1:8000"


def page_of(root: Path, *, control: bool) -> TestClient:
    made = TestClient(make_app([root], TOKEN, [HOST], control=control), base_url=f"http://{HOST}")
    made.headers["x-token"] = TOKEN
    return made


@pytest.fixture
def going(tmp_path: Path) -> Iterator[Path]:
    """A folder that looks as if a run went on in it."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "status.json").write_text(json.dumps({"phase": "reading", "outcome": None}))
    yield run


def test_words_are_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptymesh.run_folder.control.EVERY_S", 0.0)
    write_request(tmp_path, "stop")
    control = Control(tmp_path)
    assert not control.is_stop_requested() and not list(tmp_path.iterdir()), "it was for an earlier run"
    write_request(tmp_path, "save")
    assert read_request(tmp_path) == "save"
    assert not control.is_stop_requested() and control.take_save() and not control.take_save()
    write_request(tmp_path, "stop")
    assert control.is_stop_requested() and control.is_stop_requested() and not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["nonsense", "long", "link", "fifo", "folder"])
def test_other_files_are_no_requests(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "control", tmp_path / "other"
    other.write_text("stop")
    {
        "nonsense": lambda: path.write_text("rm -rf"),
        "long": lambda: path.write_text("stop" * 100),
        "link": lambda: path.symlink_to(other),
        "fifo": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }[kind]()
    assert read_request(tmp_path) is None


def test_only_with_control(going: Path) -> None:
    page = page_of(going.parent, control=False)
    (run,) = page.get("/api/runs").json()
    answer = page.post("/api/ask", params={"id": run["id"], "word": "stop"})
    assert answer.status_code == 403 and answer.text.count(".") == 1 and "ptymesh watch --control" in answer.text
    assert read_request(going) is None and 'data-control="false"' in page.get("/").text


def test_what_is_refused(going: Path) -> None:
    page = page_of(going.parent, control=True)
    (run,) = page.get("/api/runs").json()
    asked = {"id": run["id"], "word": "stop"}
    assert page.get("/api/ask", params=asked).status_code == 405, "no link of a page asks"
    assert page.post("/api/ask", params=asked, headers={"origin": "http://evil.example"}).status_code == 403
    assert page.post("/api/ask", params=asked, headers={"host": "evil.example"}).status_code == 400
    assert page.post("/api/ask", params={**asked, "id": "0" * 16}).status_code == 404
    assert page.post("/api/ask", params={**asked, "word": "rm"}).status_code == 409
    del page.headers["x-token"]
    assert page.post("/api/ask", params=asked).status_code == 401
    assert page.post("/api/ask", params={**asked, "token": TOKEN}).status_code == 401, "a form of another page may"
    assert page.post("/api/ask", params=asked, headers={"x-token": "x"}).status_code == 401
    assert read_request(going) is None
    assert page.post("/api/ask", params=asked, headers={"x-token": TOKEN}).status_code == 200
    assert read_request(going) == "stop"
    (going / "control").unlink()
    (going / "status.json").write_text(json.dumps({"phase": "done", "outcome": "good"}))
    answer = page.post("/api/ask", params=asked, headers={"x-token": TOKEN})
    assert answer.status_code == 409 and "is done" in answer.text and read_request(going) is None


@pytest.mark.sample(1)
@pytest.mark.forked(2)
@pytest.mark.parametrize("ranks", [(), ("--ranks", "2")])
def test_a_run_saves_and_stops(tmp_path: Path, ranks: tuple[str, ...]) -> None:
    run, out = start(tmp_path, 100_000, "--set", "output.checkpoint_every=100000", *ranks), tmp_path / "out"
    page = page_of(out, control=True)
    try:
        wait_for(lambda: (out / "status.json").exists() and summary(out)["status"].get("phase") == "stage")
        (found,) = page.get("/api/runs").json()
        assert not (out / "checkpoint").exists()
        assert page.post("/api/ask", params={"id": found["id"], "word": "save"}).status_code == 200
        wait_for(lambda: (out / "checkpoint" / "manifest.json").exists(), 30)
        assert run.poll() is None, "it goes on"
        saved = (out / "checkpoint" / "manifest.json").stat().st_mtime_ns
        assert page.post("/api/ask", params={"id": found["id"], "word": "stop"}).status_code == 200
        assert run.wait(60) == 75
        assert (out / "checkpoint" / "manifest.json").stat().st_mtime_ns > saved
        assert summary(out)["state"] == "interrupted" and not (out / "control").exists()
    finally:
        end(run)
