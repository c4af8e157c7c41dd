"""Coarse to fine."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ptymesh.distributed.world import Solo, World
from ptymesh.engines import RPIE
from ptymesh.errors import BadInput, Interrupted
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.physics.resample import coarser, finer
from ptymesh.run import resolution
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import Toy, make, relative

STAGES = [{"epochs": 3, "batch": 10, "coarsen": 2, "positions": True}, {"epochs": 2, "batch": 10}]


def toy() -> Toy:
    return make(window=(32, 32), views=40, modes=2, background=0.5)


def bits(state: RunState) -> dict[str, np.ndarray]:
    e = state.estimate
    return {name: getattr(e, name).numpy() for name in ("object", "probe", "positions", "background")}


def run(world: World) -> dict[str, np.ndarray]:
    made = toy()
    state = RunState(made.start())
    Loop(made.problem(world), state, [RPIE(**s) for s in STAGES], seed=1).run()
    return bits(state)


def test_resampling_is_an_adjoint_pair_and_keeps_coarse_fields() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(2, 16, 24, generator=rng, dtype=torch.complex128)
    y = torch.randn(2, 8, 12, generator=rng, dtype=torch.complex128)
    assert complex((coarser(x, 2).conj() * y).sum()) == pytest.approx(complex((x.conj() * finer(y, 2)).sum()))
    assert torch.allclose(coarser(finer(y, 2), 2), y)
    assert torch.allclose(coarser(torch.ones(16, 16, dtype=torch.complex128), 2), torch.full((8, 8), 2 + 0j).to(y))


def test_the_coarse_model_predicts_the_inner_detector() -> None:
    """A smooth object and probe: the coarse problem's residual is as small as the fine one's (it is exact but for the
    object's detail beyond the coarse band)."""
    made = toy()
    engine = RPIE(coarsen=2)
    fine = made.problem()
    problem = resolution.coarse_problem(fine, 2, made.truth)
    coarse = resolution.coarsen_estimate(made.truth, engine, fine, problem)
    assert problem.window == (16, 16) and coarse.probe.shape == (2, 16, 16)
    assert problem.residual(coarse)[0] < 0.01
    assert made.problem().residual(made.start())[0] > 0.1


def test_there_and_back_keeps_the_probe_and_the_frame() -> None:
    made = toy()
    engine = RPIE(coarsen=2)
    fine = made.problem()
    problem = resolution.coarse_problem(fine, 2, made.truth)
    back = resolution.refine_estimate(
        resolution.coarsen_estimate(made.truth, engine, fine, problem), engine, problem, fine
    )
    assert torch.allclose(back.probe, made.truth.probe) and torch.allclose(back.positions, made.truth.positions)
    assert torch.equal(back.background, made.truth.background)
    assert tuple(back.object.shape) == (1, 128, 128)  # whole coarse blocks


def test_a_coarse_stage_helps_the_fine_one() -> None:
    made = toy()
    state = RunState(made.start())
    Loop(made.problem(), state, [RPIE(**s) for s in STAGES], seed=1).run()
    alone = RunState(made.start())
    Loop(made.problem(), alone, [RPIE(**STAGES[1])], seed=1).run()
    assert made.problem().residual(state.estimate)[0] < 0.7 * made.problem().residual(alone.estimate)[0]


@pytest.mark.sample(2)
@pytest.mark.parametrize("batch", [1, 6, 12, 13])
def test_resumed_in_or_after_a_coarse_stage(tmp_path: Path, batch: int) -> None:
    expected, made = run(Solo()), toy()
    problem, state, left = made.problem(), RunState(made.start()), [batch]

    def stop() -> bool:
        left[0] -= 1
        return left[0] == 0

    stages = [RPIE(**s) for s in STAGES]
    with pytest.raises(Interrupted):
        Loop(problem, state, stages, seed=1, stop=stop, save=lambda: state.save(tmp_path, problem, {})).run()
    problem = toy().problem()
    state = RunState.load(checkpoint.load(tmp_path), problem)
    Loop(problem, state, [RPIE(**s) for s in STAGES], seed=1).run()
    for name, value in bits(state).items():
        assert np.array_equal(value, expected[name]), name


def test_on_ranks(ranks) -> None:  # type: ignore[no-untyped-def]
    expected = run(Solo())
    for got in ranks(3, run):
        for name in expected:
            assert relative(got[name], expected[name]) < 1e-12


def test_refused_where_it_has_no_meaning() -> None:
    with pytest.raises(BadInput, match="near-field"):
        resolution.check_coarsening(RPIE(coarsen=2), make(propagation="fresnel", window=(32, 32)).problem())
    with pytest.raises(BadInput, match="8 divides, not 28"):
        resolution.check_coarsening(RPIE(coarsen=4), make(window=(24, 28)).problem())
