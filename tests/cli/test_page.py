"""`ptymesh run --watch` shows the run in a process of its own, which ends with it."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import ptymesh as pm
from ptymesh.io.results import Result
from ptymesh.live.serving import serve_scan
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from watched_runs import end, start, summary, wait_for

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the page is not there on Windows")

#: Frames of a stream.
VIEWS = 160


def ask(address: str, path: str, method: str = "GET") -> object:
    root, token = address.split("/?token=")
    asked = urllib.request.Request(f"{root}/{path}", method=method, headers={"X-Token": token})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.load(answer)


def address_of(run: subprocess.Popen[bytes]) -> tuple[str, str]:
    assert run.stdout is not None
    line = run.stdout.readline().decode()
    assert line.startswith("Watch at http://127.0.0.1:")
    return line.split()[2], line


def answers(address: str) -> bool:
    try:
        ask(address, "api/runs")
    except (urllib.error.URLError, OSError):
        return False
    return True


@pytest.fixture(
    params=[
        pytest.param((), marks=pytest.mark.forked(1)),
        pytest.param(("--ranks", "2"), marks=[pytest.mark.forked(3), pytest.mark.long]),
    ]
)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    made = start(tmp_path, 100_000, "--watch", "--control", *request.param, output=subprocess.PIPE)
    yield made
    end(made)


def test_the_page_shows_the_run_and_ends_with_it(run: subprocess.Popen[bytes], tmp_path: Path) -> None:
    address, _ = address_of(run)

    def found() -> dict[str, object]:
        listed = ask(address, "api/runs")
        assert isinstance(listed, list)
        return listed[0] if listed else {}

    wait_for(lambda: (found().get("status") or {}).get("phase") == "stage")  # type: ignore[attr-defined]
    command = Path(f"/proc/{run.pid}/cmdline")
    assert not command.exists() or address.split("=")[1] not in command.read_text()
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask(address + "x", "api/runs")
    ask(address, f"api/ask?id={found()['id']}&word=stop", "POST")
    run.communicate(timeout=60)
    assert run.returncode == 75
    wait_for(lambda: not answers(address), 20)


@pytest.mark.forked(1)
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the page stays where a run is killed")
def test_the_page_ends_where_the_run_is_killed(tmp_path: Path) -> None:
    run = start(tmp_path, 100_000, "--watch", output=subprocess.PIPE)
    try:
        address, _ = address_of(run)
        wait_for(lambda: answers(address))
        run.kill()
        wait_for(lambda: not answers(address), 20)
    finally:
        end(run)


@pytest.mark.forked(1)
def test_the_page_stays_where_that_was_asked(tmp_path: Path) -> None:
    run = start(tmp_path, 2, "--watch", "--keep-page", output=subprocess.PIPE)
    address, line = address_of(run)
    pid = int(line.split("`kill ")[1].split("`")[0])
    try:
        run.communicate(timeout=100)
        assert run.returncode == 0
        listed = ask(address, "api/runs")
        assert isinstance(listed, list) and listed[0]["state"] == "done"
    finally:
        os.kill(pid, signal.SIGTERM)


@pytest.mark.forked
@pytest.mark.parametrize("word", ["--control", "--keep-page"])
def test_words_of_a_page_that_is_not_there(tmp_path: Path, word: str) -> None:
    run = start(tmp_path, 2, word)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 2 and f"{word} is of the page; give --watch too." in said.decode()


@pytest.mark.long
@pytest.mark.forked(1)
def test_a_live_run_is_stopped_by_its_page_and_goes_on(tmp_path: Path) -> None:
    """It ends with a result of the frames that have come; the same command takes the others."""
    pytest.importorskip("zmq")
    write(checked(views=VIEWS, window=32, seed=3), tmp_path / "scan.cxi")
    served: list[str] = []
    given = (pm.load(tmp_path / "scan.cxi"), "tcp://127.0.0.1:*", 8.0, served)
    server = threading.Thread(target=serve_scan, args=given, daemon=True)
    server.start()
    wait_for(lambda: bool(served))
    (tmp_path / "live.yaml").write_text(
        "data: {path: none.cxi}\nstages: [{engine: rpie, epochs: 2, batch: 16}]\noutput: {figures: false}\n"
    )
    out = tmp_path / "out"
    command = [sys.executable, "-P", "-m", "ptymesh", "live", str(tmp_path / "live.yaml"), "--from", served[0]]
    command += ["--out", str(out), "--uses", "2", "--watch", "--control"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        address, _ = address_of(run)
        wait_for(lambda: (out / "live.h5").exists() and summary(out)["status"].get("phase") == "receiving")
        assert summary(out)["status"]["command"] == f"cd {Path.cwd()} && {shlex.join(['ptymesh', *command[4:]])}"
        (found,) = ask(address, "api/runs")  # type: ignore[misc]
        ask(address, f"api/ask?id={found['id']}&word=stop", "POST")
        _, said = run.communicate(timeout=100)
    finally:
        end(run)
    assert run.returncode == 0, said.decode()
    some = len(Result.load(out / "result.h5").positions_px)
    assert 32 <= some < VIEWS and (out / "checkpoint" / "manifest.json").exists()
    resume = [*command[:4], "resume", str(out), "--set", "stages.0.epochs=3"]
    longer = subprocess.run(resume, capture_output=True, text=True, timeout=100, check=False)
    assert longer.returncode == 0, longer.stderr
    result = Result.load(out / "result.h5")
    assert len(result.positions_px) == some and len(result.history["epoch"]) == 3
    again = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert again.returncode == 0, again.stderr
    assert len(Result.load(out / "result.h5").positions_px) == VIEWS and summary(out)["state"] == "done"
    server.join(20)
    assert not server.is_alive()
