"""What is added to a track, and taken from it again."""

from __future__ import annotations

import pytest
import torch

from ptymesh.auto.hypotheses import GAINS, Hypotheses
from ptymesh.auto.length import adam
from ptymesh.auto.race import Arena, Budget, Terms, Track
from ptymesh.distributed.world import Solo
from ptymesh.run.recipe import Recipe
from ptymesh.simulate import simulate

RPIE, ADAM = {"engine": "rpie", "batch": 8}, {**adam(0.01), "batch": 8}


@pytest.fixture(scope="module")
def arena() -> Arena:
    torch.set_num_threads(1)
    scan = simulate(kind="xray", views=24, window=32, seed=3).measurement
    return Arena(
        Recipe.parse({"data": {"path": "none.cxi"}}), scan, Terms(Solo(), lambda: False, Budget(1e6)), scan.views
    )


@pytest.fixture(scope="module")
def begun(arena: Arena) -> Track:
    return arena.run(arena.start(RPIE), 2)


def by_name(hypotheses: Hypotheses, track: Track) -> dict[str, Track]:
    return {one.name: one.track for one in hypotheses.of(track)}


def test_what_is_kept_is_not_asked_again(arena: Arena, begun: Track) -> None:
    all_ = Hypotheses(arena.recipe, arena, ADAM)
    assert set(by_name(all_, begun)) == set(GAINS)
    for name, track in by_name(all_, begun).items():
        assert (name in by_name(all_, track)) == (name == "modes")  # of which there may be more
    assert by_name(all_, by_name(all_, begun)["modes"])["modes"].modes == 4
    assert by_name(all_, begun.using(ADAM))["background"].engine["unknowns"]["probe"] == ADAM["unknowns"]["probe"]


def test_modes_that_did_not_help(arena: Arena, begun: Track) -> None:
    all_ = Hypotheses(arena.recipe, arena, ADAM)
    two = arena.with_modes(begun, 2)
    all_.refused_modes.add(4)
    assert all_.more_modes(two) == 3
    all_.refused_modes.add(3)
    assert all_.more_modes(two) == 0
    told = Hypotheses(Recipe.parse({"data": {"path": "none.cxi"}, "probe": {"modes": 1}}), arena, ADAM)
    assert told.more_modes(begun) == 0


@pytest.mark.parametrize("name", list(GAINS))
def test_without_is_as_the_recipe_starts(arena: Arena, begun: Track, name: str) -> None:
    all_, start = Hypotheses(arena.recipe, arena, ADAM), arena.recon.state.estimate
    track = arena.run(by_name(all_, begun)[name], 2)
    back = all_.without(track, name, RPIE)
    assert back.engine == RPIE and not back.own and back.shared == {}
    same = {"modes": "probe", "background": "background", "positions": "positions", "intensity": "weights"}[name]
    assert back.estimate[same].shape == start[same].shape
    if name != "modes":
        changed, plain = track.estimate[same], back.estimate[same]
        assert torch.equal(plain, start[same]) and not torch.equal(changed, plain), name
    assert arena.run(back, 1).judged is not None
