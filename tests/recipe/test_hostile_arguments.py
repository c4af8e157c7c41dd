"""The Python interface with arguments of every wrong kind: it works, or says in one sentence why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptymesh as pm
from ptymesh.engines.constraints import Limits
from ptymesh.engines.gradients.autodiff import Regulariser
from ptymesh.engines.gradients.schedulers import Scheduler
from ptymesh.io.formats.cxi_writer import write_cxi
from ptymesh.io.options import PositionOptions
from ptymesh.measurement import Measurement
from ptymesh.recipe.schema import Recipe
from ptymesh.recipe.starts import ObjectOptions, ProbeOptions
from ptymesh.simulate import Simulation, simulate
from ptymesh.tune.options import HeldOut, Parameter

ODD: dict[str, Any] = {
    "none": None, "array": np.zeros((3, 4, 4)), "number": 5, "nan": float("nan"), "list": [], "dict": {},
    "bytes": b"x", "function": print, "complex": np.ones((2, 2), complex),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTYMESH_KERNELS", "torch")  # nothing here is about kernels


@pytest.fixture(scope="module")
def scan() -> Measurement:
    return simulate(views=9, window=16, scan="raster").measurement


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(pm.BadInput) as caught:
        call()
    said = str(caught.value)
    assert said.endswith((".", "?")) and "\n" not in said and len(said) < 500
    return said


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_scan_no_file_and_no_stage(odd: str, scan: Measurement) -> None:
    value = ODD[odd]
    for call in (pm.Reconstruction, pm.load, pm.reconstruct, pm.fetch, pm.tune, pm.Geometry):
        refused(lambda call=call: call(value))  # type: ignore[misc]
    refused(lambda: pm.spawn(5, 1))  # type: ignore[arg-type]
    refused(lambda: pm.spawn(print, value if odd != "number" else 0))
    refused(lambda: pm.tune({"data": {"path": "x"}}, value))
    refused(lambda: pm.Geometry((16, 16), value))
    if odd not in ("none", "dict"):
        refused(lambda: pm.load("nothing.cxi", positions=value))
        refused(lambda: pm.Reconstruction(scan, object=value))
        refused(lambda: pm.Reconstruction(scan, probe=value))
    if odd != "none":
        refused(lambda: pm.reconstruct(scan, value))
        refused(lambda: pm.Reconstruction(scan, planned=value))
    if odd not in ("none", "number"):
        refused(lambda: pm.Reconstruction(scan, probe_modes=value))
        refused(lambda: pm.Reconstruction(scan, memory_budget=value))
    if odd not in ("none", "bytes"):
        refused(lambda: pm.Reconstruction(scan, scratch=value))
    if odd != "number":
        refused(lambda: pm.Reconstruction(scan, seed=value))
    for name in ("subpixel", "precision", "layout", "device"):
        refused(lambda name=name: pm.Reconstruction(scan, **{name: value}))  # type: ignore[misc]


def test_options_that_nobody_knows_and_scans_that_count_twice(scan: Measurement) -> None:
    said = refused(lambda: pm.reconstruct(scan, pm.RPIE(epochs=1), precison="double"))
    assert said == "precison is unknown; did you mean precision?"
    said = refused(lambda: pm.reconstruct(scan, pm.RPIE(epochs=1), zigzag=3))
    assert said.startswith("zigzag is unknown; the keys here are progress, strict, ")
    twice = "which would count its views twice"
    assert twice in refused(lambda: pm.Reconstruction([scan, scan]))
    assert twice in refused(lambda: pm.reconstruct(["a.cxi", "a.cxi"], pm.RPIE(epochs=1)))
    assert "The scan is an empty list" in refused(lambda: pm.reconstruct([]))
    said = refused(lambda: pm.Reconstruction(scan, probe_modes=2, probe={"modes": 3}))
    assert said == "probe_modes is 2, and probe.modes 3; give one."


def test_arrays_are_loaded_by_way_of_a_file(tmp_path: Path) -> None:
    """As the sentence about them says."""
    said = refused(lambda: pm.load(np.zeros((3, 4, 4))))  # type: ignore[arg-type]
    assert "not from a ndarray; write arrays to one with numpy.savez('scan.npz', patterns=..., positions=...)" in said
    np.savez(tmp_path / "scan.npz", patterns=np.ones((3, 4, 4)), positions=np.zeros((3, 2)))
    keys = {"patterns": "patterns", "positions": "positions"}
    assert pm.load(tmp_path / "scan.npz", keys=keys, positions={"unit": "px"}).views == 3


def test_names_of_the_package_in_other_capitals() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'rpie'; did you mean RPIE\?"):
        _ = pm.rpie


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_measurement(odd: str, scan: Measurement) -> None:
    value, geometry = ODD[odd], scan.geometry
    refused(lambda: pm.Measurement(value, scan.positions, geometry, scan.mask))
    refused(lambda: pm.Measurement(scan.patterns, value, geometry, scan.mask))
    refused(lambda: pm.Measurement(scan.patterns, scan.positions, value, scan.mask))
    refused(lambda: pm.Measurement(scan.patterns, scan.positions, geometry, value))


def test_arrays_and_lists_make_a_measurement(scan: Measurement) -> None:
    patterns = scan.patterns.read(np.arange(9))
    made = pm.Measurement(patterns, scan.positions.tolist(), scan.geometry, scan.mask.tolist())
    assert made.views == 9 and np.array_equal(made.positions, scan.positions)
    assert np.array_equal(made.patterns.read(np.array([3])), patterns[3:4])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"probe_modes": 0}, "probe.modes is 0; it should be greater than or equal to 1."),
        ({"probe_modes": True}, "probe.modes is True; it should be a whole number."),
        ({"probe_modes": 10**9}, "probe.modes is 1000000000"),
        ({"probe": {"mode": 2}}, "probe.mode is unknown; did you mean probe.modes?"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": True}, "seed is True"),
        ({"precision": "half"}, "precision is 'half'; give single, mixed or double."),
        ({"subpixel": "cubic"}, "subpixel is 'cubic'; give fourier, bilinear or none."),
        ({"layout": "round"}, "layout is 'round'; give auto, replicated or tiled."),
        ({"memory_budget": -5}, "memory_budget is -5"),
        ({"memory_budget": True}, "memory_budget is True"),
        ({"scratch": "~nosuch/x"}, "scratch ~nosuch/x names the home folder"),
    ],
)
def test_options_of_a_reconstruction(scan: Measurement, options: dict[str, Any], expected: str) -> None:
    assert refused(lambda: pm.Reconstruction(scan, **options)).startswith(expected)


def test_stages_are_engines_dicts_or_lists_of_them(scan: Measurement) -> None:
    recon = pm.Reconstruction(scan, seed=np.int64(3), probe_modes=np.int64(2), device="cpu")
    assert recon.probe.shape[0] == 2
    assert len(list(recon.run({"engine": "rpie", "epochs": 2}))) == 2
    assert len(list(recon.run([{"engine": "rpie", "epochs": 1}, pm.MPIE(epochs=1)], batch=5))) == 2
    assert [stage.name for stage in recon.stages] == ["rpie", "rpie", "mpie"]
    for stages in (None, [], 5, "x", [{}], [{"engine": "rpi"}], [None]):
        refused(lambda stages=stages: recon.run(stages))  # type: ignore[misc]
    assert "stages.0 is the class RPIE itself; give" in refused(lambda: recon.run(pm.RPIE))  # type: ignore[arg-type]
    for changes in ({"epochs": 0}, {"epochs": True}, {"batch": 0}, {"batch": "x"}, {"epochs": 10**30}):
        refused(lambda changes=changes: recon.run(pm.RPIE(), **changes))  # type: ignore[misc]


def test_a_path_is_a_scan_and_numpy_numbers_are_numbers(scan: Measurement, tmp_path: Path) -> None:
    path = tmp_path / "scan.cxi"
    patterns = np.fft.fftshift(scan.patterns.read(np.arange(9)), axes=(1, 2))
    pixel = np.array(scan.geometry.object_pixel_m)
    write_cxi(
        path,
        patterns=iter([patterns]),
        count=9,
        dtype=patterns.dtype,
        geometry=scan.geometry,
        positions_m=scan.positions * pixel,
        mask=np.fft.fftshift(scan.mask),
    )
    stages = [{"engine": "rpie", "epochs": 1}]
    assert pm.reconstruct(str(path), stages, device="cpu").attrs["engine"] == "rpie"
    assert pm.Reconstruction(path, device="cpu").scan.views == 9
    assert pm.load(path, crop=np.int64(12)).window == (12, 12)
    assert pm.load(path, crop=np.array([12, 14])).window == (12, 14)
    assert pm.load(path, saturation=np.float32(1e9), bin=np.uint8(2)).window == (8, 8)
    assert "give a dict" in refused(lambda: pm.load(path, positions=scan.positions))  # type: ignore[arg-type]


@pytest.mark.parametrize("odd", ["nowhere/x.png", "x.xyz", "x", "", "\0.png", "a" * 300 + ".png", ".", "~nosuch/x.png"])
def test_figures_and_results_that_cannot_be_written(
    scan: Measurement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    monkeypatch.chdir(tmp_path)
    recon = pm.Reconstruction(scan, device="cpu")
    refused(lambda: recon.plot(odd))
    if not odd.endswith((".xyz", "x", "nowhere/x.png")):
        refused(lambda: recon.save(odd))
    assert not list(tmp_path.iterdir())


#: Options of every kind that cannot be made, and in which words a recipe would be refused.
UNMADE: dict[str, Callable[[], Any]] = {
    "epochs is -1; it should be greater than 0.": lambda: pm.RPIE(epochs=-1),
    "epoch is unknown; did you mean epochs?": lambda: pm.RPIE(epoch=1),  # type: ignore[call-arg]
    "probe.support.radius is 'x'; it should be a number.": lambda: pm.RPIE(probe={"support": {"radius": "x"}}),  # type: ignore[arg-type]
    "epochs is True; it should be a whole number.": lambda: pm.Adam(epochs=True),
    "Low (2.0) is above high (1.0).": lambda: Limits(low=2, high=1),
    "'cosin' is no scheduler of torch": lambda: Scheduler(name="cosin"),
    "weight is missing": lambda: Regulariser(kind="tv"),  # type: ignore[call-arg]
    "modes is 0; it should be greater": lambda: ProbeOptions(modes=0),
    "slices is inf; it should be": lambda: ObjectOptions(slices=float("inf")),  # type: ignore[arg-type]
    "subpixel is 'cubic'; it should be": lambda: PositionOptions(subpixel="cubic"),  # type: ignore[arg-type]
    "views is 0; it should be greater": lambda: Simulation(views=0),
    "veiws is unknown; did you mean views?": lambda: simulate(veiws=3),
    "The options of a simulation are of type int": lambda: simulate(5),  # type: ignore[arg-type]
    "stages.0.epochs is 0; it should be": lambda: Recipe(data={"path": "x"}, stages=[{"engine": "rpie", "epochs": 0}]),  # type: ignore
    "Choices stand alone": lambda: Parameter(low=1, high=2, choices=(1, 2)),
    "fraction is 0.7; it should be less than 0.5.": lambda: HeldOut(fraction=0.7),
}  # fmt: skip


@pytest.mark.parametrize("expected", UNMADE)
def test_options_that_cannot_be_made(expected: str) -> None:
    said = refused(UNMADE[expected])
    assert said.startswith(expected)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("epochs", 0, "epochs is 0; it should be greater than 0."),
        ("epochs", True, "epochs is True; it should be a whole number."),
        ("epocs", 5, "epocs is unknown; did you mean epochs?"),
        ("positions", {"gain": -1}, "positions.gain is -1; it should be greater than 0"),
        ("object", {"scale": True}, "Probe.power and object.scale set the same gauge; choose one."),
    ],
)
def test_options_that_cannot_be_set_stay_as_they_were(name: str, value: Any, expected: str) -> None:
    engine = pm.RPIE(epochs=3, probe={"power": True})  # type: ignore[arg-type]
    before = engine.model_dump()
    assert refused(lambda: setattr(engine, name, value)).startswith(expected)
    assert engine.model_dump() == before
    engine.epochs = np.int64(7)  # type: ignore[assignment]
    assert engine.epochs == 7


def test_what_is_fixed_once_it_is_made() -> None:
    assert refused(lambda: setattr(ProbeOptions(), "modes", 3)).startswith("modes cannot be changed")
    scheduler = Scheduler(name="step", step_size=3)  # type: ignore[call-arg]
    assert refused(lambda: setattr(scheduler, "gama", 0.5)).startswith("StepLR has no option 'gama'")
