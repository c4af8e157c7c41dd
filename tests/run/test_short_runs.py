"""Short runs by which two recipes are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptymesh.engines import RPIE
from ptymesh.recipe.schema import Recipe
from ptymesh.run.trials.short_runs import judge_short_run
from ptymesh.simulate import simulate


def test_nothing_is_said_of_the_data_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Whoever compares recipes has said what there is to say of the scan and of the pieces of its model."""
    recipe = Recipe.parse(
        {
            "data": {"path": str(tmp_path / "scan.cxi")},
            "optics": {"changing_object": True},
            "stages": [{"engine": "rpie", "epochs": 1, "unknowns": {"object_change": True}}],
        }
    )
    stage = RPIE(epochs=1, batch=10, unknowns={"object_change": True})
    judged = judge_short_run(simulate(views=40, window=32, seed=1).measurement, recipe, stage, 0.1)
    assert 0 < judged.residual < 2
    assert capfd.readouterr() == ("", "")
