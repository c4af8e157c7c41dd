"""The Python interface."""

from pathlib import Path

import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.distributed.world import World
from ptymesh.recipe.schema import DEFAULT_STAGES, Recipe
from ptymesh.simulate import simulate
from toy import relative


def scan() -> pm.Measurement:
    return simulate(kind="xray", views=40, window=32, seed=1).measurement


@pytest.mark.long
def test_the_default_goes_further_than_either_of_its_engines() -> None:
    """In the near field, where as many epochs of rPIE and of Adam, as these come, end at 9.6e-4 and 2.1e-4."""
    near = simulate(kind="near", views=200, window=64, seed=11).measurement
    ends = []
    epochs = sum(stage["epochs"] for stage in DEFAULT_STAGES)
    for stages in (None, pm.RPIE(epochs=epochs), pm.Adam(epochs=epochs)):
        ends.append(float(pm.reconstruct(near, stages).attrs["final_residual"]))
    assert ends[0] < 0.9 * min(ends[1:])


def test_one_call_and_the_loop_are_the_same(tmp_path: Path) -> None:
    result = pm.reconstruct(scan(), [pm.RPIE(epochs=3, batch=10), pm.LSQML(epochs=2, batch=10)], seed=4)
    recon = pm.Reconstruction(scan(), seed=4)
    reports = [*recon.run(pm.RPIE(epochs=3, batch=10)), *recon.run(pm.LSQML(batch=10), epochs=2)]
    assert [(r.engine, r.epoch) for r in reports] == [("rpie", n) for n in (1, 2, 3)] + [("lsqml", 1), ("lsqml", 2)]
    assert np.array_equal(recon.object, result.object) and np.array_equal(recon.probe, result.probe)
    assert "residual" in str(reports[0])
    result.save(tmp_path / "result.h5")
    loaded = pm.Result.load(tmp_path / "result.h5")
    assert loaded.attrs["engine"] == "rpie+lsqml" and loaded.attrs["final_residual"] == result.attrs["final_residual"]
    assert loaded.history["stage"].tolist() == [0, 0, 0, 1, 1]
    recon.plot(tmp_path / "object.png")
    assert (tmp_path / "object.png").stat().st_size > 1000


def test_the_default_is_that_of_a_recipe() -> None:
    stages = Recipe.parse({"data": {"path": "scan.cxi"}}).stages
    result = pm.reconstruct(scan())
    assert result.attrs["engine"] == "+".join(stage.name for stage in stages)
    assert len(result.history["epoch"]) == sum(stage.epochs for stage in stages)


def test_the_history_has_rates_where_a_scheduler_changes_them(tmp_path: Path) -> None:
    steps = pm.Adam(epochs=6, batch=20, lr=0.1)
    result = pm.reconstruct(scan(), [pm.RPIE(epochs=2), steps])
    cosine = 0.05 * (1 + np.cos(np.pi * np.arange(6) / 6))
    np.testing.assert_allclose(result.history["rate"], [0, 0, *cosine])
    assert result.convergence.startswith("at rest: the stage's schedule has lowered its learning rate to 6.7 % of")
    result.save(tmp_path / "result.h5")
    assert pm.Result.load(tmp_path / "result.h5").history["rate"].tolist() == result.history["rate"].tolist()
    assert "rate" not in pm.reconstruct(scan(), pm.Adam(epochs=2, scheduler=None)).history


def test_a_tilt_reaches_model_and_result() -> None:
    slices = {"slices": 2, "slice_spacing_m": 2e-5}
    straight, tilted = (
        pm.reconstruct(scan(), pm.RPIE(epochs=1), object={**slices, **tilt}) for tilt in ({}, {"tilt_rad": [1e-3, 0]})
    )
    assert straight.tilt_rad == (0, 0) and tilted.tilt_rad == (1e-3, 0)
    assert relative(tilted.object, straight.object) > 1e-4


def test_deterministic_is_no_option_any_more(capsys: pytest.CaptureFixture[str]) -> None:
    """Recipes of version 0.1 hold it."""
    for value in (True, False):
        recipe = Recipe.parse({"data": {"path": "scan.cxi"}, "deterministic": value})
        assert "deterministic" not in recipe.to_yaml()
        assert capsys.readouterr().err == (
            "ptymesh: deterministic is no option any more: every run ends with the same bits; leave it out.\n"
        )
    with pytest.raises(pm.BadInput, match="deterministic"):
        Recipe.parse({"data": {"path": "scan.cxi"}, "deterministic": "sometimes"})


def test_an_engine_s_memory_is_kept_between_calls() -> None:
    whole, parts = pm.Reconstruction(scan()), pm.Reconstruction(scan())
    for _ in whole.run(pm.Adam(epochs=6, batch=10, scheduler=None)):
        pass
    for _ in parts.run(pm.Adam(batch=10, scheduler=None), epochs=3):
        pass
    for _ in parts.run(pm.Adam(batch=10, scheduler=None), epochs=3):
        pass
    assert relative(parts.object, whole.object) < 1e-6


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pm.Reconstruction(scan(), probe={"mods": 2}), "probe.mods.*modes"),
        (lambda: pm.Reconstruction(scan(), object={"slices": 0}), "object.slices is 0"),
        (lambda: pm.Reconstruction(scan(), precision="half"), "'half'; give single, mixed or double"),  # type: ignore[arg-type]
        (lambda: pm.Reconstruction(scan(), device="abacus"), "abacus"),
        (lambda: pm.load("nowhere.cxi", crp=64), "data.crp.*crop"),
        (lambda: pm.load("nowhere.cxi"), "nowhere.cxi"),
        (lambda: next(pm.Reconstruction(scan()).run(pm.RPIE(), epochs=0)), "rpie.epochs is 0"),
    ],
)
def test_mistakes_get_one_sentence(make, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(pm.BadInput, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def script(world: World) -> np.ndarray:
    recon = pm.Reconstruction(scan(), precision="double", device=world)  # type: ignore[arg-type]
    for _ in recon.run(pm.RPIE(epochs=2, batch=10)):
        pass
    return recon.result().object


def test_on_ranks(ranks) -> None:  # type: ignore[no-untyped-def]
    alone = pm.Reconstruction(scan(), precision="double")
    for _ in alone.run(pm.RPIE(epochs=2, batch=10)):
        pass
    for got in ranks(2, script):
        assert relative(got, alone.object) < 1e-12


def test_two_reconstructions_live_side_by_side() -> None:
    single, double = pm.Reconstruction(scan()), pm.Reconstruction(scan(), precision="double")
    for _ in zip(single.run(pm.RPIE(epochs=2)), double.run(pm.RPIE(epochs=2)), strict=True):
        pass
    assert single.object.dtype == np.complex64 and double.object.dtype == np.complex128
    assert torch.get_default_dtype() == torch.float32
    for recon, precision in ((single, "single"), (double, "double")):
        alone = pm.reconstruct(scan(), pm.RPIE(epochs=2), precision=precision)
        assert np.array_equal(recon.object, alone.object)


def test_arrays_of_files_may_lie_column_by_column(tmp_path: Path) -> None:
    data, found = scan(), []
    assert data.probe is not None
    for order in ("C", "F"):
        path = tmp_path / f"{order}.npy"
        np.save(path, np.asarray(data.probe, order=order))  # type: ignore[arg-type]
        start = {"kind": "array", "path": str(path)}
        recon = pm.Reconstruction(data, probe={"start": start})
        assert recon.state.estimate.probe.is_contiguous()
        for _ in recon.run(pm.RPIE(epochs=2, batch=10)):
            pass
        found.append(recon.object)
    assert np.array_equal(*found)


def frozen(world: World | None = None, layout: str = "replicated") -> tuple[np.ndarray, float]:
    """Final residuals of each view and of all."""
    recon = pm.Reconstruction(scan(), device=world or "cpu", layout=layout, seed=1)
    for _ in recon.run(pm.RPIE(epochs=2, batch=10)):
        pass
    result = recon.result()
    assert result.residuals is not None
    return result.residuals, float(result.attrs["final_residual"])


@pytest.mark.parametrize("layout", ["replicated", "tiled"])
def test_the_residual_of_each_view_is_the_same_on_any_ranks(ranks, layout: str) -> None:  # type: ignore[no-untyped-def]
    each, of_all = frozen()
    counts = scan().patterns.read(np.arange(40)).sum(axis=(1, 2), dtype=float)
    assert each.shape == (40,) and (each * counts).sum() / counts.sum() == pytest.approx(of_all, rel=1e-9)
    for other, _ in ranks(3, frozen, layout):
        assert (other == each).all()
