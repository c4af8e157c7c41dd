"""What a stage cannot do is said before it begins, and refusals name the stage."""

from __future__ import annotations

import re

import pytest

from ptymesh.engines import RPIE, Adam, Engine
from ptymesh.engines.remarks import naming_stage, remarks_on_stage
from ptymesh.errors import BadInput
from ptymesh.models.view_defocus import ViewDefocus
from ptymesh.recipe.schema import Recipe
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.simulate import simulate

POSITIVE = {"rise": 30, "start": 11}
WITHIN = {"positions": [-2, 2], "background": [0, None]}
SMOOTH = {"defocus": 3, "positions": 3}


@pytest.mark.parametrize(
    "engine, said",
    [
        (
            RPIE(epochs=20, constraints={"positivity": POSITIVE}),
            "stages.2.constraints.positivity rises until epoch 41 and ends in epoch 20, at a strength of 0.32 in place "
            "of 1; lower rise.",
        ),
        (
            RPIE(epochs=50, object={"phase": {"low": 0, "high": 1, "rise": 9, "strength": 0.5, "stop": 5}}),
            "stages.2.object.phase rises until epoch 10 and ends in epoch 5, at a strength of 0.25 in place of 0.5; "
            "lower rise.",
        ),
        (
            RPIE(epochs=20, positions={"start": 21}),
            "stages.2.positions starts in epoch 21, and the stage has 20: it does nothing; lower start, or raise "
            "epochs.",
        ),
        (
            Adam(epochs=5, fidelity="anscombe"),
            "stages.2.fidelity is anscombe, which is for counts, and the patterns are none: what it adds to them is of "
            "another size; set data.gain, or use amplitude.",
        ),
        (
            RPIE(epochs=20, positions={"start": 5}, constraints={"unknown_limits": {"limits": WITHIN}}),
            "stages.2.constraints.unknown_limits is of background, which the stage does not refine: it does nothing "
            "but to values that it begins with; refine them in the stage, or remove it.",
        ),
        (
            RPIE(epochs=20, unknowns={"defocus": True}, constraints={"unknown_smoothness": {"sigma": SMOOTH}}),
            "stages.2.constraints.unknown_smoothness is of positions, which the stage does not refine: it does nothing "
            "but to values that it begins with; refine them in the stage, or remove it.",
        ),
    ],
    ids=["rise", "rise and stop", "start", "fidelity", "limits", "smoothness"],
)
def test_what_a_stage_cannot_do_is_said(engine: Engine, said: str) -> None:
    assert remarks_on_stage(engine, 2, ViewDefocus.unknowns, are_counts=False) == [said]


@pytest.mark.parametrize(
    "engine",
    [
        RPIE(epochs=41, constraints={"positivity": POSITIVE}),
        RPIE(epochs=20, positions={"start": 20}, fidelity="poisson"),
        RPIE(epochs=1),
    ],
)
def test_what_a_stage_can_do_is_not(engine: Engine) -> None:
    assert remarks_on_stage(engine, 0, are_counts=False) == []
    assert remarks_on_stage(Adam(epochs=5, fidelity="anscombe"), 0, are_counts=True) == []


@pytest.mark.parametrize("noise", [True, False])
def test_a_run_says_it_once_to_whoever_starts_it(noise: bool, capsys: pytest.CaptureFixture[str]) -> None:
    recon = Reconstruction(simulate(views=9, window=16, noise=noise, seed=1).measurement)
    for _ in recon.run(RPIE(epochs=2, batch=4, fidelity="anscombe", constraints={"positivity": {"rise": 5}})):
        pass
    said = capsys.readouterr().err
    assert said.count("stages.0.constraints.positivity rises until epoch 6") == 1
    assert said.count("stages.0.fidelity is anscombe") == (0 if noise else 1)
    for _ in recon.run(RPIE(epochs=1, batch=4, constraints={"positivity": {"start": 2}})):
        pass
    assert "stages.1.constraints.positivity starts" in capsys.readouterr().err


@pytest.mark.parametrize(
    "stage, said",
    [
        (
            {"constraints": {"kr_threshold": 0.1}},
            "stages.0.constraints.kr_threshold is 0.1; it should be a group of keys (",
        ),
        ({"constraints": ["kr_threshold"]}, "stages.0.constraints is ['kr_threshold']; it should be a group of keys."),
        ({"models": {"aberrations": {"gain": 1}}}, "stages.0.models.aberrations.gain is unknown"),
        ({"positions": {"affine": []}}, "it should be true or false or a list of at least 1, not of 0."),
    ],
)
def test_recipes_are_refused_with_the_stage(stage: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        Recipe.parse({"data": {"path": "a.cxi"}, "stages": [{"engine": "rpie", **stage}]})


def test_a_scan_is_not_counted_twice() -> None:
    one, other = {"data": {"path": "a.cxi"}}, {"data": {"path": "b.cxi"}}
    assert len(Recipe.parse({"scans": [one, other]}).scans) == 2
    with pytest.raises(BadInput, match=re.escape("scans.2.data is that of scans.0, which would count its views twice")):
        Recipe.parse({"scans": [one, other, {**one, "shift_px": [0, 40]}]})


def test_refusals_name_the_stage() -> None:
    recon = Reconstruction(simulate(views=9, window=16, seed=1).measurement)
    with pytest.raises(BadInput, match=re.escape("stages.0.constraints.identical_slices acts between slices")):
        list(recon.run(RPIE(epochs=1, constraints={"identical_slices": True})))
    for said, named in (
        (
            "probe.power and object.scale do; use probe.modes",
            "stages.3.probe.power and stages.3.object.scale do; use probe.modes",
        ),
        ("remove stages.0.constraints.a", "remove stages.0.constraints.a"),
        ("optics.models, data.object.phase", "optics.models, data.object.phase"),
    ):
        with pytest.raises(BadInput, match=f"^{re.escape(named)}$"), naming_stage("stages.3"):
            raise BadInput(said)
