"""Verdicts: on scans whose truth is known, on made-up evidence at the thresholds, on ranks and in tiles."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptymesh import Reconstruction, reconstruct
from ptymesh.distributed.world import Solo, World
from ptymesh.errors import BadInput, Poor
from ptymesh.io.results import Result, add_attributes, read_attributes
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.run import final_verdict
from ptymesh.simulate import simulate
from ptymesh.verdict import turn_trial
from ptymesh.verdict.features import find_feature_map
from ptymesh.verdict.floor import NoiseFloor
from ptymesh.verdict.judging import Verdict, factor_in_words, judge, name_views
from ptymesh.verdict.misfits import Misfits
from ptymesh.verdict.signs import Sign, signs_of_features

STAGES = [{"engine": "rpie", "epochs": 25, "batch": 12}]
SAID = ("final_residual", "noise_floor", "noise_level", "times_noise", "verdict", "verdict_sentence", "convergence")


def scan_of(**options: Any) -> Measurement:
    """Return a scan that takes a second to reconstruct; the file's probe is the true one."""
    known = {"views": 60, "window": 32, "overlap": 0.75, "photons_per_view": 2e4, "probe_guess": "true", "seed": 3}
    return simulate(**(known | options)).measurement


def result_of(scan: Measurement, **options: Any) -> Result:
    """Return its reconstruction by 25 epochs of rPIE."""
    return reconstruct(scan, STAGES, probe={"start": "file"}, **options)


def changed(scan: Measurement, views: list[int], counts: np.ndarray | int) -> Measurement:
    """Return the scan with other patterns in these views."""
    patterns = scan.patterns.read(np.arange(scan.views)).copy()
    patterns[views] = counts
    return replace(scan, patterns=ArraySource(patterns))


def test_a_right_model_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    result = result_of(scan_of())
    assert result.verdict == "good" and "good" in repr(result)
    assert 0.7 < result.attrs["times_noise"] < 1.2
    assert 0 < result.attrs["noise_floor"] < result.attrs["noise_level"]
    assert "over-fitting" not in result.convergence
    assert not capsys.readouterr().err, "nothing is said of what is good"


def test_wrong_positions_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    scan = scan_of()
    wrong = replace(scan, positions=scan.positions[:, ::-1].copy())
    result = result_of(wrong)
    assert result.verdict in ("poor", "failed") and result.attrs["times_noise"] > 1.35
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"ptymesh: the result is {result.verdict}: {result.attrs['verdict_sentence']}."
    with pytest.raises(Poor, match="times what counting leaves") as raised:
        result_of(wrong, strict=True)
    assert isinstance(raised.value.result, Result) and raised.value.exit_status == 4
    with pytest.raises(BadInput, match="strict is 1"):
        result_of(wrong, strict=1)


@pytest.mark.parametrize("photons", [2e4, 4e5])
def test_a_run_that_is_stopped_early_is_told_to_go_on(photons: float) -> None:
    """Nothing else is wrong: it is good after 25 epochs. What else is seen after 4 of them accuses nothing."""
    scan = scan_of(photons_per_view=photons, probe_guess="design")
    early = reconstruct(scan, [{**STAGES[0], "epochs": 4}])
    assert early.verdict == "poor" and not early.attrs["verdict_causes"]
    assert early.attrs["verdict_sentence"].startswith("more epochs first, as the run has had 4: the residual is ")
    assert reconstruct(scan, STAGES).verdict == "good"


def test_a_schedule_that_ends_early_is_told_to_go_on() -> None:
    """Its last steps are small, and the residual still falls by far."""
    scan = simulate(views=60, window=32).measurement
    early = reconstruct(scan, [{"engine": "adam", "epochs": 5, "batch": 20}])
    assert early.verdict == "poor" and not early.attrs["verdict_causes"]
    assert early.attrs["verdict_sentence"].startswith("more epochs first, as the residual is still falling by ")


def swapped(scan: Measurement, views: list[int]) -> Measurement:
    """Return the scan with the patterns of views half a scan away in these views: no check of the data sees that."""
    return changed(scan, views, scan.patterns.read((np.array(views) + scan.views // 2) % scan.views))


def test_a_model_without_light_where_the_data_are_is_failed() -> None:
    """The bright disc is masked, and an object of ones scatters nothing beyond it, so that no step moves anything."""
    scan = scan_of()
    assert scan.probe is not None
    pupil = np.abs(np.fft.fft2(scan.probe[0]))
    disc = pupil > 1e-6 * pupil.max()
    result = result_of(replace(scan, mask=scan.mask & ~disc))
    assert result.verdict == "failed" and "check the mask" in result.attrs["verdict_sentence"]


def test_views_that_share_too_little_are_not_good_however_well_they_fit() -> None:
    """The start is the true probe, and counting explains all that is left; 0.55 of the width is near enough."""
    apart = result_of(scan_of(overlap=0.25))
    assert apart.verdict == "poor" and "of the beam's width apart" in apart.attrs["verdict_sentence"]
    assert apart.attrs["times_noise"] < 1.35
    assert "apart" not in result_of(scan_of(overlap=0.45)).attrs["verdict_sentence"]


def test_features_that_only_seem_turned_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With steps of half a beam features correlate by chance, and seem turned by 17 degrees."""
    scan = scan_of(views=80, window=48, overlap=0.5, photons_per_view=1e6, seed=0)
    features = find_feature_map(scan, scan.positions)
    assert [sign.cause for sign in signs_of_features(features)] == ["orientation"]
    assert "features" not in result_of(scan).attrs["verdict_sentence"]
    monkeypatch.setattr(turn_trial, "STANDARD_ERRORS", math.inf)
    assert result_of(scan).attrs["verdict_causes"] == ["orientation"]


def test_views_that_are_not_explained_are_named() -> None:
    result = result_of(swapped(scan_of(), [7, 23, 41]))
    assert result.verdict == "poor"
    assert set(result.attrs["unexplained_views"][:3]) == {7, 23, 41}, "before neighbours, which suffer from them"
    assert "of 60 views are not explained (views " in result.attrs["verdict_sentence"]


def test_patterns_that_are_no_counts_are_unknown() -> None:
    result = result_of(scan_of(noise=False))
    assert result.verdict == "unknown" and "no counts" in result.attrs["verdict_sentence"]
    assert "noise_floor" not in {name for name, value in result.attrs.items() if value is not None}
    rounded = scan_of(noise=False, photons_per_view=1e6)
    patterns = np.round(rounded.patterns.read(np.arange(60))).astype(np.uint32)
    smooth = reconstruct(
        replace(rounded, patterns=ArraySource(patterns)),
        [{"engine": "rpie", "epochs": 120, "batch": 12}],
        probe={"start": "file"},
    )
    assert smooth.verdict == "unknown" and "vary less than counts do" in smooth.attrs["verdict_sentence"]


def test_means_of_frames_are_not_taken_for_counts() -> None:
    """Half the noise of counts: any model of a little more than it seems to be explained."""
    scans = [scan_of(seed=3, photons_per_view=ph) for ph in (2e4, 4e4)]
    counts = scans[1].patterns.read(np.arange(60))
    rng = np.random.default_rng(1)
    halved = counts // 2 + (counts % 2) * rng.integers(0, 2, counts.shape).astype(counts.dtype)
    found = result_of(replace(scans[0], patterns=ArraySource(halved)))
    assert found.verdict == "unknown" and "vary less than counts do, as means" in found.attrs["verdict_sentence"]
    assert 0.4 < found.attrs["final_residual"] / found.attrs["noise_floor"] < 0.8
    assert result_of(scans[0]).verdict == "good"


def on_ranks(world: World, layout: str) -> dict[str, Any]:
    scan = swapped(scan_of(views=30), [4, 17])
    recon = Reconstruction(scan, probe={"start": "file"}, device=world, layout=layout)
    for _ in recon.run({"engine": "rpie", "epochs": 12, "batch": 12}):
        pass
    attrs = recon.result().attrs
    return {name: attrs[name] for name in (*SAID, "unexplained_views")}


def test_ranks_and_layouts_agree(ranks) -> None:  # type: ignore[no-untyped-def]
    one = on_ranks(Solo(), "replicated")
    assert one["verdict"] == "poor" and set(one["unexplained_views"][:2]) == {4, 17}
    for layout in ("replicated", "tiled"):
        for size in (2, 3):
            assert all(other == one for other in ranks(size, on_ranks, layout)), (layout, size)


def made_up(misfits: np.ndarray, static: float = 0.05, pixels: np.ndarray | None = None) -> Misfits:
    """Return evidence of views with 1,000 counts and 10,000 on 64 pixels, and these misfits in what counting leaves."""
    views, expected = len(misfits), 16.0
    by_view = np.zeros((views, 6))
    by_view[:, 0], by_view[:, 1], by_view[:, 2] = expected * misfits, expected, expected / 2
    by_view[:, 3], by_view[:, 5] = 10_000, 64
    by_pixel = np.broadcast_to(by_view.sum(axis=0)[:, None, None] / 64, (6, 8, 8)).copy()
    by_pixel[4] = np.sqrt((1 - static) * views * by_pixel[3])
    by_pixel[5] = views
    if pixels is not None:
        by_pixel[0] = pixels
    return Misfits(np.arange(views), by_view, by_pixel, by_view[:, [0, 3]], np.zeros((views, 7)), np.zeros((views, 2)))


def verdict_of(evidence: Misfits, fall: float = 0.0) -> Verdict:
    history = {"stage": np.zeros(10), "residual": (1 - fall) ** np.arange(10.0)}
    return judge(evidence.residual, NoiseFloor(0.0016, 0.0016, 1e6), 2000, evidence, history)


@pytest.mark.parametrize(
    ("times", "static", "fall", "state"),
    [
        (1.0, 0.05, 0.0, "good"),
        (1.3, 0.003, 0.0, "good"),  # a third of the signal, but counting may do that
        (1.6, 0.05, 0.0, "good"),  # 2 % of the signal
        (3.5, 0.05, 0.0, "good"),  # 8 % of it
        (9.0, 0.05, 0.0, "poor"),  # 26 %
        (9.0, 0.05, 0.03, "poor"),  # 26 %, on its way
        (25.0, 0.05, 0.0, "failed"),  # 79 %
    ],
)
def test_states_at_their_thresholds(times: float, static: float, fall: float, state: str) -> None:
    found = verdict_of(made_up(np.full(100, times), static), fall)
    assert found.state == state, found
    assert found.times == pytest.approx(times) and "over-fitting" not in str(found)
    assert ("still falling" in str(found)) == (state == "poor" and fall > 0)


@pytest.mark.parametrize(
    ("epochs", "fall", "rate", "state"),
    [
        (100, 0.0, 1.0, "poor"),
        (100, 0.004, 1.0, "good"),  # on its way
        (10, 0.0, 1.0, "good"),  # too early to tell
        (100, 0.0, 0.01, "good"),  # a schedule has stopped it
    ],
)
def test_what_is_left_counts_for_more_where_the_residual_falls_no_longer(
    epochs: int, fall: float, rate: float, state: str
) -> None:
    """15 % of what the views tell, as of patterns that wander."""
    residual = (1 - fall) ** np.arange(epochs)
    history = {"stage": np.zeros(epochs), "residual": residual, "rate": np.linspace(1.0, rate, epochs)}
    found = judge(0.0, NoiseFloor(0.0, 0.0, 1e6), 2000, made_up(np.full(100, 5.8)), history)
    assert found.state == state, found
    assert ("falls no longer" in str(found)) == (state == "poor")


def test_one_view_in_a_hundred_is_named_and_two_are_poor() -> None:
    misfits = np.ones(100)
    misfits[17] = 40
    found = verdict_of(made_up(misfits))
    assert found.state == "good" and found.views == (17,) and "1 of 100 views is not explained (view 17)" in str(found)
    misfits[3] = 60
    found = verdict_of(made_up(misfits))
    assert found.state == "poor" and found.views == (3, 17)


def test_few_pixels_that_hold_the_excess_are_named() -> None:
    pixels = np.full((8, 8), 25.0)
    pixels[3, 4] = 25 + 480.0  # all that is above what counting leaves
    found = verdict_of(made_up(np.full(100, 1.3), pixels=pixels))
    assert found.state == "poor" and "1 of 64 detector pixels hold 100% of what is not explained" in str(found)


def test_noise_beyond_counting_is_unknown() -> None:
    """The cryo set, whose detector adds its own noise: twice what counting leaves, whatever the model."""
    found = verdict_of(made_up(np.full(100, 2.1), static=0.0034))
    assert found.state == "unknown" and "noisier than counts" in str(found)
    assert verdict_of(made_up(np.full(100, 2.1), static=0.0042)).state == "failed"
    assert verdict_of(made_up(np.full(100, 21.0), static=0.034)).state == "failed"


def test_what_noise_alone_explains_is_no_object() -> None:
    """2,000 numbers take 500 off the noise of 100 views of 64 pixels, by chance; one view differs from no other."""
    found = verdict_of(made_up(np.full(100, 0.9), static=0.0019))
    assert found.state == "unknown" and "nothing of an object is seen" in str(found)
    assert verdict_of(made_up(np.full(100, 0.9), static=0.0025)).state == "good"
    one = made_up(np.ones(1), static=0.0)
    assert judge(one.residual, NoiseFloor(0.0016, 0.0016, 1e6), 50, one).state == "good"


@pytest.mark.parametrize("mean", [3.0, 100.0])
def test_patterns_of_noise_are_unknown(mean: float) -> None:
    scan = scan_of()
    counts = np.random.default_rng(1).poisson(mean, (scan.views, *scan.window)).astype(np.float64)
    found = reconstruct(changed(replace(scan, probe=None), list(range(scan.views)), counts))
    assert found.verdict == "unknown" and "nothing of an object is seen" in found.attrs["verdict_sentence"]


def test_as_many_fitted_numbers_as_pixels_prove_nothing() -> None:
    evidence, floor = made_up(np.ones(100)), NoiseFloor(0.0016, 0.0016, 1e6)
    assert judge(evidence.residual, floor, 6399, evidence).state == "good"
    found = judge(evidence.residual, floor, 6400, evidence)
    assert found.state == "unknown" and "6,400 numbers were fitted to the 6,400" in found.sentence


def test_one_view_proves_nothing() -> None:
    scan = scan_of(views=1)
    result = reconstruct(scan, [{"engine": "rpie", "epochs": 60}], probe={"start": "file"})
    assert result.verdict == "unknown" and "whatever the object is" in result.attrs["verdict_sentence"]


def test_what_a_fog_asks_for_is_no_sign_of_a_cause() -> None:
    signs = [Sign("drift", 9.0, "views ask to be moved"), Sign("lag", 2.0, "neighbours are alike with a lag")]
    floor = NoiseFloor(0.0016, 0.0016, 1e6)
    fog, poor = made_up(np.full(100, 25.0)), made_up(np.full(100, 9.0))
    assert judge(fog.residual, floor, 2000, fog, None, signs).state == "failed"
    assert judge(fog.residual, floor, 2000, fog, None, signs).signs == ("lag",), "which patterns alone tell"
    assert judge(poor.residual, floor, 2000, poor, None, signs).signs == ("drift", "lag")


def test_not_finite_is_failed_and_low_is_unknown() -> None:
    evidence = made_up(np.ones(10))
    assert judge(float("nan"), None, 0, evidence).state == "failed"
    assert judge(1e-6, NoiseFloor(0.0016, 0.0016, 1e6), 0, evidence).state == "unknown"
    assert judge(0.0016, None, 0, evidence).state == "unknown"
    assert judge(0.9999, NoiseFloor(0.0016, 0.0016, 1e6), 0, evidence).state == "failed"
    assert judge(0.04, None, 0, made_up(np.full(10, 25.0))).state == "failed"


@pytest.mark.parametrize(("share", "state"), [(0.75, "unknown"), (0.9, "good")])
def test_a_residual_below_what_counting_leaves_is_unknown(share: float, state: str) -> None:
    assert judge(share * 0.0016, NoiseFloor(0.0016, 0.0016, 1e6), 0, made_up(np.ones(100))).state == state


def test_factors_and_views_in_words() -> None:
    assert [factor_in_words(n) for n in (1.234, 98.7, 234.5, 1748533077461.0)] == [
        "1.2",
        "99",
        "234",
        "more than 10,000",
    ]
    assert [name_views(v) for v in ([3], [3, 17], [3, 17, 5, 6, 7])] == [
        "view 3",
        "views 3 and 17",
        "views 3, 17, 5 and 2 more",
    ]


def with_a_trial(world: World, least_times: float) -> tuple[str, list[str] | None, str]:
    """Return state, causes and reason of a right model, whose trial finds a sign all the same; only rank 0 tries."""
    recon = Reconstruction(scan_of(), probe={"start": "file"}, device=world)
    for _ in recon.run({"engine": "rpie", "batch": 12}, epochs=12):
        pass

    def find_twin() -> Sign:
        assert world.rank == 0
        return Sign("twin", 2.0, "its twin explains more")

    recon.trial = find_twin
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(final_verdict, "TRIED_TIMES", least_times)
        attrs = recon.result().attrs
    return attrs["verdict"], attrs["verdict_causes"], attrs["verdict_sentence"]


def test_a_trial_makes_poor_what_would_be_good_but_leaves_more_than_counting(
    ranks,  # type: ignore[no-untyped-def]
) -> None:
    state, causes, sentence = with_a_trial(Solo(), 0.5)
    assert (state, causes) == ("poor", ["twin"]) and sentence.endswith("but its twin explains more")
    assert all(other == (state, causes, sentence) for other in ranks(2, with_a_trial, 0.5))
    assert with_a_trial(Solo(), 1e3)[0] == "good", "the trial is not made"


def test_results_of_older_versions_are_read(tmp_path: Path) -> None:
    """The sentence on convergence stood in `verdict`."""
    attrs = {"verdict": "still falling by 1.3 % an epoch: 20 more epochs would pay", "final_residual": 0.01}
    Result(np.ones((1, 9, 9), complex), np.ones((1, 4, 4), complex), np.zeros((2, 2)), attrs=attrs).save(
        tmp_path / "old.h5"
    )
    old = Result.load(tmp_path / "old.h5")
    assert (old.verdict, old.convergence) == ("", attrs["verdict"]) and "falling" not in repr(old)


def test_attributes_are_added_to_a_result(tmp_path: Path) -> None:
    path = tmp_path / "result.h5"
    Result(np.ones((1, 9, 9), complex), np.ones((1, 4, 4), complex), np.zeros((2, 2)), attrs={"ranks": 2}).save(path)
    add_attributes(path, {"first_cause": "orientation"})
    assert Result.load(path).attrs["first_cause"] == "orientation", "digests hold"
    assert read_attributes(path)["ranks"] == 2 and [*tmp_path.iterdir()] == [path]
