"""What is added to a candidate, and taken from it again."""

from __future__ import annotations

import pytest
import torch

from ptymesh.auto.candidates import Budget, Candidate, CandidateRunner, SearchContext
from ptymesh.auto.epoch_search import adam
from ptymesh.auto.hypotheses import GAINS, Hypotheses
from ptymesh.distributed.world import Solo
from ptymesh.recipe.schema import Recipe
from ptymesh.simulate import simulate

RPIE, ADAM = {"engine": "rpie", "batch": 8}, {**adam(0.01), "batch": 8}


@pytest.fixture(scope="module")
def runner() -> CandidateRunner:
    torch.set_num_threads(1)
    scan = simulate(kind="xray", views=24, window=32, seed=3).measurement
    return CandidateRunner(
        Recipe.parse({"data": {"path": "none.cxi"}}),
        scan,
        SearchContext(Solo(), lambda: False, Budget(1e6)),
        scan.views,
    )


@pytest.fixture(scope="module")
def begun(runner: CandidateRunner) -> Candidate:
    return runner.run(runner.start(RPIE), 2)


def by_name(hypotheses: Hypotheses, candidate: Candidate) -> dict[str, Candidate]:
    return {one.name: one.candidate for one in hypotheses.of(candidate)}


def test_what_is_kept_is_not_asked_again(runner: CandidateRunner, begun: Candidate) -> None:
    all_ = Hypotheses(runner.recipe, runner, ADAM)
    assert set(by_name(all_, begun)) == set(GAINS)
    for name, candidate in by_name(all_, begun).items():
        assert (name in by_name(all_, candidate)) == (name == "modes")  # of which there may be more
    assert by_name(all_, by_name(all_, begun)["modes"])["modes"].modes == 4
    assert by_name(all_, begun.using(ADAM))["background"].engine["unknowns"]["probe"] == ADAM["unknowns"]["probe"]


def test_modes_that_did_not_help(runner: CandidateRunner, begun: Candidate) -> None:
    all_ = Hypotheses(runner.recipe, runner, ADAM)
    two = runner.with_modes(begun, 2)
    all_.refused_modes.add(4)
    assert all_.more_modes(two) == 3
    all_.refused_modes.add(3)
    assert all_.more_modes(two) == 0
    told = Hypotheses(Recipe.parse({"data": {"path": "none.cxi"}, "probe": {"modes": 1}}), runner, ADAM)
    assert told.more_modes(begun) == 0


@pytest.mark.parametrize("name", list(GAINS))
def test_without_is_as_the_recipe_starts(runner: CandidateRunner, begun: Candidate, name: str) -> None:
    all_, start = Hypotheses(runner.recipe, runner, ADAM), runner.recon.state.estimate
    candidate = runner.run(by_name(all_, begun)[name], 2)
    back = all_.without(candidate, name, RPIE)
    assert back.engine == RPIE and not back.own and back.shared == {}
    same = {"modes": "probe", "background": "background", "positions": "positions", "intensity": "weights"}[name]
    assert back.estimate[same].shape == start[same].shape
    if name != "modes":
        changed, plain = candidate.estimate[same], back.estimate[same]
        assert torch.equal(plain, start[same]) and not torch.equal(changed, plain), name
    assert runner.run(back, 1).judged is not None
