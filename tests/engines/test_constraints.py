"""Upkeep: gauges leave intensities alone, constraints hold, refinement finds positions, schedules are kept."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ptymesh.engines import MPIE, RPIE, constraints, positions
from ptymesh.engines.constraints import Limits, Smooth, Support
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.physics.propagate import fft
from ptymesh.problem import Batch, ViewUpdates
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.schedule import Schedule
from ptymesh.simulate import simulate
from toy import Toy, make, relative


def copy(e: Estimate) -> Estimate:
    tensors = {k: v.clone() for k, v in vars(e).items() if isinstance(v, torch.Tensor)}
    return replace(e, **tensors)


def intensities(toy: Toy, e: Estimate) -> torch.Tensor:
    every = torch.arange(len(e.positions))
    return toy.model.intensity(e.object, e.probe, e.anchors, e.fractions(every), e.weights, e.background)


def off_axis(toy: Toy) -> Estimate:
    """The truth with its probe moved off the axis, a ramp and a scale between object and probe."""
    e = copy(toy.truth)
    e.probe.copy_(torch.roll(e.probe, (3, -2), (-2, -1)))
    constraints.rescale(e, 1.7)
    return e


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize(
    "upkeep",
    [
        dict(object={"ramp": True}),
        dict(object={"scale": True}),
        dict(probe={"power": True}),
        dict(probe={"power": {"counts": 5.0}}),
        dict(probe={"centre": True}),
        dict(probe={"orthogonalise": True}),
    ],
    ids=str,
)
def test_gauges_do_not_change_intensities(upkeep: dict, slices: int) -> None:
    if slices > 1 and "ramp" in upkeep.get("object", {}):
        pytest.skip("a ramp between slices is a shift of the lower ones: not an ambiguity of several slices")
    toy = make(modes=2, slices=slices)
    e = off_axis(toy)
    before = intensities(toy, e)
    changed = copy(e)
    RPIE(**upkeep).apply_constraints(toy.problem(), changed, 1)
    # the window's Nyquist frequency and the wrap of the probe's tails limit shifts and ramps
    assert relative(intensities(toy, changed), before) < 3e-3
    moved = relative(changed.probe, e.probe) > 1e-6
    assert moved or upkeep == dict(probe={"power": True})


def test_centre_puts_the_probe_on_the_axis() -> None:
    toy = make()
    e = off_axis(toy)
    constraints.centre(e)
    intensity = (e.probe.abs() ** 2).sum(0)
    for axis, n in enumerate(intensity.shape):
        r = torch.arange(n, dtype=torch.float64)
        assert float((intensity.sum(1 - axis) * r).sum() / intensity.sum()) == pytest.approx(n // 2, abs=0.05)
    assert torch.allclose(e.positions - e.nominal, toy.truth.positions - toy.truth.nominal)


def test_centre_moves_by_whole_pixels_where_fractions_do_not_act() -> None:
    toy = make(subpixel="none")
    # nothing of the probe wraps around the window when it moves, so that the far field is exactly the same
    toy.truth.probe *= constraints.disc(toy.truth.window, Support(radius=0.5, edge=0), toy.truth.probe, centred=True)
    e = off_axis(toy)
    before = intensities(toy, e)
    RPIE(probe={"centre": True}).apply_constraints(toy.problem(), e, 1)
    assert relative(intensities(toy, e), before) < 1e-12
    assert (e.anchors != toy.truth.anchors).all() and torch.equal(e.anchors, torch.floor(e.positions + 0.5).long())


def test_ramp_and_scale_are_removed() -> None:
    toy = make(views=60)
    e = copy(toy.truth)
    y, x = torch.meshgrid(torch.arange(96.0), torch.arange(96.0), indexing="ij")
    e.object *= torch.exp(1j * (0.05 * y - 0.02 * x)) * 3
    where = constraints.illuminated_mask(toy.problem(), e)
    RPIE(object={"ramp": True, "scale": True}).apply_constraints(toy.problem(), e, 1)
    assert float(e.object.abs()[0, where].mean()) == pytest.approx(1, rel=0.02)
    for axis in (0, 1):
        step = torch.angle(e.object[0].narrow(axis, 0, 95).conj() * e.object[0].narrow(axis, 1, 95))
        assert abs(float(step[:95, :95][where[:95, :95]].mean())) < 0.01


def test_power_is_held_at_its_first_value_and_at_a_given_one() -> None:
    toy = make(modes=2)
    problem, e, engine = toy.problem(), copy(toy.truth), RPIE(probe={"power": True})
    first = float((e.probe.abs() ** 2).sum())
    engine.apply_constraints(problem, e, 1)
    constraints.rescale(e, 0.5)
    engine.apply_constraints(problem, e, 2)
    assert float((e.probe.abs() ** 2).sum()) == pytest.approx(first)
    RPIE(probe={"power": {"counts": 123.0}}).apply_constraints(problem, e, 1)
    assert float((e.probe.abs() ** 2).sum()) == pytest.approx(123)


@pytest.mark.parametrize(
    ("group", "given"),
    [
        ("object", {"amplitude": {"low": 0.9, "high": 0.95}}),
        ("object", {"phase": {"low": -0.1, "high": 0.1}}),
        ("probe", {"support": {"radius": 0.5}}),
        ("probe", {"fourier_support": {"radius": 0.4}}),
        ("probe", {"power": {"counts": 123.0}}),
    ],
    ids=str,
)
def test_strength_is_a_share_of_the_way_that_rises(group: str, given: dict) -> None:
    ((key, options),) = given.items()
    toy = make()
    moved = {
        "amplitude": lambda e: e.object.abs(),
        "phase": lambda e: torch.angle(e.object),
        "power": lambda e: e.probe.abs().square().sum().log(),
    }.get(key, lambda e: e.probe)

    def applied(epoch: int, **more: float) -> torch.Tensor:
        e, gradual = copy(toy.truth), {group: {key: options | more}, "epochs": 5}
        quiet = {"probe": {"orthogonalise": False} | gradual.pop("probe", {})}
        RPIE(**(gradual | quiet)).apply_constraints(toy.problem(), e, epoch)
        return moved(e)

    before, whole = moved(toy.truth), applied(1)
    assert relative(whole, before) > 1e-3
    assert relative(applied(1, strength=0.25), before + 0.25 * (whole - before)) < 1e-12
    for epoch, share in ((2, 0.2), (3, 0.4), (4, 0.4)):
        risen = applied(epoch, strength=0.4, start=2, rise=1)
        assert relative(risen, before + share * (whole - before)) < 1e-12


def test_supports() -> None:
    toy = make()
    e = copy(toy.truth)
    RPIE(probe={"support": {"radius": 0.5, "edge": 0.0}}).apply_constraints(toy.problem(), e, 1)
    outside = constraints.disc(e.window, Support(radius=0.5, edge=0), e.probe, centred=True) == 0
    assert outside.any() and e.probe[:, outside].abs().max() == 0 and e.probe[:, ~outside].abs().min() > 0
    e = copy(toy.truth)
    RPIE(probe={"fourier_support": {"radius": 0.4}}).apply_constraints(toy.problem(), e, 1)
    outside = constraints.disc(e.window, Support(radius=0.4), e.probe, centred=False) == 0
    assert fft(e.probe)[:, outside].abs().max() < 1e-12 < fft(toy.truth.probe)[:, outside].abs().max()


def test_support_edge_is_smooth() -> None:
    probe = torch.zeros(1, 64, 64, dtype=torch.complex128)
    hard, soft = (constraints.disc((64, 64), Support(radius=0.5, edge=e), probe, centred=True) for e in (0.0, 0.3))
    assert set(hard.unique().tolist()) == {0, 1} and len(soft.unique()) > 20
    assert float(soft[32, 32 + 16]) == pytest.approx(0.5, abs=0.01)


def test_limits() -> None:
    obj = torch.tensor([[[0.2 + 0j, 3j, 0j, 1 + 1j]]], dtype=torch.complex128)
    constraints.limit_amplitude(obj, Limits(low=0.5, high=2))
    assert torch.allclose(obj, torch.tensor([[[0.5 + 0j, 2j, 0.5 + 0j, 1 + 1j]]], dtype=torch.complex128))
    constraints.limit_phase(obj, Limits(low=-0.1, high=0.3))
    assert torch.allclose(torch.angle(obj), torch.tensor([0.0, 0.3, 0.0, 0.3], dtype=torch.float64))
    assert torch.allclose(obj.abs(), torch.tensor([0.5, 2, 0.5, 2**0.5], dtype=torch.float64))


def test_smoothing_is_not_rounded_to_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    conv2d, allowed = torch.nn.functional.conv2d, []

    def watched(*given: torch.Tensor) -> torch.Tensor:
        allowed.append(torch.backends.cudnn.allow_tf32)
        return conv2d(*given)

    monkeypatch.setattr(torch.nn.functional, "conv2d", watched)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    constraints.smoothed(make().truth.object, Smooth())
    assert allowed == [False, False] and torch.backends.cudnn.allow_tf32


def test_smoothing_keeps_constants_and_damps_noise() -> None:
    obj = torch.full((1, 64, 64), 2 + 1j, dtype=torch.complex128)
    assert torch.allclose(constraints.smoothed(obj, Smooth(sigma_px=2, weight=1)), obj)
    noisy = obj + torch.randn(obj.shape, generator=torch.Generator().manual_seed(0), dtype=obj.dtype)
    damped = constraints.smoothed(noisy, Smooth(sigma_px=2, weight=1))
    assert (damped - obj).abs().std() < 0.2 * (noisy - obj).abs().std()
    half = constraints.smoothed(noisy, Smooth(sigma_px=2, weight=0.5))
    assert torch.allclose(half, (noisy + damped) / 2)


@pytest.mark.parametrize("name", ["amplitude", "phase", "smooth"])
def test_object_constraints_run_from_the_stage(name: str) -> None:
    toy = make()
    e = copy(toy.truth)
    options = {"amplitude": {"high": 0.9}, "phase": {"low": 0.0}, "smooth": {"sigma_px": 1.5}}
    RPIE(object={name: options[name]}).apply_constraints(toy.problem(), e, 1)
    assert relative(e.object, toy.truth.object) > 1e-3


def test_schedule() -> None:
    schedule = Schedule(start=3, stop=9, every=2)
    assert [n for n in range(1, 15) if schedule.active(n)] == [3, 5, 7, 9]
    toy = make()
    for epoch, changes in ((1, False), (2, True), (3, False)):
        e = copy(toy.truth)
        engine = RPIE(object={"amplitude": {"high": 0.9, "start": 2, "every": 2}})
        engine.apply_constraints(toy.problem(), e, epoch)
        assert (relative(e.object, toy.truth.object) > 0) == changes


def test_frozen_probe_is_left_alone_by_its_constraints() -> None:
    toy = make()
    e = copy(toy.truth)
    RPIE(probe={"frozen": 2, "support": True}).apply_constraints(toy.problem(), e, 2)
    assert torch.equal(e.probe, toy.truth.probe)
    RPIE(probe={"frozen": 2, "support": True}).apply_constraints(toy.problem(), e, 3)
    assert not torch.equal(e.probe, toy.truth.probe)


# --- positions ---


def refined(subpixel: str, **options: float | bool) -> tuple[Toy, Estimate, torch.Tensor]:
    from ptymesh.run.loop import Loop
    from ptymesh.run.state import RunState

    toy = make(views=80, counts=1e6, subpixel=subpixel)
    start = toy.start(probe_error=0.05, position_error=2.0)
    state = RunState(start)
    stages = [RPIE(epochs=60, batch=10, alpha=0.3, positions={"start": 5, **options})]
    Loop(toy.problem(), state, stages).run()
    error = state.estimate.positions - toy.truth.positions
    return toy, state.estimate, (error - error.mean(0)).norm(dim=1)


@pytest.mark.sample(1)
@pytest.mark.parametrize("subpixel", ["fourier", "bilinear"])
def test_positions_are_found(subpixel: str) -> None:
    """A thin scan, errors of up to 2 px per axis (mean 1.5 px): they fall to less than half."""
    toy, estimate, error = refined(subpixel)
    before = (estimate.nominal - toy.truth.positions).norm(dim=1).mean()
    assert before > 1.4 and error.mean() < before / 2


@pytest.mark.long
def test_positions_of_a_good_scan_are_found_to_a_twentieth_of_a_pixel() -> None:
    """A million photons a view, errors uniform in +-2 px per axis, translation removed."""
    made = simulate(kind="xray", views=200, window=64, seed=2, photons_per_view=1e6, position_error_px=2.0)
    recon = Reconstruction(made.measurement, probe={"start": "file"})
    for _ in recon.run(RPIE(epochs=80, batch=20, positions={"start": 5})):
        pass
    error = recon.state.estimate.positions.numpy() - made.truth.positions
    distance = np.linalg.norm(error - error.mean(0), axis=1)
    assert distance.mean() <= 0.05 and np.quantile(distance, 0.95) <= 0.2


def test_auto_gain_grows_while_moves_agree_and_shrinks_when_they_turn() -> None:
    toy, engine = make(views=20), RPIE(positions=True)
    problem, e = toy.problem(), toy.start()
    gains = []
    for sign in (1, 1, 1, -1, 1, -1):
        start = e.positions.clone()
        steps = [(torch.arange(20), sign * 0.01 * toy.truth.positions.sin())]
        positions.after_batch(engine, Batch(np.arange(20), view_updates=ViewUpdates(steps)), e, start)
        positions.after_epoch(engine, problem, e, start)
        gains.append(float(engine.state["position_gain"]))
    assert gains == [1, 2, 4, 2, 1, 0.5]


def test_drift_is_removed() -> None:
    _, estimate, _ = refined("fourier")
    assert (estimate.positions - estimate.nominal).mean(0).abs().max() < 1e-12


def test_a_limit_holds_per_epoch() -> None:
    toy = make(views=20)
    e = toy.start(position_error=2.0)
    before = e.positions.clone()
    steps = [(torch.arange(20), torch.full((20, 2), 5.0, dtype=torch.float64))]
    batch = Batch(np.arange(20), view_updates=ViewUpdates(steps))
    for _ in range(3):
        positions.after_batch(RPIE(positions={"limit_px": 0.3}), batch, e, before)
    assert torch.allclose(e.positions, before + 0.3)
    positions.after_batch(RPIE(positions={"limit_px": 1.0, "gain": 0.1}), batch, e, before)
    assert torch.allclose(e.positions, before + 0.8)


def test_affine_model_keeps_only_the_affine_part() -> None:
    rng = torch.Generator().manual_seed(0)
    nominal = 100 * torch.rand(50, 2, generator=rng, dtype=torch.float64)
    matrix = torch.tensor([[0.01, -0.02], [0.03, 0.005]], dtype=torch.float64)
    affine = nominal @ matrix + torch.tensor([1.0, -2.0])
    noise = 0.1 * torch.randn(50, 2, generator=rng, dtype=torch.float64)
    assert torch.allclose(positions.affine_part(nominal, affine), affine)
    assert (positions.affine_part(nominal, affine + noise) - affine).norm() < 0.5 * noise.norm()


def test_anchors_move_only_beyond_a_pixel() -> None:
    toy = make(views=20)
    e = copy(toy.truth)
    anchors = e.anchors.clone()
    e.positions[0] += torch.tensor([0.4, 0.0])
    e.positions[1] += torch.tensor([3.0, 0.0])
    positions.reanchor(RPIE(), toy.problem(), e)
    assert torch.equal(e.anchors[0], anchors[0]) and e.anchors[1, 0] == anchors[1, 0] + 3


def test_the_object_grows_and_nothing_else_changes() -> None:
    toy = make(views=20)
    e, engine = copy(toy.truth), MPIE()
    engine.state["object_velocity"] = e.object.clone()
    engine.state["object_start"] = e.object.clone()
    low, high = int(e.positions[:, 0].argmin()), int(e.positions[:, 1].argmax())
    e.positions[low, 0] -= 15.0
    e.positions[high, 1] += 15.0
    physical = e.positions - torch.tensor(e.origin)
    positions.reanchor(engine, toy.problem(), e)
    assert tuple(e.object.shape) == (1, 128, 128)
    assert torch.equal(e.object[:, 32:, :96], toy.truth.object) and (e.object[:, :32] == 1).all()
    assert torch.equal(engine.state["object_velocity"][:, 32:, :96], toy.truth.object)
    assert (engine.state["object_velocity"][:, :32] == 0).all() and (engine.state["object_start"][:, :32] == 1).all()
    assert torch.allclose(e.positions - torch.tensor(e.origin), physical)
    toy.problem().begin_epoch(e)


def test_what_has_no_meaning_is_refused_before_any_work() -> None:
    with pytest.raises(BadInput, match="bilinear"):
        RPIE(positions=True).check(make(subpixel="none").problem())
    with pytest.raises(BadInput, match="near-field"):
        RPIE(probe={"centre": True}).check(make(propagation="fresnel").problem())


def test_windows_beyond_the_object_are_refused() -> None:
    toy = make()
    e = copy(toy.truth)
    e.anchors[3] = torch.tensor([80, 2])
    with pytest.raises(BadInput, match=r"y = .* to 104 px but the object has 96"):
        toy.problem().begin_epoch(e)


def test_illumination_is_the_sum_of_probes() -> None:
    toy = make(views=5, modes=2, varying=True)
    e = toy.truth
    expected = np.zeros((96, 96))
    intensity = (e.probe.abs() ** 2).sum(0).numpy()
    for (y, x), weight in zip(e.anchors.tolist(), e.weights[:, 0].tolist(), strict=True):
        expected[y : y + 24, x : x + 28] += weight**2 * intensity
    assert np.allclose(toy.problem().evaluator.illumination(e).numpy(), expected)


@pytest.mark.parametrize("limit", [{"low": -90}, {"high": 45.0}])
def test_limits_of_the_phase_are_radians(limit: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=r"is -?\d+ rad, more than a whole turn; give radians \(-?\d+ degrees are -?\d"):
        RPIE.parse({"object": {"phase": limit}})
    phase = RPIE.parse({"object": {"phase": {"low": -6.2, "high": 3.2}}}).object.phase
    assert phase is not None and (phase.low, phase.high) == (-6.2, 3.2)
