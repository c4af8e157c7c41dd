"""What a trial is worth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptymesh as pm
from ptymesh.distributed.world import Solo
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.recipe.schema import Recipe
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from ptymesh.tune import objectives
from ptymesh.tune.options import Contrast, FourierRings, Function, Goal, HeldOut
from toy import make as make_toy

EPOCHS = 4


@pytest.fixture
def recipe(scan: Path) -> Recipe:
    stage = {"engine": "rpie", "epochs": EPOCHS, "batch": 20}
    return Recipe.parse({"data": {"path": str(scan)}, "stages": [stage], "hold_out": 0.2})


def values(goal: Goal, recipe: Recipe) -> list[tuple[int, float]]:
    return list(objectives.values(goal, recipe, Solo(), lambda: False))


def test_held_out(recipe: Recipe) -> None:
    found = values(HeldOut(), recipe)
    assert [epoch for epoch, _ in found] == [1, 2, 3, 4]
    recon = pm.Reconstruction(pm.load(recipe.data.path), device="cpu")
    recon.stages = [stage.model_copy(deep=True) for stage in recipe.stages]
    held = [report.held_out for report in recon.loop(hold_out=0.2).epochs()]
    assert [value for _, value in found] == held, "as an ordinary run with these views held out"
    assert [epoch for epoch, _ in values(HeldOut(every=3), recipe)] == [3, 4]


def test_what_a_trial_refines_for_each_view_is_fitted_in_held_out_views(tmp_path: Path) -> None:
    """Held-out views whose positions nobody refines are the worse, the better all others are."""
    scan = tmp_path / "moved.cxi"
    write(checked(kind="xray", views=40, window=32, position_error_px=1.0, seed=3), scan)
    stage = {"engine": "rpie", "epochs": 12, "batch": 8, "positions": True}
    moving = Recipe.parse({"data": {"path": str(scan)}, "stages": [stage], "hold_out": 0.2})
    ((_, refined),) = values(HeldOut(every=99), moving)
    recon = pm.Reconstruction(pm.load(scan), device="cpu")
    recon.stages = [one.model_copy(deep=True) for one in moving.stages]
    loop = recon.loop(hold_out=0.2)
    *_, last = loop.epochs()
    assert refined == last.held_out, "the loop judges in the same way"
    assert refined < 0.9 * recon.problem.residual(recon.state.estimate, loop.held_out)[0]


def test_held_out_views_do_not_depend_on_the_orientation(recipe: Recipe) -> None:
    from ptymesh.run.session import reconstruction

    held = []
    for angle in (0.0, 37.0):
        turned = recipe.model_copy(update={"positions": recipe.positions.model_copy(update={"rotation_deg": angle})})
        held.append(reconstruction(turned, Solo()).loop(hold_out=0.2).held_out)
    assert np.array_equal(*held)


def test_ring_correlation_of_halves(recipe: Recipe) -> None:
    found = dict(values(FourierRings(every=2), recipe))
    assert list(found) == [2, 4] and 0 < found[2] <= 1
    worse = recipe.model_copy(update={"stages": [recipe.stages[0].model_copy(update={"gamma_object": 1e-3})]})
    assert dict(values(FourierRings(), worse))[4] < found[4], "an object that hardly moves shows only noise"
    wave = np.exp(1j * np.random.default_rng(0).random((1, 40, 40)))
    positions = np.array([[0.0, 0.0], [30.0, 30.0], [0.0, 30.0], [30.0, 0.0], [15.0, 15.0]])
    seen = objectives.CurrentResult(wave, np.ones((1, 8, 8), complex), positions, None, None)
    assert objectives.ring_mean(seen, seen) == pytest.approx(1, abs=1e-6)


def test_contrast_is_free_of_what_ptychography_leaves_open() -> None:
    toy = make_toy()
    obj, probe = toy.truth.object.numpy(), toy.truth.probe.numpy()
    y, x = np.indices(obj.shape[1:])
    seen = objectives.CurrentResult(obj, probe, toy.measurement.positions, None, None)
    plain = objectives.object_contrast(seen)
    assert 0.2 < plain < 1
    seen.object = 3j * obj * np.exp(0.02j * y - 0.01j * x)
    assert objectives.object_contrast(seen) == pytest.approx(plain, rel=0.02)
    seen.object = np.ones_like(obj)
    assert objectives.object_contrast(seen) == pytest.approx(0, abs=1e-6)
    seen.object = np.exp(0.3j * np.angle(obj))
    assert objectives.object_contrast(seen) < 0.5 * plain, "a weaker object"


def test_contrast_of_a_run(recipe: Recipe) -> None:
    found = values(Contrast(every=1), recipe)
    assert [epoch for epoch, _ in found] == [1, 2, 3, 4] and found[0][1] < found[-1][1]


def test_a_function(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def spread(result):\n    return abs(result.object).std()\n\ndef word(result):\n    return 'x'\n\nnumber = 3\n"
    )
    goal = Function(kind="function", call=f"{tmp_path / 'mine.py'}:spread", direction="maximize")
    assert [epoch for epoch, _ in values(goal, recipe)] == [EPOCHS], "only at the end, unless asked for"
    assert [epoch for epoch, _ in values(goal.model_copy(update={"every": 2}), recipe)] == [2, 4]
    assert objectives.direction(goal) == "maximize"
    with pytest.raises(PtymeshError, match="The objective word returned 'x'"):
        values(Function(kind="function", call=f"{tmp_path / 'mine.py'}:word"), recipe)
    for call, said in {
        "os.path:nothing": "cannot be imported",
        "no.such.module:f": "cannot be imported",
        f"{tmp_path / 'gone.py'}:f": "cannot be imported",
        f"{tmp_path / 'mine.py'}:number": "is no function",
    }.items():
        with pytest.raises(BadInput, match=said):
            objectives.metric_entry(call)
    assert objectives.metric_entry("os.path:join").__name__ == "join"


def test_no_numbers_from_coarse_pixels(recipe: Recipe) -> None:
    coarse = recipe.stages[0].model_copy(update={"coarsen": 2, "epochs": 2})
    both = recipe.model_copy(update={"stages": [coarse, recipe.stages[0]]})
    assert [epoch for epoch, _ in values(Contrast(), both)] == [3, 4, 5, 6]


def of_ranks(world: Any, recipe: Recipe, kind: str) -> list[tuple[int, float]]:
    goals: dict[str, Callable[[], Goal]] = {"held_out": HeldOut, "frc": FourierRings, "contrast": Contrast}
    return list(objectives.values(goals[kind](), recipe, world, lambda: False))


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["held_out", "frc", "contrast"])
def test_several_ranks_get_the_same_numbers(ranks: Any, recipe: Recipe, kind: str) -> None:
    double = recipe.model_copy(update={"precision": "double"})
    ((*alone,),) = ranks(1, of_ranks, double, kind)
    for found in ranks(2, of_ranks, double, kind):
        assert np.allclose(found, alone, rtol=1e-6)


def test_directions() -> None:
    wanted = {HeldOut(): "minimize", FourierRings(): "maximize", Contrast(): "maximize"}
    for goal, direction in wanted.items():
        assert objectives.direction(goal) == direction
