"""Functions on several ranks, as from a notebook: defined nowhere that another process could import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ptymesh as pm
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked

CELL = """
import ptymesh as pm

def reconstruct(path):
    recon = pm.Reconstruction(pm.load(path), precision="double", seed=1)
    for report in recon.run(pm.RPIE(epochs=2, batch=7)):
        print(report)
    return pm.world().rank, pm.world().size, recon.object

def fails():
    if pm.world().rank == 1:
        raise KeyError("of rank one")
    return 1
"""


@pytest.fixture
def cell() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(CELL, names)  # a notebook's cell
    return names


@pytest.mark.forked
def test_answers_of_all_ranks(cell: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(checked(kind="xray", views=20, window=32, seed=3), tmp_path / "scan.cxi")
    alone = cell["reconstruct"](str(tmp_path / "scan.cxi"))
    capsys.readouterr()
    found = pm.spawn(cell["reconstruct"], 2, str(tmp_path / "scan.cxi"), threads_per_rank=1)
    assert [answer[:2] for answer in found] == [(0, 2), (1, 2)] and alone[:2] == (0, 1)
    assert abs(found[1][2] - alone[2]).max() < 1e-12
    assert len(capsys.readouterr().out.splitlines()) == 2, "rank 0 is heard here"


@pytest.mark.forked
def test_a_rank_that_fails(cell: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PtymeshError, match="failed on 1 of 2 ranks; what they said is above"):
        pm.spawn(cell["fails"], 2)
    assert "KeyError: 'of rank one'" in capfd.readouterr().err


def test_refused(cell: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="ranks is 0"):
        pm.spawn(cell["fails"], 0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(PtymeshError, match="spawn was called on a rank"):
        pm.spawn(cell["fails"], 2)
