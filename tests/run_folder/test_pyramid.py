"""The pyramid of a large object holds its means, and belongs to one result."""

from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest

from ptymesh.errors import PtymeshError
from ptymesh.io.results import Result
from ptymesh.run_folder import callbacks
from ptymesh.run_folder.pyramid import NAME, write_pyramid
from ptymesh.watch.runs import OpenedArrays, RunFolder


def save(path: Path, seed: int, shape: tuple[int, int] = (70, 51)) -> np.ndarray:
    """Write a result with a random object, and return the object."""
    rng = np.random.default_rng(seed)
    image = (rng.normal(size=(2, *shape)) + 1j * rng.normal(size=(2, *shape))).astype(np.complex64)
    probe = rng.normal(size=(1, 8, 8)).astype(np.complex64)
    Result(object=image, probe=probe, positions_px=np.zeros((1, 2))).save(path)
    return image


def means(image: np.ndarray, side: int) -> np.ndarray:
    rows, columns = (n // side for n in image.shape[-2:])
    cut = image[..., : rows * side, : columns * side]
    return cut.reshape(-1, rows, side, columns, side).mean(axis=(2, 4))


def opened(folder: Path) -> OpenedArrays:
    found = RunFolder(folder, folder).object_file()
    assert found is not None
    return OpenedArrays(found)


def test_levels_are_means(tmp_path: Path) -> None:
    image = save(tmp_path / "result.h5", 1)
    path = write_pyramid(tmp_path / "result.h5", least_side=64, coarsest_side=20)
    assert path == tmp_path / NAME
    with h5py.File(path) as file:
        assert set(file["object"]) == {"2", "4"}
        for name, level in file["object"].items():
            # of odd sides the last line belongs to no block, on every level
            wanted = means(means(image, 2), int(name) // 2)
            assert level.shape == wanted.shape and np.allclose(level[()], wanted, atol=1e-6)


def test_small_objects_need_none(tmp_path: Path) -> None:
    save(tmp_path / "result.h5", 1)
    (tmp_path / NAME).write_bytes(b"of an earlier, larger one")
    assert write_pyramid(tmp_path / "result.h5") is None
    assert not (tmp_path / NAME).exists()


@pytest.mark.parametrize("binning", [1, 2, 4, 8, 1024])
@pytest.mark.parametrize("region", [(0, 70, 0, 51), (8, 40, 16, 48), (69, 70, 50, 51), (3, 5, 7, 9)])
def test_regions_are_the_same_with_and_without(tmp_path: Path, binning: int, region: tuple[int, ...]) -> None:
    image = save(tmp_path / "result.h5", 2, (70, 51))
    asked = (1, slice(*region[:2]), slice(*region[2:]), binning)
    with opened(tmp_path) as arrays:
        without = arrays.binned_region(*asked)
    write_pyramid(tmp_path / "result.h5", least_side=64, coarsest_side=20)
    with opened(tmp_path) as arrays:
        assert arrays._levels
        found = arrays.binned_region(*asked)
    assert found.shape == without.shape and np.allclose(found, without, atol=1e-6)
    if binning == 1:
        assert np.array_equal(found, image[1, region[0] : region[1], region[2] : region[3]])
    if binning == 4 and region[0] % 4 == 0:
        last = region[1] // 4, region[3] // 4
        assert np.allclose(found, means(image[1:], 4)[0, region[0] // 4 : last[0], region[2] // 4 : last[1]], atol=1e-6)


def test_a_coarse_picture_does_not_read_the_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "result.h5", 3)
    write_pyramid(tmp_path / "result.h5", least_side=64, coarsest_side=20)
    monkeypatch.setattr(OpenedArrays, "object_region", None)
    with opened(tmp_path) as arrays:
        assert arrays.binned_region(0, slice(0, 70), slice(0, 51), 8).shape == (8, 6)


def test_that_of_another_result_is_not_used(tmp_path: Path) -> None:
    save(tmp_path / "result.h5", 4)
    write_pyramid(tmp_path / "result.h5", least_side=64, coarsest_side=20)
    image = save(tmp_path / "result.h5", 5)
    with opened(tmp_path) as arrays:
        found = arrays.binned_region(0, slice(0, 70), slice(0, 51), 2)
    assert np.allclose(found, means(image, 2)[0], atol=1e-6)


@pytest.mark.parametrize("damage", ["nonsense", "empty", "link"])
def test_a_damaged_one_is_not_used(tmp_path: Path, damage: str) -> None:
    image = save(tmp_path / "result.h5", 6)
    path = tmp_path / NAME
    if damage == "nonsense":
        path.write_bytes(b"no HDF5")
    elif damage == "empty":
        h5py.File(path, "w").close()
    else:
        save(tmp_path / "other" / "result.h5", 6)
        write_pyramid(tmp_path / "other" / "result.h5", least_side=64, coarsest_side=20)
        path.symlink_to(tmp_path / "other" / NAME)
    with opened(tmp_path) as arrays:
        assert not arrays._levels
        assert np.allclose(arrays.binned_region(0, slice(0, 70), slice(0, 51), 2), means(image, 2)[0], atol=1e-6)


def test_a_run_writes_it_after_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "result.h5", 7)
    monkeypatch.setattr(callbacks, "write_pyramid", partial(write_pyramid, least_side=64, coarsest_side=20))
    (watcher,) = (one for one in callbacks.make_watchers() if isinstance(one, callbacks.PyramidFile))
    watcher.saved(tmp_path / "checkpoint")
    assert not (tmp_path / NAME).exists()
    watcher.saved(tmp_path / "result.h5")
    with opened(tmp_path) as arrays:
        assert set(arrays._levels) == {2, 4}


def test_a_disk_that_refuses_costs_the_pyramid_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(result: Path) -> None:
        raise PtymeshError("The disk is full.")

    monkeypatch.setattr(callbacks, "write_pyramid", refuse)
    callbacks.PyramidFile().saved(tmp_path / "result.h5")
    assert "there is no pyramid" in capsys.readouterr().err
