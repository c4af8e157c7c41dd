"""Panels of the page say what the files hold: comparison, profile, pattern, caustic, ranks, studies."""

import json
import shutil
from io import BytesIO
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.recipe.schema import Recipe
from ptymesh.run.session import run_recipe
from ptymesh.run.simulate_file import write
from ptymesh.run_folder.caustic import caustic_of_result
from ptymesh.run_folder.patterns import patterns_of
from ptymesh.run_folder.preview import Estimated, write_preview
from ptymesh.simulate import checked

pytest.importorskip("starlette")
pytest.importorskip("httpx2")
from starlette.testclient import TestClient

from ptymesh.watch import comparing
from ptymesh.watch.server import make_app

TOKEN, HOST = "a-word-of-its-own", "127.0.0.1:8000"


def page_of(root: Path, *, data: bool = True) -> TestClient:
    made = TestClient(make_app([root], TOKEN, [HOST], data=data), base_url=f"http://{HOST}")
    made.headers["x-token"] = TOKEN
    return made


def ids(page: TestClient) -> dict[str, str]:
    return {run["name"]: run["id"] for run in page.get("/api/runs").json()}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, and the same shifted by (2, -3) pixels, of another phase and scale."""
    made = tmp_path_factory.mktemp("panels")
    write(checked(views=36, window=32, seed=3), made / "scan.cxi")
    text = f"data: {{path: {made / 'scan.cxi'}}}\nstages: [{{engine: rpie, epochs: 4, batch: 8}}]\n"
    run_recipe(Recipe.from_yaml(text + f"output: {{dir: {made / 'one'}, figures: false}}\n"), device="cpu")
    result = pm.Result.load(made / "one" / "result.h5")
    result.object = 0.5j * np.roll(result.object, (2, -3), axis=(1, 2))
    result.positions_px = result.positions_px + np.array([2, -3])
    result.save(made / "two" / "result.h5")
    return made


def test_two_results_are_aligned(root: Path) -> None:
    page = page_of(root)
    known = ids(page)
    found = page.get("/api/compare", params={"id": known["one"], "with": known["two"]}).json()
    assert found["nrmse"] < 1e-3 and found["binning"] == 1 and not found["twin"]
    assert found["shift_px"] == pytest.approx([2, -3], abs=0.01) and found["scale"] == pytest.approx(0.5, rel=1e-3)
    assert found["resolution_at_pixel_limit"] and found["resolution_unit"] == "m"
    assert len(found["frequency"]) == len(found["curves"]["correlation"]) == len(found["curves"]["half_bit"])
    assert min(found["curves"]["correlation"]) > 0.99


def test_pictures_of_a_comparison_have_one_scale(root: Path) -> None:
    from matplotlib.image import imread

    page = page_of(root)
    known = ids(page)
    asked = {"id": known["one"], "with": known["two"], "what": "amplitude"}
    images = {}
    for side in ("a", "b", "difference"):
        answer = page.get("/api/compare/picture", params={**asked, "side": side})
        assert answer.status_code == 200, answer.text
        images[side] = imread(BytesIO(answer.content))[..., :3]
    assert images["a"].shape == images["b"].shape == images["difference"].shape
    middle = slice(30, 60), slice(30, 60)
    assert np.abs(images["a"][middle] - images["b"][middle]).max() < 0.05 and np.ptp(images["b"][middle]) > 0.2


def test_large_results_are_compared_in_blocks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "COMPARED_SIDE", 64)
    comparing._compared.cache_clear()
    page = page_of(root)
    known = ids(page)
    found = page.get("/api/compare", params={"id": known["one"], "with": known["two"]}).json()
    comparing._compared.cache_clear()
    assert found["binning"] == 2 and found["shift_px"] == pytest.approx([1, -1.5], abs=0.2)
    pixel = pm.Result.load(root / "one" / "result.h5").pixel_size_m
    assert pixel is not None and found["pixel_size_m"] == pytest.approx([2 * side for side in pixel])


def test_comparisons_that_there_are_not(root: Path, tmp_path: Path) -> None:
    page = page_of(root)
    known = ids(page)
    answer = page.get("/api/compare", params={"id": known["one"], "with": "0" * 16})
    assert answer.status_code == 400 and "choose another one" in answer.text
    asked = {"id": known["one"], "with": known["two"], "side": "c"}
    assert page.get("/api/compare/picture", params=asked).status_code == 400
    for name in ("done", "going"):
        (tmp_path / name).mkdir()
    (tmp_path / "done" / "result.h5").write_bytes((root / "one" / "result.h5").read_bytes())
    with h5py.File(root / "one" / "result.h5") as file, h5py.File(tmp_path / "going" / "preview.h5", "w") as made:
        made["object"], made["probe"] = file["object"][()], file["probe"][()]
    (tmp_path / "going" / "status.json").write_text('{"phase": "stage"}')
    page = page_of(tmp_path)
    known = ids(page)
    answer = page.get("/api/compare", params={"id": known["going"], "with": known["done"]})
    assert answer.status_code == 400 and "Two results can be compared" in answer.text


def test_a_profile_along_a_line(root: Path) -> None:
    """Between the middles of two pixels of a row lie those between, at their own values."""
    page = page_of(root)
    asked = {"id": ids(page)["one"], "from": "40.5,20.5", "to": "40.5,60.5"}
    found = page.get("/api/profile", params=asked).json()
    result = pm.Result.load(root / "one" / "result.h5")
    assert found["length_px"] == 40 and result.pixel_size_m is not None
    assert found["length_m"] == pytest.approx(40 * result.pixel_size_m[1])
    row = result.object[0, 40, 20:61]
    assert np.allclose(found["amplitude"], np.abs(row), atol=1e-5)
    phase = np.unwrap(np.angle(row))
    assert np.allclose(found["phase"], phase - phase[0], atol=1e-5)


@pytest.mark.parametrize(
    "line", [{"from": "0,0"}, {"from": "0,0", "to": "1,nan"}, {"from": "0,0", "to": "9999,0"}, {"from": "a,b"}]
)
def test_lines_that_there_are_not(root: Path, line: dict[str, str]) -> None:
    page = page_of(root)
    assert page.get("/api/profile", params={"id": ids(page)["one"], **line}).status_code == 400


def test_a_pattern_beside_its_model(root: Path) -> None:
    page = page_of(root)
    id_, result = ids(page)["one"], pm.Result.load(root / "one" / "result.h5")
    centre = result.positions_px[7] + 16
    found = page.get("/api/pattern", params={"id": id_, "at": f"{centre[0] + 0.1},{centre[1] - 0.1}"}).json()
    assert found["view"] == 7 and found["views"] == 36 and found["centre"] == pytest.approx(list(centre))
    assert result.residuals is not None and found["residual"] == pytest.approx(result.residuals[7], rel=1e-3)
    for side in ("measured", "modelled", "residual"):
        answer = page.get("/api/pattern/picture", params={"id": id_, "view": "7", "side": side})
        assert answer.status_code == 200 and answer.headers["content-type"] == "image/png"
    title, (measured, modelled) = next(iter(patterns_of(result).pairs.items()))
    view = title.split("view ")[1].split(",")[0]
    found = page.get("/api/pattern", params={"id": id_, "view": view}).json()
    assert found["counts"] == pytest.approx(measured.sum()) and found["modelled_counts"] == pytest.approx(
        modelled.sum()
    )


@pytest.mark.parametrize("asked", [{"at": "1"}, {"view": "36"}, {"view": "-1"}, {"view": "x"}])
def test_patterns_that_there_are_not(root: Path, asked: dict[str, str]) -> None:
    page = page_of(root)
    assert page.get("/api/pattern", params={"id": ids(page)["one"], **asked}).status_code == 400


def test_a_pattern_while_the_run_goes_on(root: Path, tmp_path: Path) -> None:
    """Of the last checkpoint, at the place of a preview whose pixels are larger, and whose object has grown since."""
    out = tmp_path / "going"
    shutil.copytree(root / "one" / "checkpoint", out / "checkpoint")
    (out / "status.json").write_text('{"phase": "stage", "outcome": null}')
    result = pm.Result.load(root / "one" / "result.h5")
    origin = (result.origin_px[0] + 6, result.origin_px[1])
    grown = torch.as_tensor(np.pad(result.object, ((0, 0), (6, 0), (0, 0))))
    write_preview(out / "preview.h5", Estimated(grown, torch.as_tensor(result.probe), None, origin), 0, 1)
    with h5py.File(out / "preview.h5", "a") as file:
        file.attrs["binned"] = 2
    page = page_of(tmp_path)
    middle = (result.positions_px[7] + 16 + [6, 0]) / 2
    found = page.get("/api/pattern", params={"id": ids(page)["going"], "at": f"{middle[0]},{middle[1]}"}).json()
    assert found["view"] == 7 and found["file"] == "checkpoint" and found["centre"] == pytest.approx(list(middle))
    assert result.residuals is not None and found["residual"] == pytest.approx(result.residuals[7], rel=1e-3)
    answer = page.get("/api/pattern/picture", params={"id": ids(page)["going"], "view": "7"})
    assert answer.status_code == 200 and answer.headers["content-type"] == "image/png"


def test_a_checkpoint_in_tiles_is_shown(root: Path, tmp_path: Path) -> None:
    """As the object that it is cut from, whole and region by region."""
    result = pm.Result.load(root / "one" / "result.h5")
    shutil.copytree(root / "one" / "checkpoint", tmp_path / "whole" / "checkpoint")
    shutil.copytree(root / "one" / "checkpoint", tmp_path / "cut" / "checkpoint")
    for out in ("whole", "cut"):
        (tmp_path / out / "status.json").write_text('{"phase": "stage", "outcome": null}')
    (shard,) = (tmp_path / "cut" / "checkpoint").rglob("*.h5")
    with h5py.File(shard, "a") as file:
        whole = file["tiles/object"][()]
        assert np.array_equal(whole, result.object)
        del file["tiles/object"]
        file["tiles/object"] = whole[:, :, :30]
        file["tiles/object"].attrs["corner"] = (0, 0)
    manifest = shard.with_name("manifest.json")
    said = json.loads(manifest.read_text())
    for number, rows in enumerate((slice(0, 20), slice(20, None))):
        beside = shard.with_name(f"more{number}.h5")
        with h5py.File(beside, "w") as file:
            file["tiles/object"] = whole[:, rows, 30:]
            file["tiles/object"].attrs["corner"] = (rows.start, 30)
        said["files"].append({"name": beside.name})
    manifest.write_text(json.dumps(said))
    page = page_of(tmp_path)
    known = ids(page)
    for region in ({}, {"region": "5,17,47,53"}):
        cut, plain = (page.get("/api/picture", params={"id": known[name], **region}) for name in ("cut", "whole"))
        assert cut.status_code == 200 and cut.content == plain.content
    said["files"].pop()
    manifest.write_text(json.dumps(said))
    assert page.get("/api/picture", params={"id": known["cut"], "v": "2"}).status_code == 400


def test_patterns_need_a_checkpoint_or_a_result(tmp_path: Path, root: Path) -> None:
    with h5py.File(root / "one" / "result.h5") as file:
        obj, probe = torch.as_tensor(file["object"][()]), torch.as_tensor(file["probe"][()])
    (tmp_path / "going").mkdir()
    (tmp_path / "going" / "status.json").write_text('{"phase": "stage", "outcome": null}')
    write_preview(tmp_path / "going" / "preview.h5", Estimated(obj, probe, None), 0, 1)
    page = page_of(tmp_path)
    answer = page.get("/api/pattern", params={"id": ids(page)["going"], "at": "20,20"})
    assert answer.status_code == 400 and "has written none yet" in answer.text


def test_data_outside_the_folders_are_read_only_if_asked_for(root: Path) -> None:
    page = page_of(root, data=False)
    for path in ("/api/pattern", "/api/pattern/picture"):
        answer = page.get(path, params={"id": ids(page)["one"], "view": "0"})
        assert answer.status_code == 400 and "ptymesh watch --data" in answer.text


def test_the_caustic(root: Path) -> None:
    page = page_of(root)
    id_ = ids(page)["one"]
    found = page.get("/api/caustic", params={"id": id_}).json()
    known = caustic_of_result(pm.Result.load(root / "one" / "result.h5"))
    assert found["z_m"] == pytest.approx(known.z_m.tolist())
    assert found["curves"]["width_x"] == pytest.approx(known.width_m[:, 1].tolist())
    for side in ("y", "x"):
        answer = page.get("/api/caustic/picture", params={"id": id_, "side": side})
        assert answer.status_code == 200 and answer.content.startswith(b"\x89PNG")


def test_what_ranks_held(root: Path) -> None:
    page = page_of(root)
    found = page.get("/api/ranks", params={"id": ids(page)["one"]}).json()
    assert len(found["ranks"]["peak_bytes"]) == 1 and found["ranks"]["peak_bytes"][0] > 0
    assert found["traffic"] == {}


def test_what_ranks_hold_while_the_run_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "going"
    out.mkdir()
    said = {"phase": "stage", "outcome": None, "rank_peak_bytes": [5e8, 4e8], "rank_waited_s": [0.5, 0.25]}
    said |= {"rank_computed_s": [9.5, 9.75]}
    (out / "status.json").write_text(json.dumps(said))
    page = page_of(tmp_path)
    found = page.get("/api/ranks", params={"id": ids(page)["going"]}).json()
    assert found["goes_on"] and found["ranks"] == {
        "peak_bytes": [5e8, 4e8],
        "computed_s": [9.5, 9.75],
        "waited_s": [0.5, 0.25],
    }
    (out / "status.json").write_text(json.dumps(said | {"rank_waited_s": ["0.5", None]}))
    assert page.get("/api/ranks", params={"id": ids(page)["going"]}).json()["ranks"].keys() == {
        "peak_bytes",
        "computed_s",
    }


def test_panels_need_the_token(root: Path) -> None:
    page = page_of(root)
    id_ = ids(page)["one"]
    del page.headers["x-token"]
    for path in ("compare", "compare/picture", "profile", "pattern", "pattern/picture", "caustic", "ranks"):
        assert page.get(f"/api/{path}", params={"id": id_}).status_code == 401
        assert page.get(f"/api/{path}", params={"id": id_}, headers={"host": "evil"}).status_code == 400
    for name in ("picture.js", "panels.js", "compare.js"):
        assert page.get(f"/{name}").status_code == 401
        assert page.get(f"/{name}", params={"token": TOKEN}).status_code == 200


def test_a_study_is_shown_with_its_trials(tmp_path: Path, root: Path) -> None:
    rows = [
        {"number": 0, "state": "done", "value": 0.02, "settings": {"seed": 1}, "seconds": 3.0, "recipe": {"a": 1}},
        {"number": 1, "state": "pruned", "value": None, "settings": {"seed": 2}, "seconds": 1.0, "why": "slow"},
    ]
    study = tmp_path / "study"
    (study / "best").mkdir(parents=True)
    (study / "best" / "result.h5").write_bytes((root / "one" / "result.h5").read_bytes())
    (study / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = page_of(tmp_path)
    known = {run["name"]: run for run in page.get("/api/runs").json()}
    assert set(known) == {"study", "study/best"}
    assert known["study"]["state"] == "done" and known["study"]["trials"] == 2 and known["study/best"]["trials"] == 0
    details = page.get("/api/run", params={"id": known["study"]["id"]}).json()
    assert [one["value"] for one in details["trials"]] == [0.02, None] and "recipe" not in details["trials"][0]
    assert details["trials"][1]["settings"] == {"seed": 2} and details["arrays"] == {}
    (study / "trials.jsonl").write_text(json.dumps(rows[0] | {"state": "running"}) + "\n")
    assert next(run for run in page.get("/api/runs").json() if run["name"] == "study")["state"] == "running"
