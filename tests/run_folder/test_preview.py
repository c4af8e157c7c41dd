"""preview.h5 holds object and probe as they are while a run goes on, on few pixels."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.distributed.tiles import Rect
from ptymesh.distributed.world import World
from ptymesh.errors import Interrupted
from ptymesh.recipe.schema import Recipe
from ptymesh.run.session import _estimated, run_recipe
from ptymesh.run.simulate_file import write
from ptymesh.run_folder import preview
from ptymesh.run_folder.preview import Estimated, Preview, binned
from ptymesh.run_folder.reports import BatchReport, Callback, EpochReport
from ptymesh.run_folder.status import Throttle
from ptymesh.simulate import checked, simulate
from ptymesh.watch.runs import OpenedArrays, RunFolder


@pytest.mark.parametrize(
    ("shape", "side", "small"), [((7, 9), 1, (7, 9)), ((25, 40), 4, (6, 10)), ((2, 40), 4, (1, 10))]
)
def test_means_over_blocks(shape: tuple[int, int], side: int, small: tuple[int, int]) -> None:
    image = torch.randn(2, *shape, dtype=torch.complex128)
    found, of = binned(image, 10)
    assert of == side and found.shape == (2, *small)
    down, across = min(side, shape[0]), side
    assert torch.allclose(found[1, -1, 0], image[1, (small[0] - 1) * down : small[0] * down, :across].mean())


def test_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "SIDE", 16)
    monkeypatch.setattr(preview, "binned", lambda image: binned(image, 16))
    obj, probe = torch.randn(1, 30, 40, dtype=torch.complex64), torch.randn(2, 8, 8, dtype=torch.complex64)
    shown = Preview(tmp_path, lambda: Estimated(obj, probe, (2e-9, 1e-9)))
    shown.batch(BatchReport(0, 3, 1, 10, 30, 1.0))
    with h5py.File(tmp_path / "preview.h5") as file:
        assert np.allclose(file["object"][0, 0, 1], obj[0, :3, 3:6].mean()) and np.array_equal(file["probe"], probe)
        assert np.allclose(file["object"].attrs["pixel_size_m"], [6e-9, 3e-9], rtol=1e-12, atol=0)
        assert (file.attrs["binned"], file.attrs["epoch"]) == (3, 2)
    before = (tmp_path / "preview.h5").stat().st_mtime_ns
    shown.batch(BatchReport(0, 3, 2, 10, 30, 1.0))
    assert (tmp_path / "preview.h5").stat().st_mtime_ns == before, "not at once once more"
    shown.finish("done")
    assert not list(tmp_path.iterdir())


def test_positions_that_have_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of some views, in the pixels of the small object where they are drawn."""
    monkeypatch.setattr(preview, "MOST_VIEWS", 10)
    monkeypatch.setattr(preview, "binned", lambda image: binned(image, 16))
    obj, probe = torch.ones(1, 30, 40, dtype=torch.complex64), torch.ones(1, 8, 6, dtype=torch.complex64)
    places = 20 * torch.rand(25, 2, dtype=torch.float64)
    for nominal in (None, places - 1.5):
        shown = Estimated(obj, probe, None, positions_px=places, nominal_px=nominal)
        preview.write_preview(tmp_path / "preview.h5", shown, 0, 1)
        found = RunFolder(tmp_path, tmp_path).positions()
        wanted = (places[::3].numpy() + np.array([4, 3])) / 3
        assert len(found["positions"]) == 9 and np.allclose(found["positions"], wanted, atol=0.006)
        assert ("nominal" in found) == (nominal is not None)
    assert np.allclose(np.subtract(found["positions"], found["nominal"]), 0.5, atol=0.011)


def test_a_rank_without_the_whole_object_and_a_disk_that_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Preview(tmp_path, lambda: None).batch(BatchReport(0, 1, 1, 10, 30, 1.0))
    assert not list(tmp_path.iterdir())
    arrays = Estimated(torch.ones(1, 4, 4, dtype=torch.complex64), torch.ones(1, 2, 2, dtype=torch.complex64), None)
    refused = Preview(tmp_path / "not-there", lambda: arrays)
    for _ in range(3):
        refused.batch(BatchReport(0, 1, 1, 10, 30, 1.0))
    assert capsys.readouterr().err.count("there are no previews") == 1


def estimated_tile(image: torch.Tensor, tile: Rect) -> Estimated:
    part = image[:, tile.top : tile.bottom, tile.left : tile.right]
    sides = (image.shape[-2], image.shape[-1])
    return Estimated(part, torch.ones(1, 2, 2, dtype=image.dtype), (2e-9, 1e-9), (1.0, 2.0), tile.corner, sides)


def test_tiles_are_joined_where_blocks_lie_in_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "SIDE", 10)
    monkeypatch.setattr(Throttle, "is_due", lambda self: True)
    image, report = torch.randn(2, 25, 39, dtype=torch.complex64), EpochReport(0, "rpie", 2, 9, *[0.1] * 4, 2, 9)
    tiles = [Rect(0, 0, 11, 18), Rect(0, 18, 11, 39), Rect(11, 0, 25, 18), Rect(11, 18, 25, 39)]
    shown = [Preview(tmp_path, lambda one=one: estimated_tile(image, one), k) for k, one in enumerate(tiles)]
    for number in (0, 1, 2, 0):
        shown[number].epoch(report)
        assert not (tmp_path / "preview.h5").exists(), "a tile is missing"
    shown[3].epoch(report)
    shown[0].epoch(report)
    with h5py.File(tmp_path / "preview.h5") as file:
        assert np.allclose(file["object"], binned(image, 10)[0], atol=1e-6) and file["object"].shape == (2, 6, 9)
        assert file.attrs["binned"] == 4 and np.allclose(file["object"].attrs["pixel_size_m"], [8e-9, 4e-9], atol=0)
    other = Preview(tmp_path, lambda: estimated_tile(image[:, :21], Rect(0, 0, 11, 18)))
    other.epoch(report)
    assert not (tmp_path / "preview.h5").exists(), "tiles of an earlier run are gone"
    other.finish("done")
    assert not list(tmp_path.iterdir())


def preview_of_tiles(world: World, folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return object and positions in the preview of a run on tiles after its last epoch, and those of the result."""
    scan = simulate(views=25, window=32, seed=3).measurement
    recon = pm.Reconstruction(scan, device=world, layout="tiled")
    recon.stages = [pm.RPIE(epochs=2, batch=8)]
    shown = Preview(folder, lambda: _estimated(recon, loop), world.rank)
    loop = recon.loop(callbacks=[shown])
    loop.run()
    for _ in range(2):  # all tiles, then the first rank's sum of them
        shown._throttle._next = 0.0
        shown.epoch(EpochReport(0, "rpie", 2, 2, *[0.1] * 4, 2, 2))
        world.barrier()
    with h5py.File(folder / "preview.h5") as file:
        found, places = file["object"][()], file["positions_px"][()]
    result = recon.result()
    return found, result.object, places, result.positions_px


def test_ranks_with_tiles_show_all_of_the_object(ranks: Callable[..., list[Any]], tmp_path: Path) -> None:
    for found, whole, places, positions in ranks(2, preview_of_tiles, tmp_path):
        assert np.allclose(places, positions, rtol=0, atol=1e-4)
        assert found.shape == whole.shape and np.allclose(found, whole, rtol=1e-5, atol=1e-6)
        assert np.ptp(np.angle(found)) > 0.1


class Looking(Callback):
    """Looks into the folder after the second epoch, as the page does, and stops the run."""

    def __init__(self, out: Path) -> None:
        self.out, self.shapes, self.seen = out, {}, np.empty(0)

    def epoch(self, report: EpochReport) -> None:
        if report.done_epochs != 3:
            return
        run = RunFolder(self.out, self.out)
        self.details, self.places = run.details(), run.positions()
        found = run.object_file()
        assert found is not None and found.kind == "preview"
        with OpenedArrays(found) as arrays:
            height, width = arrays.object_shape[1:]
            self.seen = arrays.object_region(0, slice(0, height), slice(0, width))
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_shows_it_and_is_not_changed_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Throttle, "is_due", lambda self: True)
    write(checked(views=25, window=32, seed=3), tmp_path / "scan.cxi")

    def recipe(out: Path) -> Recipe:
        return Recipe.from_yaml(
            f"data: {{path: {tmp_path / 'scan.cxi'}}}\nstages: [{{engine: rpie, epochs: 4, batch: 8}}]\n"
            f"output: {{dir: {out}, figures: false}}\n"
        )

    looking = Looking(tmp_path / "stopped")
    with pytest.raises(Interrupted):
        run_recipe(recipe(tmp_path / "stopped"), device="cpu", callbacks=[looking])
    assert not (tmp_path / "stopped" / "preview.h5").exists(), "the checkpoint is newer"
    assert looking.details["arrays"]["file"] == "preview" and looking.details["arrays"]["pixel_m"]
    assert len(looking.places["positions"]) == 25 and "nominal" not in looking.places, "none has moved"
    assert looking.seen.shape == tuple(looking.details["arrays"]["object"][1:]) and np.ptp(np.angle(looking.seen)) > 0.1
    went_on = run_recipe(recipe(tmp_path / "stopped"), device="cpu", resume=True).result
    monkeypatch.setattr(Throttle, "is_due", lambda self: False)
    alone = run_recipe(recipe(tmp_path / "alone"), device="cpu").result
    assert np.array_equal(went_on.object, alone.object) and np.array_equal(went_on.probe, alone.probe)
    assert np.allclose(looking.places["positions"], alone.positions_px + 16, atol=0.006)
    assert not (tmp_path / "alone" / "preview.h5").exists()
