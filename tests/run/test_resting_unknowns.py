"""Engines that cannot move what an operator declares say so before the first epoch, and do not leave it in silence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from beam_tilt import BeamTilt
from ptymesh.distributed.world import Solo
from ptymesh.engines import ENGINES, Adam, Engine
from ptymesh.errors import BadInput
from ptymesh.models import OPTICS
from ptymesh.physics.operators import Placed
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import make

FIXED = [name for name, engine in ENGINES.items() if not engine.moves_optics]


def loop(stages: list[Engine], shift: float = 0.0) -> Loop:
    toy = make(views=6)
    toy.model = replace(
        toy.model, operators=(Placed.of(BeamTilt(), toy.measurement.geometry, torch.complex128, "cpu"),)
    )
    state = RunState(replace(toy.truth, others={"shift": torch.full((6, 2), shift, dtype=torch.float64)}))
    return Loop(toy.problem(), state, stages)


@pytest.mark.parametrize("name", FIXED)
def test_an_engine_that_cannot_move_it_says_so(name: str) -> None:
    engine = ENGINES[name]()
    with pytest.raises(BadInput) as refused:
        loop([engine])
    said = str(refused.value)
    if not engine.with_optics:
        assert said == f"{name} does not know optics.beam_tilt; use another engine, such as lsqml or adam."
        return
    remedy = "unknowns: {shift: true}"
    how = f"{remedy} to the stage" if engine.moves_named_unknowns else f"a stage of rpie, lsqml or adam with {remedy}"
    assert said == (
        f"shift of optics.beam_tilt would stay as it starts; add {how}, or say what it is: optics: {{beam_tilt: "
        "{start: {shift: 0}}}."
    )


def test_another_rank_may_hold_what_was_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank without views has all rows at their start, and must not refuse by itself."""
    monkeypatch.setattr(Solo, "agree", lambda self, flag: True)
    loop([ENGINES["rpie"]()])


def test_where_it_has_been_moved_or_will_be_all_engines_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OPTICS, "_own", {**OPTICS._own, BeamTilt.name: BeamTilt})
    moving = Adam(unknowns={"object": True, "shift": True})
    for name in FIXED:
        engine = ENGINES[name]()
        if engine.with_optics:
            loop([engine], shift=0.1)
            loop([engine, moving])
            loop([moving, engine])
    loop([Adam()])  # which names what moves
    loop([ENGINES["lbfgs"]()])
