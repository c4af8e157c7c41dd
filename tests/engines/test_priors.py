"""Each prior removes what it is for from an object of known truth, and leaves what it should not touch."""

import math

import numpy as np
import pytest
import torch

from ptymesh.engines import RPIE, Constraint
from ptymesh.engines.constraints import CONSTRAINTS, ordered
from ptymesh.engines.constraints.gauges.centring import offset_to_middle
from ptymesh.engines.constraints.grid_artefacts import GridArtefacts
from ptymesh.engines.constraints.kr_filter import KrFilter
from ptymesh.errors import BadInput
from rounding import Forbidding
from toy import Toy, make, relative


def noise(shape: tuple[int, ...], size: float, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return size * torch.randn(shape, generator=rng, dtype=torch.complex128)


def applied(toy: Toy, epoch: int = 1, **given: object) -> torch.Tensor:
    """The toy's true object, which is changed in place, after constraints."""
    RPIE(constraints=given).apply_constraints(toy.problem(), toy.truth, epoch)
    return toy.truth.object


def alone(toy: Toy, **given: object) -> None:
    """Change the toy's true probe by constraints, with its modes as they are."""
    RPIE(probe={"orthogonalise": False}, constraints=given).apply_constraints(toy.problem(), toy.truth, 1)


def thick(slices: int = 6) -> Toy:
    return make(slices=slices, views=30)


def test_depth_smoothness_removes_noise_between_slices_and_keeps_their_sum() -> None:
    toy = thick()
    toy.truth.object[:] = toy.truth.object[:1].clone()  # the same in all slices
    truth = toy.truth.object.clone()
    found = applied(toy, depth_smoothness=True)
    assert relative(found, truth) < 1e-14
    noisy = truth + noise(truth.shape, 0.1)
    toy.truth.object.copy_(noisy)
    found = applied(toy, depth_smoothness={"weight": 100})
    assert (found - truth).norm() < 0.6 * (noisy - truth).norm()
    assert relative(found.sum(0), noisy.sum(0)) < 1e-13


def test_depth_smoothness_divides_what_changes_sign_and_does_not_wrap() -> None:
    toy = thick(12)
    sign = torch.tensor([1.0, -1] * 6, dtype=torch.float64)[:, None, None]
    toy.truth.object.copy_(1 + 0.1 * sign)
    found = applied(toy, depth_smoothness={"weight": 10}) - 1
    middle = found[5:7, 0, 0].real / torch.tensor([-0.1, 0.1])
    assert middle.tolist() == pytest.approx([1 / 5] * 2, abs=0.002)
    toy.truth.object.fill_(1)
    toy.truth.object[0] = 2
    assert (
        abs(complex(applied(toy, depth_smoothness=True)[-1, 0, 0]) - 1) < 0.01
    )  # the first slice is not its neighbour


def test_kz_filter_removes_slow_differences_between_slices_and_keeps_fine_ones() -> None:
    toy = thick(4)
    cosine = torch.cos(math.pi * (torch.arange(4.0, dtype=torch.float64) + 0.5) / 4)[:, None, None]
    x = torch.arange(96, dtype=torch.float64)[None, None, :].expand(1, 96, 96)
    slow, fine = cosine * torch.ones_like(x), cosine * torch.cos(math.pi * x / 1.5)
    given = {"kz_filter": {"angle_rad": 1e-3 * 1}}
    sigma = CONSTRAINTS["kz_filter"].parse(given["kz_filter"]).widths_px(toy.problem(), toy.truth)[0]  # type: ignore[attr-defined]
    given["kz_filter"]["angle_rad"] *= 3 / sigma  # three pixels
    toy.truth.object.copy_(1 + 0.1 * (slow + fine))
    found = applied(toy, **given)[:, 20:-20, 20:-20]
    assert (found - (1 + 0.1 * fine)[:, 20:-20, 20:-20]).abs().max() < 5e-3


def test_total_variation_removes_noise_and_keeps_an_edge() -> None:
    toy = make(views=60)
    truth = torch.ones_like(toy.truth.object)
    truth[:, :, 48:] = torch.polar(torch.ones(()), torch.tensor(0.5)).to(truth.dtype)
    noisy = truth + noise(truth.shape, 0.05)
    toy.truth.object.copy_(noisy)
    found = applied(toy, total_variation={"weight": 1})
    inside = (slice(None), slice(8, -8), slice(8, -8))
    assert (found - truth)[inside].norm() < 0.45 * (noisy - truth)[inside].norm()
    step = (found[0, 8:-8, 52:60].mean() - found[0, 8:-8, 36:44].mean()).abs()
    assert step > 0.85 * (truth[0, 0, 50] - truth[0, 0, 40]).abs()


def test_total_variation_along_the_beam_keeps_an_interface() -> None:
    toy = thick()
    truth = torch.ones_like(toy.truth.object)
    truth[3:] = torch.polar(torch.ones(()), torch.tensor(0.5)).to(truth.dtype)
    noisy = truth + noise(truth.shape, 0.05)
    toy.truth.object.copy_(noisy)
    found = applied(toy, total_variation={"weight": 0, "depth_weight": 0.5})
    assert (found - truth).norm() < 0.8 * (noisy - truth).norm()
    assert (found[3].mean() - found[2].mean()).abs() > 0.5 * (truth[3] - truth[2]).abs().mean()


def test_positivity_puts_the_baseline_at_zero() -> None:
    toy = make(views=60)
    toy.truth.object.copy_(torch.polar(toy.truth.object.abs(), torch.angle(toy.truth.object).abs().clamp(min=0)))
    truth = toy.truth.object.clone()
    toy.truth.object *= torch.exp(torch.tensor(-0.7j, dtype=torch.complex128))
    found = applied(toy, positivity={"baseline": 0.0})
    assert torch.angle(found).min() >= 0
    assert (torch.angle(found) - torch.angle(truth)).abs().max() < 0.02
    assert torch.allclose(found.abs(), truth.abs())


def test_positivity_without_a_baseline_clips() -> None:
    toy = make()
    phase = torch.angle(toy.truth.object)
    found = torch.angle(applied(toy, positivity={"baseline": None}))
    assert torch.allclose(found, phase.clamp(min=0))


@pytest.mark.parametrize("ratio", [None, 0.2])
def test_complex_ratio_makes_absorption_of_phase(ratio: float | None) -> None:
    toy = make(views=60)
    phase = torch.angle(toy.truth.object).abs()
    truth = torch.polar(torch.exp(-0.2 * phase), phase)
    rng = torch.Generator().manual_seed(1)
    error = torch.exp(0.02 * torch.randn(phase.shape, generator=rng, dtype=torch.float64))
    toy.truth.object.copy_(truth * error)
    found = applied(toy, complex_ratio={"ratio": ratio})
    assert relative(found, truth) < (1e-13 if ratio else 0.02)
    assert torch.allclose(torch.angle(found), phase)


@pytest.mark.parametrize(("scale", "power"), [(0.03, 4.0), (0.4, 2.0)])
def test_mirrored_amplitude_falls_with_a_power_of_the_phase(scale: float, power: float) -> None:
    toy = make()
    phase = torch.linspace(-1.5, 1.5, 96, dtype=torch.float64).expand(1, 96, 96)
    toy.truth.object.copy_(torch.polar(torch.full_like(phase, 1.3), phase))
    found = applied(toy, mirrored_amplitude={"scale": scale, "power": power})
    assert torch.allclose(torch.angle(found), phase, atol=1e-14)
    assert torch.allclose(found.abs()[phase <= 0], torch.ones(()).double())
    assert torch.allclose(-found.abs().log()[phase > 0], scale * phase[phase > 0] ** power)


def test_kr_filter_keeps_low_frequencies_halves_those_at_the_cutoff_and_removes_high_ones() -> None:
    kept = {}
    for k in (0.05, 0.2, 0.45):  # cycles per pixel; the cutoff is 0.2
        toy = make()
        wave = torch.cos(2 * math.pi * k * torch.arange(96, dtype=torch.float64)).expand(1, 96, 96)
        toy.truth.object.copy_(1 + 0.1 * wave)
        found = applied(toy, kr_filter={"cutoff": 0.4}) - 1
        inside = (0, slice(30, -30), slice(30, -30))
        kept[k] = float((found[inside].real * wave[inside]).sum() / (0.1 * wave[inside].square().sum()))
    assert kept[0.05] > 0.99 and kept[0.2] == pytest.approx(0.5, abs=0.02) and abs(kept[0.45]) < 0.02
    assert KrFilter(cutoff=1).sigma_px == pytest.approx(0.61, abs=0.01)


def test_kr_threshold_keeps_a_lattice_and_removes_noise() -> None:
    toy = thick(2)
    r = torch.arange(96, dtype=torch.float64) + 0.5
    waves = [torch.cos(math.pi * k * r / 96) for k in (3, 16, 40)]
    lattice = torch.stack((waves[0][:, None] * waves[1] + waves[2], 0.02 * waves[2][:, None] * waves[0]))
    truth = 1 + 0.3j * lattice.to(torch.complex128)
    toy.truth.object.copy_(truth)
    assert relative(applied(toy, kr_threshold={"keep": 4 / 96**2}), truth) < 1e-14  # with the mean, 3 and 2 waves
    error = noise(truth.shape, 0.05)
    for keep in (0.01, 0.1):
        toy.truth.object.copy_(truth + error)
        found = applied(toy, kr_threshold={"keep": keep})
        strongest = math.sqrt(keep * (1 - math.log(keep)))  # their share of the power of Gaussian noise, and its root
        assert float((found - truth).norm()) == pytest.approx(strongest * float(error.norm()), rel=0.05)


def test_identical_slices_average_noise() -> None:
    toy = thick(4)
    truth = toy.truth.object[:1].clone()
    error = noise(toy.truth.object.shape, 0.1)
    toy.truth.object.copy_(truth + error)
    found = applied(toy, identical_slices=True)
    assert (found == found[:1]).all() and (found - truth).norm() < 0.55 * error.norm()


def test_vacuum_slices() -> None:
    toy = thick(4)
    before = toy.truth.object.clone()
    found = applied(toy, vacuum_slices={"first": 1, "last": 2})
    assert (found[[0, 2, 3]] == 1).all() and torch.equal(found[1], before[1])
    with pytest.raises(BadInput, match="leaves none of 4 slices to the specimen"):
        applied(toy, vacuum_slices={"first": 2, "last": 2})


def test_field_of_view_is_what_the_beam_reaches() -> None:
    toy = make(views=5)
    before = toy.truth.object.clone()
    light = toy.problem().evaluator.illumination(toy.truth)
    inside = light > 0.05 * light.max()
    found = applied(toy, field_of_view={"threshold": 0.05})
    assert torch.equal(found[:, inside], before[:, inside]) and (found[:, ~inside] == 1).all()
    assert 0.02 < inside.double().mean() < 0.9


@pytest.mark.parametrize("direction", [0.0, 90.0, 30.0])
def test_grid_artefacts_are_removed_and_the_object_stays(direction: float) -> None:
    toy = make()
    y, x = torch.meshgrid(*(torch.arange(96, dtype=torch.float64),) * 2, indexing="ij")
    along = x * math.cos(math.radians(direction)) + y * math.sin(math.radians(direction))
    smooth = torch.exp(-((y - 48) ** 2 + (x - 48) ** 2) / (2 * 12**2))  # no frequency of its own near the grid's
    truth = 1 + 0.3j * smooth.to(torch.complex128)[None]
    grid = 0.05 * torch.cos(2 * math.pi * along / 6 + 0.4)[None]
    toy.truth.object.copy_(truth + grid)
    found = applied(toy, grid_artefacts={"period_px": 6, "direction_deg": direction, "periods": 2})
    inside = (slice(None), slice(40, -40), slice(40, -40))
    assert (found - truth)[inside].norm() < 0.05 * grid[inside].norm()


def test_recentring_keeps_intensities_and_says_the_defocus() -> None:
    toy = thick(6)
    toy.truth.object[:4] = 1  # the specimen is in the last two slices
    e, engine = toy.truth, RPIE(constraints={"depth_recentring": True})
    every = torch.arange(len(e.positions))

    def intensity() -> torch.Tensor:
        return toy.model.intensity(e.object, e.probe, e.anchors, e.fractions(every), e.weights, e.background)

    before = intensity()
    engine.apply_constraints(toy.problem(), e, 1)
    assert (e.object[[0, 1, 4, 5]] == 1).all() and (e.object[2:4] != 1).any()
    assert relative(intensity(), before) < 1e-6
    said = e.parameters["depth_recentring"]
    assert said == {"slices": -2, "defocus_m": pytest.approx(2 * e.slice_spacing_m)}
    engine.apply_constraints(toy.problem(), e, 2)  # it is there
    assert said["slices"] == -2


def test_shrink_wrap_and_ellipse_zero_the_probe_outside() -> None:
    toy = make()
    before, intensity = toy.truth.probe.clone(), toy.truth.probe.abs().square()[0]
    speck = (0, 1, 1)
    toy.truth.probe[speck] += 0.02 * toy.truth.probe.abs().max()
    applied(toy, shrink_wrap={"threshold": 0.05})
    bright = intensity > 0.2 * intensity.max()
    assert toy.truth.probe[speck] == 0 and torch.equal(toy.truth.probe[:, bright], before[:, bright])
    toy = make(window=(24, 24))
    applied(toy, ellipse_support={"radii": [0.8, 0.4], "angle_deg": 90})
    inside = toy.truth.probe[0] != 0
    rows, columns = inside.any(1).sum(), inside.any(0).sum()
    assert rows > 1.7 * columns


def test_modes_get_the_middle_of_the_first() -> None:
    toy = make(modes=3, window=(32, 32))
    probe = toy.truth.probe
    r = torch.arange(32, dtype=torch.float64) - 16
    spot = torch.exp(-(r[:, None] ** 2 + r**2) / 18)
    for mode, (factor, y, x) in zip(probe, ((spot, 1, 0), (0.1 * r * spot, -3, 2), (0.2j * spot, 5, 5)), strict=True):
        mode.copy_(torch.roll(factor, (y, x), (0, 1)))
    before = probe.clone()
    middle = offset_to_middle(before[:1])
    assert (offset_to_middle(before[1:2]) - middle).abs().max() > 1
    alone(toy, mode_centring=True)
    for mode in probe:
        assert torch.allclose(offset_to_middle(mode[None]), middle, atol=1e-3)
    assert torch.equal(probe[0], before[0])
    assert torch.allclose(probe.abs().square().sum((-2, -1)), before.abs().square().sum((-2, -1)))


def test_the_first_mode_gets_its_share() -> None:
    toy = make(modes=3)
    probe = toy.truth.probe
    before, powers = probe.clone(), probe.abs().square().sum((-2, -1))
    kept = float(powers[0] / powers.sum())
    alone(toy, primary_mode={"share": 0.9 * kept})
    assert torch.allclose(probe, before), "it has more"
    share = (1 + kept) / 2
    alone(toy, primary_mode={"share": share})
    after = probe.abs().square().sum((-2, -1))
    assert float(after[0] / after.sum()) == pytest.approx(share) and float(after.sum()) == pytest.approx(powers.sum())
    assert float(after[2] / after[1]) == pytest.approx(float(powers[2] / powers[1]))


# --- schedules, order, refusals ---


def test_strength_rises() -> None:
    prior = CONSTRAINTS["identical_slices"].parse({"start": 3, "rise": 3, "strength": 0.8})
    strengths = [prior.at_epoch(epoch).strength for epoch in range(3, 9)]  # type: ignore[attr-defined]
    assert strengths == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    toy = thick(4)
    before = toy.truth.object.clone()
    found = applied(toy, identical_slices={"rise": 1})
    assert torch.allclose(found, (before + before.mean(0)) / 2)


def test_a_frozen_probe_stays() -> None:
    toy = make()
    before = toy.truth.probe.clone()
    stage = RPIE(probe={"frozen": 1, "orthogonalise": False}, constraints={"shrink_wrap": {"threshold": 0.5}})
    stage.apply_constraints(toy.problem(), toy.truth, 1)
    assert torch.equal(toy.truth.probe, before)
    stage.apply_constraints(toy.problem(), toy.truth, 2)
    assert not torch.equal(toy.truth.probe, before)


def test_each_comes_after_the_one_that_it_names() -> None:
    class Late(Constraint):
        """No place of its own."""

    class Between(Constraint):
        """After another that is not one of ptymesh."""

        after = "kr_filter"

    names = ordered({"late": Late(), "between": Between()})
    assert names[-1] == "late" and names[names.index("between") - 1] == "kr_filter"
    for name, kind in CONSTRAINTS.items():
        assert names.index(name) > names.index(str(kind.after)) and names.index(name) < names.index("ramp")
    assert ordered({"late": Late(), "kr_filter": KrFilter()}).count("kr_filter") == 1


@pytest.mark.parametrize(
    "name",
    ["depth_smoothness", "kz_filter", "identical_slices", "vacuum_slices", "depth_recentring"],
)
def test_what_needs_several_slices_is_refused_for_one(name: str) -> None:
    with pytest.raises(BadInput, match=f"constraints.{name} acts between slices, and there is one"):
        RPIE(constraints={name: True}).check(make().problem())
    RPIE(constraints={name: True}).check(thick(4).problem())


def test_other_refusals() -> None:
    with pytest.raises(BadInput, match="near-field"):
        RPIE(constraints={"depth_recentring": True}).check(make(slices=2, propagation="angular_spectrum").problem())
    with pytest.raises(BadInput, match="smooth is a key of object"):
        RPIE(constraints={"smooth": True})
    with pytest.raises(BadInput, match="are both 0"):
        RPIE(constraints={"total_variation": {"weight": 0}})
    with pytest.raises(BadInput, match="period_px"):
        RPIE(constraints={"grid_artefacts": True})
    assert GridArtefacts(period_px=2.5, harmonics=8).harmonics == 8  # those that pixels do not resolve are left out


# --- layouts and ranks ---

OBJECT = {
    "depth_smoothness": True,
    "kz_filter": {"angle_rad": 1e-3},
    "total_variation": {"weight": 0.5, "depth_weight": 0.2},
    "kr_filter": {"cutoff": 0.7},
    "kr_threshold": {"keep": 0.05, "strength": 0.5},
    "grid_artefacts": {"period_px": 4.5, "direction_deg": 20},
    "positivity": True,
    "complex_ratio": {"strength": 0.5},
    "mirrored_amplitude": {"strength": 0.5},
    "identical_slices": {"strength": 0.3},
    "vacuum_slices": {"strength": 0.5},
    "field_of_view": True,
    "depth_recentring": True,
    "shrink_wrap": True,
    "ellipse_support": {"strength": 0.5},
    "mode_centring": True,
    "primary_mode": {"share": 0.95},
}


def constrained(world, name: str, layout: str) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[no-untyped-def]
    """What one rank ends with after the constraint of this name alone, from an object with its specimen off centre."""
    from toy import share

    toy = make(views=41, slices=4, modes=_modes(name), uneven=True, dtype=torch.complex64)
    toy.truth.object[0] = 1
    toy.truth.object[1] = 1
    problem = toy.problem(world, layout)
    e = share(toy.truth, problem)
    RPIE(constraints={name: OBJECT[name]}).apply_constraints(problem, e, 1)
    return problem.layout.gather_whole(e.object, e).numpy(), e.probe.numpy()


def _modes(name: str) -> int:
    return 2 if name in ("mode_centring", "primary_mode") else 1


def all_constrained(world, layout: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:  # type: ignore[no-untyped-def]
    return {name: constrained(world, name, layout) for name in OBJECT}


def test_all_are_tried() -> None:
    """Those of other unknowns than object and probe in test_any_unknown.py."""
    assert {*OBJECT, "unknown_limits", "unknown_smoothness"} == {
        name for name, kind in CONSTRAINTS.items() if kind.__module__.startswith("ptymesh.")
    }


@pytest.mark.parametrize("name", OBJECT)
def test_nothing_rounds_by_place(name: str) -> None:
    from ptymesh.distributed.world import Solo

    with Forbidding(sums=False):
        constrained(Solo(), name, "replicated")


@pytest.mark.sample(2)
@pytest.mark.parametrize(("size", "layout"), [(2, "replicated"), (2, "tiled"), (3, "tiled"), (3, "replicated")])
def test_same_bits_on_any_ranks_in_both_layouts(ranks, size: int, layout: str) -> None:  # type: ignore[no-untyped-def]
    from ptymesh.distributed.world import Solo

    one, many = all_constrained(Solo(), "replicated"), ranks(size, all_constrained, layout)
    toys = {n: make(views=41, slices=4, modes=n, uneven=True, dtype=torch.complex64) for n in (1, 2)}
    for name, (obj, probe) in one.items():
        for other in many:
            assert np.array_equal(other[name][0], obj) and np.array_equal(other[name][1], probe), name
        toy = toys[_modes(name)]
        changed = not np.array_equal(obj[2:], toy.truth.object[2:]) or not np.array_equal(probe, toy.truth.probe)
        assert changed, f"{name} does nothing"
