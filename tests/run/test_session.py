"""Ranks that decide alike, and a folder that is looked after until the end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ptymesh.distributed.layouts.tiled import Tiled
from ptymesh.distributed.world import World
from ptymesh.engines import RPIE
from ptymesh.errors import PtymeshError
from ptymesh.recipe.schema import load_recipe
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.run.session import _refuse_disagreement, _stage_balances, run_recipe
from ptymesh.run.simulate_file import write
from ptymesh.run_folder import lock
from ptymesh.run_folder.reports import Callback, EpochReport
from ptymesh.simulate import checked
from toy import make

RECIPE = "{data: {path: scan.cxi}, stages: [{engine: rpie, epochs: 1, batch: 20}], output: {figures: false}}"


def disagree(world: World) -> str:
    _refuse_disagreement(world, True, Path("out"))
    try:
        _refuse_disagreement(world, world.rank == 0, Path("out"))
    except PtymeshError as error:
        return str(error)
    return "agreed"


def test_ranks_that_see_different_files_do_not_begin(ranks) -> None:  # type: ignore[no-untyped-def]
    first, second = ranks(2, disagree)
    assert first == second and first.startswith("Rank 1 of 2 would start anew, and the others go on from the check")


def test_the_balance_of_each_stage_is_that_of_its_owners() -> None:
    recon = Reconstruction(make(views=101).measurement, device="cpu", layout="replicated")
    recon.stages = [RPIE(batch=20), RPIE(batch=20, order="compact"), RPIE(batch=None)]
    recipe: Any = SimpleNamespace(hold_out=0.1, seed=3)
    recon.world.size = 2
    spread, compact, whole = _stage_balances(recipe, recon)
    assert 0.9 < spread <= 1 and 0.9 < compact <= 1 and whole > 0.98
    recon.problem.layout = Tiled(recon.world, recon.scan.positions, recon.scan.window)
    assert _stage_balances(recipe, recon)[1] < 0.8, "tiles keep their views, and these batches lie in one or the other"


class Thief(Callback):
    """Another run takes the folder after the last batch."""

    def epoch(self, report: EpochReport) -> None:
        """Between that batch and what is written then."""
        Path("out", lock.NAME).unlink()
        self.lease = lock.take_folder(Path("out").absolute())
        self.left = contents(Path("out"))


def contents(folder: Path) -> dict[str, int]:
    """Return when each file of a folder was changed, in nanoseconds."""
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_a_run_whose_folder_was_taken_after_its_last_batch_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(checked(kind="xray", views=20, window=32, seed=3), Path("scan.cxi"))
    Path("recipe.yaml").write_text(RECIPE)
    recipe = load_recipe(Path("recipe.yaml"), out=Path("out"))
    thief = Thief()
    with pytest.raises(PtymeshError, match="was taken by another run"):
        run_recipe(recipe, device="cpu", callbacks=[thief])
    assert contents(Path("out")) == thief.left and set(thief.left) <= {lock.NAME, "preview.h5"}
