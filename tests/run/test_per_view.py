"""What engines remember of views (exit waves): kept by their owner, checkpointed, read by any number of ranks."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ptymesh.distributed.world import Solo, World
from ptymesh.engines import AP, DM, RAAR, RPIE, Engine
from ptymesh.errors import Interrupted
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.run.loop import Loop
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.run.state import RunState
from toy import make, relative


def stages() -> list[Engine]:
    """Positions move and are anchored anew, gauges are set, and one stage follows another."""
    return [
        RAAR(epochs=4, positions=True, probe={"centre": True, "power": True}, object={"ramp": True}),
        DM(epochs=3),
        AP(epochs=2),
    ]


def fresh() -> RunState:
    """Anchors of some views are two pixels off, and will be chosen anew."""
    start = make(views=25, modes=2).start(position_error=0.5)
    start.anchors[start.anchors < 30] += 2
    return RunState(start)


def bits(state: RunState) -> dict[str, np.ndarray]:
    e = state.estimate
    values = {name: getattr(e, name).numpy() for name in ("object", "probe", "positions", "anchors")}
    return {**values, "loss": np.array(state.history["loss"])}


def undisturbed(world: World) -> dict[str, np.ndarray]:
    state = fresh()
    Loop(make(views=25, modes=2).problem(world), state, stages(), seed=3).run()
    return bits(state)


def broken(world: World, folder: str, steps: int) -> int:
    """Stops after so many steps and writes a checkpoint; returns how many rows of waves this rank held."""
    problem, state, asked = make(views=25, modes=2).problem(world), fresh(), iter(range(1000))
    loop = Loop(
        problem,
        state,
        stages(),
        seed=3,
        stop=lambda: next(asked) == steps - 1,
        save=lambda: state.save(Path(folder), problem, {}),
    )
    with pytest.raises(Interrupted):
        loop.run()
    return sum(len(rows) for rows in state.per_view[state.stage].values())


def resumed(world: World, folder: str) -> dict[str, np.ndarray]:
    problem = make(views=25, modes=2).problem(world)
    state = RunState.load(checkpoint.load(Path(folder)), problem)
    Loop(problem, state, stages(), seed=3).run()
    return bits(state)


@pytest.mark.sample(3)
@pytest.mark.parametrize("steps", [1, 3, 4, 6, 8])
def test_resumed_runs_end_with_the_same_bits(tmp_path: Path, steps: int) -> None:
    """First step, middle, last of a stage, and in stages that follow."""
    broken(Solo(), str(tmp_path), steps)
    expected, got = undisturbed(Solo()), resumed(Solo(), str(tmp_path))
    for name, value in expected.items():
        assert np.array_equal(got[name], value), name


def test_resumed_runs_end_with_the_same_bits_on_ranks(ranks, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    held = ranks(3, broken, str(tmp_path), 3)
    assert sum(held) == 2 * 25 and max(held) <= 2 * 9  # RAAR keeps two waves a view, each with its owner alone
    for expected, got in zip(ranks(3, undisturbed), ranks(3, resumed, str(tmp_path)), strict=True):
        for name, value in expected.items():
            assert np.array_equal(got[name], value), name


@pytest.mark.sample(2)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_another_number_of_ranks_goes_on_with_the_same_answer(ranks, tmp_path: Path, size: int) -> None:  # type: ignore[no-untyped-def]
    ranks(3, broken, str(tmp_path), 3)
    expected = undisturbed(Solo())
    assert not np.array_equal(expected["anchors"], fresh().estimate.anchors.numpy())  # some windows were cut anew
    for got in ranks(size, resumed, str(tmp_path)):
        for name in ("object", "probe", "positions"):
            assert relative(got[name], expected[name]) < 1e-12
        assert np.array_equal(got["anchors"], expected["anchors"])


def test_what_follows_from_the_estimate_is_not_in_the_checkpoint(tmp_path: Path) -> None:
    broken(Solo(), str(tmp_path), 8)  # in AP
    assert not [name for name in checkpoint.load(tmp_path).per_view if name.startswith("engine")]


def test_an_engine_used_again_goes_on_with_its_waves_until_another_has_moved_the_estimate() -> None:
    scan = make(views=25).measurement

    def after(*runs: Engine) -> torch.Tensor:
        recon = Reconstruction(scan, device="cpu", seed=1, precision="double")
        for engine in runs:
            for _ in recon.run(engine):
                pass
        return recon.state.estimate.object

    assert torch.equal(after(DM(epochs=2), DM(epochs=2)), after(DM(epochs=4)))
    between = RPIE(epochs=1, batch=5, gamma_object=1e-9, gamma_probe=1e-9)
    assert relative(after(DM(epochs=2), between, DM(epochs=2)), after(DM(epochs=4))) > 1e-3
