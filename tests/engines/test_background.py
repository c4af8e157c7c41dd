"""A background that engines of revised waves find: slopes, ranks, a run that is stopped, and what it is good for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.compare import compare_results
from ptymesh.engines import ENGINES, sweeping
from ptymesh.errors import BadInput
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.physics import fidelity
from ptymesh.physics.fidelity import FIDELITIES
from ptymesh.physics.model import power
from ptymesh.problem import Batch
from ptymesh.simulate import simulate
from stopped_runs import run_to_end_or_stop
from toy import make, share


@pytest.mark.parametrize("kind", FIDELITIES)
def test_slopes_and_norms(kind: Any) -> None:
    """Half of the loss's derivative, against central differences, and half of its second one at y = I."""
    toy = make(views=6, background=3.0)
    toy.model = replace(toy.model, fidelity=kind)
    problem, e = toy.problem(), toy.start()
    e.background += 1
    problem.begin_epoch(e)
    batch = Batch(np.array([3]), pieces=frozenset({"background"}))
    problem.gradients(e, batch)
    along, norm = sweeping.background_terms(problem, e, batch)
    (chunk,) = problem.loader.chunks(e, batch.views)
    intermediates = problem.evaluator.forward(e, chunk)
    S = power(problem.evaluator.detect(chunk, intermediates.exit))
    direction, ends = torch.rand(24, 28, dtype=torch.float64), []
    for sign in (1, -1):
        data = replace(chunk.data, background=e.background + sign * 1e-4 * direction)
        ends.append(fidelity.value(kind, S, data))
    assert torch.allclose((along * direction).sum(), -(ends[0] - ends[1]) / 4e-4, rtol=1e-3)
    lit = S.mean() * 1e-3 < S  # fainter ones are raised
    assert lit.float().mean() > 0.5
    assert torch.allclose(norm[lit[0]], fidelity.norm(kind, S, chunk.data)[lit] / 2)


@pytest.mark.parametrize("engine", ["rpie", "lsqml"])
def test_it_is_found(engine: str) -> None:
    """And the object comes more than twice as close to the truth as without it."""
    made = simulate(views=49, window=32, photons_per_view=1e6, background_counts=20, seed=2)
    measurement, errors = replace(made.measurement, background=None), []
    for unknowns in ({}, {"background": True}):
        recon = pm.Reconstruction(measurement, probe_modes=1, seed=1, say=lambda _: None)
        list(recon.run({"engine": engine, "epochs": 20, "batch": 16, "unknowns": unknowns}))
        errors.append(compare_results(recon.result(), made.truth).nrmse)
    background = recon.state.estimate.background
    assert errors[1] < 0.4 * errors[0], errors
    assert float(background.min()) >= 0 and float(background.median()) == pytest.approx(20, rel=0.1)


def stepped(world: Any, layout: str, engine: str) -> list[np.ndarray]:
    """Object, probe and background after four batches."""
    toy = make(background=2.0)
    problem = toy.problem(world, layout)
    e = share(toy.start(), problem)
    e.background.zero_()
    made = ENGINES[engine](unknowns={"background": True})
    problem.begin_epoch(e)
    made.before_epoch(problem, e)
    for number in range(4):
        gains = made.due_unknowns(1)
        batch = Batch(np.arange(len(e.positions))[number::4], pieces=frozenset(gains))
        made.step(problem, e, batch)
        sweeping.after_batch(problem, e, batch, gains)
    whole = problem.layout.gather_whole(e.object, e)
    return [x.numpy().copy() for x in (whole, e.probe, e.background)]


@pytest.mark.parametrize("engine", ["rpie", "lsqml"])
def test_ranks_and_layouts_have_the_same_bits(ranks, engine: str) -> None:  # type: ignore[no-untyped-def]
    wanted = ranks(1, stepped, "replicated", engine)[0]
    assert wanted[2].max() > 0.5
    for layout in ("replicated", "tiled"):
        for found in ranks(3, stepped, layout, engine):
            assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True)), layout


def test_a_stopped_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    scan = make(background=2.0).measurement

    def recon(saved: checkpoint.Checkpoint | None = None) -> pm.Reconstruction:
        made = pm.Reconstruction(scan, probe_modes=1, seed=1, saved=saved)
        made.stages = [pm.RPIE(epochs=3, batch=10, unknowns={"background": {"start": 2}})]
        return made

    whole, stopped = recon(), recon()
    assert run_to_end_or_stop(whole, {})
    assert not run_to_end_or_stop(stopped, {"folder": tmp_path / "checkpoint", "stop": 6})
    resumed = recon(checkpoint.load(tmp_path / "checkpoint"))
    assert run_to_end_or_stop(resumed, {})
    for name in ("object", "probe", "background"):
        assert torch.equal(resumed.state.estimate[name], whole.state.estimate[name]), name
    assert float(whole.state.estimate.background.max()) > 0


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput, match="no piece of the model declares; there are background"):
        pm.RPIE.parse({"unknowns": {"backgroud": True}}, "stages.0")
