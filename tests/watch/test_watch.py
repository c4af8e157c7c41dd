"""The page shows what the folders of runs hold, to whoever has its token, and nothing else."""

import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import h5py
import numpy as np
import pytest

import ptymesh as pm
from ptymesh.recipe.schema import Recipe
from ptymesh.run.session import run_recipe
from ptymesh.run.simulate_file import write
from ptymesh.run_folder.callbacks import make_watchers
from ptymesh.simulate import checked
from ptymesh.watch.runs import OpenedArrays, RunFolder, find_runs

pytest.importorskip("starlette")
pytest.importorskip("httpx2")
from starlette.testclient import TestClient

from ptymesh.watch.server import make_app

TOKEN, HOST = "a-word-of-its-own", "127.0.0.1:8000"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that is done, and one of which there is a checkpoint."""
    root = tmp_path_factory.mktemp("runs")
    write(checked(views=25, window=32, seed=3), root / "scan.cxi")
    text = f"data: {{path: {root / 'scan.cxi'}}}\nstages: [{{engine: rpie, epochs: 4, batch: 8}}]\n"
    recipe = Recipe.from_yaml(
        text + f"output: {{dir: {root / 'deep' / 'done'}, figures: false, checkpoint_every: 2}}\n"
    )
    watching = make_watchers()
    run_recipe(recipe, device="cpu", callbacks=watching)
    for one in watching:
        one.close()
    going = root / "going"
    shutil.copytree(root / "deep" / "done", going)
    (going / "result.h5").unlink()
    (going / "status.json").unlink()  # as of an older version
    lines = (going / "metrics.jsonl").read_text().splitlines()
    (going / "metrics.jsonl").write_text("\n".join([*lines[:2], '{"stage": 0, "epo']))  # as it is written
    return root


@pytest.fixture
def page(runs: Path) -> TestClient:
    made = TestClient(make_app([runs], TOKEN, [HOST]), base_url=f"http://{HOST}")
    made.headers["x-token"] = TOKEN
    return made


def ids(page: TestClient) -> dict[str, str]:
    return {run["name"]: run["id"] for run in page.get("/api/runs").json()}


def test_runs_are_found_with_what_came_out(page: TestClient) -> None:
    found = {run["name"]: run for run in page.get("/api/runs").json()}
    assert set(found) == {"deep/done", "going"}
    assert found["deep/done"]["state"] == "done" and found["deep/done"]["verdict"] in ("good", "poor", "failed")
    assert found["going"]["state"] == "running" and found["going"]["epochs"] == 2


def test_a_run_in_detail(page: TestClient) -> None:
    names = ids(page)
    done = page.get("/api/run", params={"id": names["deep/done"]}).json()
    assert len(done["curves"]["residual"]) == 4
    assert "rpie" in done["recipe"] and "25 views" in done["log"]
    assert done["arrays"]["object"][0] == 1 and done["arrays"]["probe"] == [1, 32, 32]
    going = page.get("/api/run", params={"id": names["going"]}).json()
    assert going["arrays"]["file"] == "checkpoint" and going["arrays"]["object"] == done["arrays"]["object"]
    assert "rpie" in going["recipe"]


@pytest.mark.parametrize("what", ["phase", "amplitude", "colour", "probe"])
def test_pictures(page: TestClient, what: str) -> None:
    from matplotlib.image import imread

    for name, id_ in ids(page).items():
        answer = page.get("/api/picture", params={"id": id_, "what": what})
        assert answer.status_code == 200 and answer.headers["content-type"] == "image/png", name
        image = imread(BytesIO(answer.content))
        assert image.shape[0] == (32 if what == "probe" else image.shape[1]) and np.ptp(image[..., :3]) > 0.1


def test_a_region_is_shown_pixel_by_pixel(page: TestClient, runs: Path) -> None:
    from matplotlib.image import imread

    id_ = ids(page)["deep/done"]
    asked = {"id": id_, "what": "amplitude", "region": "10,20,42,60"}
    image = imread(BytesIO(page.get("/api/picture", params=asked).content))
    assert image.shape[:2] == (32, 40)
    shown = np.abs(pm.Result.load(runs / "deep" / "done" / "result.h5").object[0, 10:42, 20:60])
    assert np.corrcoef(image[..., 0].ravel(), shown.ravel())[0, 1] > 0.98


def test_positions(page: TestClient) -> None:
    names = ids(page)
    assert len(page.get("/api/positions", params={"id": names["deep/done"]}).json()["positions"]) == 25
    assert page.get("/api/positions", params={"id": names["going"]}).json() == {}


# --- what is refused ---


@pytest.mark.parametrize("path", ["/", "/page.js", "/page.css", "/api/runs", "/api/run", "/api/picture"])
def test_nothing_without_the_token(runs: Path, path: str) -> None:
    page = TestClient(make_app([runs], TOKEN, [HOST]), base_url=f"http://{HOST}")
    assert page.get(path).status_code == 401
    assert page.get(path, headers={"x-token": TOKEN + "x"}).status_code == 401
    assert page.get(path, params={"token": TOKEN[:-1]}).status_code == 401


def test_another_host_or_origin(page: TestClient) -> None:
    assert page.get("/api/runs", headers={"host": "evil.example:8000"}).status_code == 400
    assert page.get("/api/runs", headers={"origin": "http://evil.example"}).status_code == 403
    assert page.get("/api/runs", headers={"origin": f"http://{HOST}"}).status_code == 200


@pytest.mark.parametrize("id_", ["", "../../etc/passwd", "0" * 16, "%2e%2e"])
def test_runs_that_are_not_there(page: TestClient, id_: str) -> None:
    for path in ("/api/run", "/api/picture", "/api/positions"):
        assert page.get(path, params={"id": id_}).status_code == 404


@pytest.mark.parametrize("path", ["/../pyproject.toml", "/watch/server.py", "/api", "/page.html"])
def test_other_paths(page: TestClient, path: str) -> None:
    assert page.get(path).status_code == 404


@pytest.mark.parametrize(
    "asked",
    [
        {"what": "secret"},
        {"index": "7"},
        {"index": "-1"},
        {"index": "one"},
        {"region": "0,0,9999,10"},
        {"region": "5,5,5,9"},
        {"region": "1,2,3"},
    ],
)
def test_pictures_that_there_are_not(page: TestClient, asked: dict[str, str]) -> None:
    answer = page.get("/api/picture", params={"id": ids(page)["deep/done"], **asked})
    assert answer.status_code == 400 and "no such picture" in answer.text


@pytest.mark.parametrize("method", ["post", "put", "delete", "patch"])
def test_nothing_can_be_changed(page: TestClient, method: str) -> None:
    for path in ("/", "/api/runs", "/api/run"):
        assert getattr(page, method)(path).status_code == 405


def test_answers_fetch_nothing_from_elsewhere(page: TestClient) -> None:
    answer = page.get("/")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    folder = Path(pm.__file__).parent / "watch"
    text = "".join((folder / name).read_text() for name in ("page.html", "page.js", "page.css"))
    assert "https://" not in text and "http://" not in text.replace("http://www.w3.org/2000/svg", "")


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path, runs: Path) -> None:
    (tmp_path / "link").symlink_to(runs)
    assert find_runs([tmp_path]) == {}


def test_files_that_lead_elsewhere_are_not_shown(tmp_path: Path, runs: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("a secret")
    run = tmp_path / "runs" / "run"
    shutil.copytree(runs / "deep" / "done", run)
    (run / "log.txt").unlink()
    (run / "log.txt").symlink_to(secret)
    with h5py.File(run / "result.h5", "r+") as file:
        for name in ("object", "recipe"):
            del file[name]
            file[name] = h5py.ExternalLink(runs / "deep" / "done" / "result.h5", name)
    (found,) = find_runs([tmp_path / "runs"]).values()
    details = found.details()
    assert details["log"] == "" and details["recipe"] == "" and details["arrays"] == {}
    (run / "result.h5").unlink()
    (run / "result.h5").symlink_to(runs / "deep" / "done" / "result.h5")
    assert found.object_file() is None or not found.object_file().is_result  # type: ignore[union-attr]


def test_a_number_that_is_none_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"epoch": 1, "residual": NaN, "loss": Infinity}\n')
    page = TestClient(make_app([tmp_path], TOKEN, [HOST]), base_url=f"http://{HOST}", headers={"x-token": TOKEN})
    (run,) = page.get("/api/runs").json()
    assert run["residual"] is None and page.get("/api/run", params={"id": run["id"]}).status_code == 200


def test_damaged_results_have_no_positions(tmp_path: Path) -> None:
    (tmp_path / "result.h5").write_bytes(b"no HDF5")
    page = TestClient(make_app([tmp_path], TOKEN, [HOST]), base_url=f"http://{HOST}", headers={"x-token": TOKEN})
    (run,) = page.get("/api/runs").json()
    assert page.get("/api/positions", params={"id": run["id"]}).status_code == 404


def test_odd_files_are_no_reason_to_fail(tmp_path: Path) -> None:
    for name, content in (("result.h5", b"no HDF5"), ("metrics.jsonl", b"[1]\nnonsense\n\xff")):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / name).write_bytes(content)
    (run,) = find_runs([tmp_path]).values()
    assert run.details()["arrays"] == {} and run.details()["recipe"] == ""
    with pytest.raises(OSError):
        OpenedArrays(run.object_file())  # type: ignore[arg-type]


@pytest.mark.forked(2)
def test_a_checkpoint_of_two_ranks(runs: Path, tmp_path: Path) -> None:
    """Ranks that hold the whole object save its rows in turn."""
    out = tmp_path / "two"
    command = [
        sys.executable,
        "-P",
        "-m",
        "ptymesh",
        "run",
        str(runs / "recipe.yaml"),
        "--ranks",
        "2",
        "--out",
        str(out),
    ]
    (runs / "recipe.yaml").write_text(
        f"data: {{path: {runs / 'scan.cxi'}}}\nlayout: replicated\nstages: [{{engine: rpie, epochs: 2, batch: 8}}]\n"
        "output: {figures: false}\n"
    )
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    whole = pm.Result.load(out / "result.h5").object
    (out / "result.h5").unlink()
    found = RunFolder(out, tmp_path).object_file()
    assert found is not None and not found.is_result
    with OpenedArrays(found) as arrays:
        height, width = arrays.object_shape[1:]
        assert np.array_equal(arrays.object_region(0, slice(0, height), slice(0, width)), whole[0])
        middle = slice(height // 2 - 5, height // 2 + 5)
        assert np.array_equal(arrays.object_region(0, middle, slice(3, 9)), whole[0, middle, 3:9])


@pytest.mark.forked
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "is no folder"),
        (["--port", "99999"], "give 0 to 65535"),
        (["--token", "short"], "give 8 or more"),
        (["--host", "203.0.113.7"], "cannot be used"),
    ],
)
def test_bad_options(tmp_path: Path, words: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ptymesh", "watch", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 2 and said in done.stderr
