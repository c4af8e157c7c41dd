"""Runs that were stopped go on from the page, with --control alone."""

import json
import time
from pathlib import Path

import pytest

from watched_runs import end, start, summary, wait_for

pytest.importorskip("starlette")
pytest.importorskip("httpx2")
from starlette.testclient import TestClient

from ptymesh.files import machine
from ptymesh.run_folder.control import write_request
from ptymesh.watch import resuming
from ptymesh.watch.server import make_app

TOKEN, HOST = "a-word-of-its-own", "127.0.0.1:8000"


def page_of(root: Path, *, control: bool = True) -> TestClient:
    made = TestClient(make_app([root], TOKEN, [HOST], control=control), base_url=f"http://{HOST}")
    made.headers["x-token"] = TOKEN
    return made


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The words of processes that would be started."""
    found: list[tuple[str, ...]] = []

    def remember(*words: str, **_: object) -> None:
        found.append(words)
        raise OSError(1, "not in this test")

    monkeypatch.setattr(resuming, "start_python", remember)
    return found


def folder(root: Path, **status: object) -> Path:
    """Return a folder that looks as if a run had left a checkpoint in it."""
    out = root / "run"
    step = out / "checkpoint" / "000001"
    step.mkdir(parents=True)
    (out / "status.json").write_text(json.dumps(status))
    (out / "checkpoint" / "manifest.json").write_text('{"generation": 1}')
    recipe = "stages: [{engine: rpie}, {engine: adam}]"
    (step / "manifest.json").write_text(json.dumps({"meta": {"recipe": recipe, "run": {}}}))
    return out


@pytest.mark.parametrize("phase", ["receiving", "finishing", "saving"])
def test_a_live_run_is_not_resumed(tmp_path: Path, started: list[tuple[str, ...]], phase: str) -> None:
    """Its own command goes on with it, and a checkpoint in its folder is of an earlier run."""
    folder(tmp_path, phase=phase, outcome="interrupted", command="ptymesh live")
    page = page_of(tmp_path)
    status, said = ask(page)
    assert status == 409 and "no checkpoint" in said and not started
    (run,) = page.get("/api/runs").json()
    details = page.get("/api/run", params={"id": run["id"]}).json()
    assert not details["resumable"] and details["status"]["command"] == "ptymesh live"


def ask(page: TestClient, **values: str) -> tuple[int, str]:
    (run,) = page.get("/api/runs").json()
    answer = page.post("/api/ask", params={"id": run["id"], "word": "resume", **values})
    return answer.status_code, answer.text


def test_nothing_but_resume_and_a_number_is_started(tmp_path: Path, started: list[tuple[str, ...]]) -> None:
    out = folder(tmp_path, phase="stage", outcome="interrupted")
    page = page_of(tmp_path)
    ask(page)
    ask(page, epochs="30", set="data.path=/etc/passwd")
    assert started == [
        ("-m", "ptymesh", "resume", str(out)),
        ("-m", "ptymesh", "resume", str(out), "--set", "stages.1.epochs=30"),
    ]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"ranks": 2, "machine": machine()}, ("--ranks", "2")),
        ({"ranks": 1, "machine": machine()}, ()),
        ({"ranks": 2, "machine": "elsewhere"}, ()),
        ({"ranks": 100_000, "machine": machine()}, ()),
        ({}, ()),
    ],
)
def test_as_many_ranks_as_it_had_here(
    tmp_path: Path, started: list[tuple[str, ...]], status: dict[str, object], words: tuple[str, ...]
) -> None:
    out = folder(tmp_path, phase="stage", outcome="interrupted", **status)
    ask(page_of(tmp_path))
    assert started == [("-m", "ptymesh", "resume", str(out), *words)]


@pytest.mark.parametrize("epochs", ["0", "-3", "1e9", "10000000", "3 --force", "3;ls", ""])
def test_numbers_that_are_none(tmp_path: Path, started: list[tuple[str, ...]], epochs: str) -> None:
    folder(tmp_path, phase="stage", outcome="interrupted")
    assert ask(page_of(tmp_path), epochs=epochs)[0] == 409
    assert not started


def test_who_may_not_ask(tmp_path: Path, started: list[tuple[str, ...]]) -> None:
    folder(tmp_path, phase="stage", outcome="interrupted")
    assert ask(page_of(tmp_path, control=False))[0] == 403
    page = page_of(tmp_path)
    (run,) = page.get("/api/runs").json()
    asked = {"id": run["id"], "word": "resume"}
    assert page.get("/api/ask", params=asked).status_code == 405
    assert page.post("/api/ask", params=asked, headers={"origin": "http://evil.example"}).status_code == 403
    assert page.post("/api/ask", params=asked, headers={"host": "evil.example"}).status_code == 400
    del page.headers["x-token"]
    assert page.post("/api/ask", params={**asked, "token": TOKEN}).status_code == 401
    assert not started


@pytest.mark.parametrize(
    ("status", "asked", "said"),
    [
        ({"phase": "stage", "outcome": None}, {}, "is running"),
        ({"phase": "stage", "outcome": "diverged"}, {}, "is diverged"),
        ({"phase": "done", "outcome": "good"}, {}, "is done"),
        ({"phase": "stage", "outcome": None}, {"epochs": "5"}, "is running"),
    ],
)
def test_runs_that_cannot_go_on(
    tmp_path: Path, started: list[tuple[str, ...]], status: dict[str, object], asked: dict[str, str], said: str
) -> None:
    folder(tmp_path, **status)
    code, text = ask(page_of(tmp_path), **asked)
    assert code == 409 and said in text and not started


def test_without_a_checkpoint(tmp_path: Path, started: list[tuple[str, ...]]) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "status.json").write_text('{"phase": "stage", "outcome": "interrupted"}')
    code, text = ask(page_of(tmp_path))
    assert code == 409 and "no checkpoint" in text and not started


@pytest.mark.forked
def test_a_run_goes_on_for_other_epochs(tmp_path: Path) -> None:
    run, out = start(tmp_path, 100_000), tmp_path / "out"
    page = page_of(out)
    try:
        wait_for(lambda: (out / "status.json").exists() and summary(out)["epochs"] > 2)
        write_request(out, "stop")
        assert run.wait(60) == 75
    finally:
        end(run)
    done = summary(out)["epochs"]
    code, text = ask(page, epochs=str(done + 3))
    assert code == 200, text
    (found,) = page.get("/api/runs").json()
    second = page.post("/api/ask", params={"id": found["id"], "word": "resume"})
    assert second.status_code == 409, "it is started once"
    wait_for(lambda: summary(out)["state"] == "done", 90)
    assert summary(out)["epochs"] == done + 3 and (out / "result.h5").exists()


@pytest.mark.forked
def test_what_could_not_go_on_is_said(tmp_path: Path) -> None:
    folder(tmp_path, phase="stage", outcome="interrupted")  # whose checkpoint holds nothing
    page = page_of(tmp_path)
    assert ask(page)[0] == 200
    (run,) = page.get("/api/runs").json()
    end_s = time.monotonic() + 60
    while not (said := page.get("/api/run", params={"id": run["id"]}).json()["could_not_resume"]):
        assert time.monotonic() < end_s, "nothing was said"
        time.sleep(0.2)
    assert "checkpoint" in said
