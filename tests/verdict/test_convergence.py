"""Convergence of curves: made up, whose truth is known, and of runs on data."""

from __future__ import annotations

import numpy as np
import pytest

from ptymesh.verdict.convergence import Convergence, judge_convergence


def curve(values: np.ndarray, held: np.ndarray | None = None, stage: int = 0) -> dict[str, np.ndarray]:
    held = np.full(len(values), np.nan) if held is None else held
    return {"stage": np.full(len(values), stage), "residual": values, "held_out": held}


def jitter(epochs: int, size: float) -> np.ndarray:
    return 1 + size * np.random.default_rng(3).standard_normal(epochs)


E60 = np.arange(1, 61)


@pytest.mark.parametrize("noise", [0.0, 0.003])
def test_a_fall_that_ended_has_converged(noise: float) -> None:
    found = judge_convergence(curve((0.01 + 0.1 * np.exp(-E60 / 4)) * jitter(60, noise)))
    assert found.kind == "converged" and found.more_epochs == 0
    assert str(found).startswith("converged: the residual falls by ")


def test_a_steady_fall_goes_on() -> None:
    found = judge_convergence(curve(0.1 * 0.99**E60))
    assert found.kind == "falling" and found.per_epoch == pytest.approx(0.01)
    assert str(found) == "still falling by 1 % an epoch: 60 more epochs would pay"


def test_what_is_foretold_of_a_power_law_is_what_comes() -> None:
    """r = e^-0.8 falls by 0.1 % an epoch at epoch 800, far beyond as many epochs again; r = 1 + 2 e^-1.5 soon."""
    slow, soon = judge_convergence(curve(E60**-0.8)), judge_convergence(curve(1 + 2 * E60**-1.5))
    assert slow.kind == "falling" and slow.more_epochs == 60
    assert soon.kind == "converged"
    early = judge_convergence(curve((1 + 5 * E60**-1.5)[:12]))
    left = (1 + 5 * E60**-1.5)[12 + early.more_epochs - 1 :]
    assert early.kind == "falling" and -np.diff(np.log(left)).max() < 0.002


def test_a_rise_is_a_divergence_since_its_minimum() -> None:
    values = np.concatenate([0.1 * 0.9 ** np.arange(12), 0.1 * 0.9**11 * 1.03 ** np.arange(1, 9)])
    found = judge_convergence(curve(values))
    assert (found.kind, found.since) == ("diverging", 12)
    assert str(found) == "diverging since epoch 12: the residual rose from 0.0314 to 0.0398"


def test_jumps_are_no_divergence() -> None:
    """Projection engines go up and down about their limit."""
    assert judge_convergence(curve(0.02 * jitter(80, 0.05))).kind == "converged"


def test_held_out_views_tell_of_over_fitting() -> None:
    held = np.concatenate([0.02 * 0.95 ** np.arange(20), 0.02 * 0.95**19 * 1.01 ** np.arange(1, 21)])
    found = judge_convergence(curve(0.02 * 0.95 ** np.arange(40), held))
    assert (found.kind, found.since) == ("over-fitting", 20)
    assert "held-out residual rose" in str(found) and str(found).endswith("while the residual fell")


def test_the_noise_floor_is_the_end_without_held_out_views() -> None:
    falling = curve(0.0065 * 0.995**E60)
    assert judge_convergence(falling).kind == "falling" == judge_convergence(falling, 0.001).kind
    found = judge_convergence(falling, 0.0064)
    assert found.kind == "converged" and "counting alone" in str(found) and "over-fitting" not in str(found)
    judged = curve(falling["residual"], 0.01 * 0.99**E60)
    assert judge_convergence(judged, 0.0064).kind == "falling", "held-out views still gain"


def test_a_fall_with_the_steps_foretells_nothing() -> None:
    """Whether it falls with them or lies flat at last; views held out, noise and what gets worse come first."""
    rate = 0.06 * (1 + np.cos(np.pi * E60 / 61)) / 2
    for values in (0.1 * 0.99**E60, 0.01 + 0 * E60):
        found = judge_convergence(curve(values) | {"rate": rate})
        assert (found.kind, found.more_epochs) == ("at rest", 0)
        assert "learning rate to 0.066 % of the largest" in str(found)
        rising = judge_convergence(curve(values) | {"rate": rate[::-1]})
        assert rising.kind != "at rest" != judge_convergence(curve(values)).kind
    assert judge_convergence(curve(0.01 + 0 * E60) | {"rate": rate}, 0.0099).kind == "converged"
    assert judge_convergence(curve(0.01 * 1.01**E60) | {"rate": rate}).kind == "diverging"
    first = {name: np.concatenate([column, column]) for name, column in curve(0.1 * 0.99**E60).items()}
    first["stage"][60:] = 1
    assert judge_convergence(first | {"rate": np.concatenate([rate, np.zeros(60)])}).kind == "falling"


def test_only_the_last_stage_is_judged() -> None:
    first, second = curve(0.1 * 0.9**E60), curve(0.0002 + 0 * E60, stage=1)
    both = {name: np.concatenate([first[name], second[name]]) for name in first}
    assert judge_convergence(both).kind == "converged"


@pytest.mark.parametrize("values", [np.array([]), np.array([0.3]), np.array([0.3, 0.2, 0.15, 0.1])])
def test_too_few_epochs_say_nothing(values: np.ndarray) -> None:
    assert judge_convergence(curve(values)).kind == "unclear" and "too early" in str(judge_convergence(curve(values)))
    assert judge_convergence({}).kind == "unclear"


def test_odd_numbers_say_nothing() -> None:
    assert judge_convergence(curve(np.where(E60 == 50, np.nan, 0.1))).kind == "unclear"


# fmt: off
#: The Siemens star with rPIE in batches of 64, one mode, 5 % of the views held out: millionths, epochs 1 to 40.
STAR = 1e-6 * np.array([
    61257, 32029, 28588, 25689, 23573, 21689, 20187, 18984, 17861, 17099,
    16401, 15705, 15263, 14841, 14498, 14214, 13902, 13674, 13452, 13319,
    13157, 13026, 12855, 12777, 12668, 12605, 12544, 12488, 12428, 12367,
    12338, 12291, 12283, 12259, 12247, 12215, 12205, 12163, 12152, 12157,
])
STAR_HELD_OUT = 1e-6 * np.array([
    34822, 31620, 28286, 25994, 23631, 21968, 20701, 19526, 18671, 17630,
    17105, 16415, 15968, 15559, 15247, 14855, 14611, 14418, 14119, 13964,
    13768, 13640, 13582, 13376, 13293, 13221, 13178, 13108, 13015, 13058,
    13007, 12964, 12932, 12961, 12945, 12917, 12888, 12887, 12838, 12909,
])
# fmt: on


@pytest.mark.parametrize("held", [None, STAR_HELD_OUT])
def test_the_star(held: np.ndarray | None) -> None:
    """What was foretold at 20 epochs came: the next 20 took off 9 %; then it was done."""

    def after(epochs: int) -> Convergence:
        return judge_convergence(curve(STAR[:epochs], None if held is None else held[:epochs]), 0.00796)

    assert after(12).kind == "falling" and 0.03 < after(12).per_epoch < 0.06
    assert str(after(20)) == "still falling by 1.3 % an epoch: 20 more epochs would pay"
    assert after(40).kind == "converged"


def test_the_star_gone_wrong() -> None:
    """The same run whose last epochs come in reverse order."""
    assert judge_convergence(curve(np.concatenate([STAR, STAR[:10:-1]]))).kind == "diverging"
