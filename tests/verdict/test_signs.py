"""Signs of a wrong model: each is seen where it was put, and not where it was not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

from ptymesh import Reconstruction
from ptymesh.diagnosis import ResultView
from ptymesh.geometry import far_field
from ptymesh.measurement import ArraySource, Measurement, central_views
from ptymesh.simulate import simulate
from ptymesh.verdict.features import find_feature_map
from ptymesh.verdict.floor import NoiseFloor
from ptymesh.verdict.held_out import Judged
from ptymesh.verdict.judging import judge
from ptymesh.verdict.misfits import Misfits, collect_misfits
from ptymesh.verdict.order import scan_rows
from ptymesh.verdict.signs import (
    MOST_GAIN,
    Sign,
    asked_moves,
    linear_moves,
    move_gains,
    signs_of_features,
    signs_of_misfits,
    signs_of_order,
)
from ptymesh.verdict.turn_trial import refutes_turn, turn_positions

N, SIDE = 100, 48


def positions_of(views: int = N, step: float = 4.0) -> np.ndarray:
    """Return a jittered raster of ten columns, (views, 2)."""
    y, x = np.divmod(np.arange(views), 10)
    jitter = np.random.default_rng(2).uniform(-0.3, 0.3, (views, 2))
    return step * (np.stack([y, x], axis=1) + jitter)


def shadows_of(positions: np.ndarray, A: np.ndarray) -> Measurement:
    """Return a far-field scan whose patterns are a texture that moves by A p, in a round beam."""
    rng = np.random.default_rng(5)
    texture = ndimage.gaussian_filter(rng.standard_normal((256, 256)), 1.5, mode="wrap")
    texture = np.exp(0.6 * texture / texture.std())
    v, u = np.mgrid[:SIDE, :SIDE] - SIDE // 2
    beam = np.exp(-(v**2 + u**2) / (2 * 12.0**2))
    middle = positions.mean(axis=0)
    patterns = [
        ndimage.map_coordinates(texture, np.stack([v, u]) - (A @ (p - middle))[:, None, None] + 128, order=1)
        for p in positions
    ]
    counts = rng.poisson(40 * beam * np.array(patterns)).astype(np.uint32)
    return Measurement(
        patterns=ArraySource(np.fft.ifftshift(counts, axes=(1, 2))),
        positions=positions,
        geometry=far_field((SIDE, SIDE), 1.5e-10, 2.0, (75e-6, 75e-6)),
        mask=np.ones((SIDE, SIDE), bool),
    )


def turned(degrees: float) -> np.ndarray:
    """Return the matrix of a rotation."""
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    return np.array([[c, -s], [s, c]])


@pytest.mark.parametrize("degrees", [0.0, 2.5, -8.0, 33.0])
def test_a_rotation_is_found_to_its_error(degrees: float) -> None:
    positions = positions_of()
    astigmatic = np.array([[-1.1, 0.05], [0.05, -0.95]])  # symmetric, as of any beam
    scan = shadows_of(positions, turned(degrees) @ astigmatic)
    found = find_feature_map(scan, positions)
    assert found is not None and found.error_deg < 0.5
    assert abs(found.rotation_deg - degrees) < 4 * found.error_deg
    signs = signs_of_features(found)
    assert [sign.cause for sign in signs] == (["orientation"] if degrees else [])


@pytest.mark.parametrize("mirrored", [False, True])
def test_turned_positions_move_as_features_do(mirrored: bool) -> None:
    positions = positions_of()
    matrix = 1.1 * turned(33.0) @ (np.eye(2)[::-1] if mirrored else np.eye(2))
    found = find_feature_map(shadows_of(positions, matrix), positions)
    assert found is not None
    moved = turn_positions(positions, found)
    wanted = (positions - positions.mean(axis=0)) @ matrix.T
    moved = moved - moved.mean(axis=0)
    ratio = float((moved * wanted).sum() / (moved * moved).sum())
    assert abs(abs(ratio) - 1.1) < 0.02 and np.abs(ratio * moved - wanted).max() < 0.02 * np.abs(wanted).max()


@pytest.mark.parametrize(("as_given", "refuted"), [(1.0, True), (3.0, False)])
def test_a_turn_is_refuted_by_views_that_are_explained_better_as_given(as_given: float, refuted: bool) -> None:
    positions = positions_of()
    scan = shadows_of(positions, turned(33.0))
    found = find_feature_map(scan, positions)
    assert found is not None

    def judge_part(part: Measurement) -> Judged:
        misfit = 2 + 0.1 * np.sin(np.arange(20.0))
        is_given = np.allclose(part.positions, positions[central_views(positions, part.views)])
        return Judged(misfit * (as_given / 2) if is_given else misfit, np.full(20, 100.0))

    assert refutes_turn(scan, found, judge_part) is refuted


def test_mirrored_features_are_a_sign() -> None:
    positions = positions_of()
    scan = shadows_of(positions, np.array([[0.0, 1.2], [1.2, 0.0]]))
    (sign,) = signs_of_features(find_feature_map(scan, positions))
    assert sign.cause == "orientation" and "another direction" in sign.sentence


def test_the_order_of_views_is_told() -> None:
    positions = positions_of()
    scan = shadows_of(positions, 0.7 * np.eye(2))
    assert signs_of_order(scan, positions) == []
    late = positions[np.maximum(np.arange(N) - 2, 0)]
    signs = signs_of_order(scan, late)
    assert signs[0].cause == "lag" and "2 frames behind" in signs[0].sentence
    reversed_rows = positions.reshape(10, 10, 2).copy()
    reversed_rows[1::2] = reversed_rows[1::2, ::-1]
    assert "serpentine" in {sign.cause for sign in signs_of_order(scan, reversed_rows.reshape(-1, 2))}


def test_rows_of_a_jittered_raster_are_whole() -> None:
    rows = scan_rows(positions_of())
    assert rows is not None and [len(row) for row in rows] == [10] * 10


def misfits_of(moves: np.ndarray, positions: np.ndarray, blur: float = 0.0, known_px: float = 0.05) -> Misfits:
    """Return misfits of views that ask for these moves, each known to some pixels by counting."""
    curvature = 0.25 / known_px**2
    noise = np.random.default_rng(1).normal(0, known_px, moves.shape)
    slopes = np.zeros((len(moves), 7))
    slopes[:, [0, 2]] = curvature
    slopes[:, [3, 4]] = curvature * (moves + noise)
    slopes[:, 5], slopes[:, 6] = 100.0, 100.0 * blur
    by_view = np.zeros((len(moves), 6))
    by_view[:, 0], by_view[:, 1], by_view[:, 2], by_view[:, 3], by_view[:, 5] = 1000.0, 1000.0, 500.0, 10_000, 4096
    by_pixel = np.broadcast_to(by_view.sum(axis=0)[:, None, None] / 64, (6, 8, 8)).copy()
    by_pixel[5] = len(moves)
    return Misfits(np.arange(len(moves)), by_view, by_pixel, by_view[:, [0, 3]], slopes, positions)


def causes(moves: np.ndarray, **options: bool) -> list[str]:
    """Return the causes of which moves are a sign."""
    known = {"are_counts": True, "are_refined": False, "near_field": False}
    return [sign.cause for sign in signs_of_misfits(misfits_of(moves, positions_of()), **(known | options))]


def test_moves_by_chance_are_no_sign() -> None:
    assert causes(np.zeros((N, 2))) == []


def test_moves_name_a_map_or_a_drift() -> None:
    p = positions_of() - positions_of().mean(axis=0)
    assert causes(p @ (turned(0.5) - np.eye(2)).T)[0] == "geometry"
    assert "geometry" in causes(p * 0.03) and "distance" in causes(p * 0.03, near_field=True)
    t = np.linspace(-1, 1, N)[:, None]
    drift = 0.3 * t**2 * np.array([1.0, -0.5])
    assert "drift" in causes(drift)
    assert causes(drift, are_refined=True) == [], "refinement had not ended"
    scattered = np.random.default_rng(0).normal(0, 0.3, (N, 2))
    assert causes(scattered) == [""], "which says that it is wrong, not what"
    assert causes(scattered, are_counts=False) == []


@pytest.mark.parametrize(
    ("size_px", "known_px", "poor"), [(0.01, 0.005, False), (0.04, 0.005, True), (0.04, 0.05, False)]
)
def test_moves_are_a_sign_where_they_are_large_and_noise_does_not_make_them(
    size_px: float, known_px: float, poor: bool
) -> None:
    """A crystal whose atoms vibrate asks for hundredths of a pixel, which many counts know well."""
    moves = np.random.default_rng(0).normal(0, size_px, (N, 2))
    misfits = misfits_of(moves, positions_of(), known_px=known_px)
    assert (np.median(move_gains(misfits)) > MOST_GAIN) == (known_px < 0.05)
    signs = signs_of_misfits(misfits, are_counts=True, are_refined=False, near_field=False)
    assert bool(signs) == poor


def test_errors_of_positions_along_a_raster_are_no_drift() -> None:
    """Views ask to be moved back by the errors of the positions, which time along a raster is a map of."""
    errors = np.random.default_rng(8).normal(0, 0.5, (N, 2))
    misfits = misfits_of(-errors, positions_of() + errors)
    signs = signs_of_misfits(misfits, are_counts=True, are_refined=False, near_field=False)
    assert [sign.cause for sign in signs] == [""]


def test_sizes_and_errors_of_a_map() -> None:
    p = positions_of() - positions_of().mean(axis=0)
    found = linear_moves(p @ np.array([[0.01, -0.02], [0.02, 0.01]]).T, positions_of())
    assert found is not None
    assert found.sizes["rotation"] == pytest.approx(0.02 * p.std(), rel=1e-6)
    assert found.sizes["scale"] == pytest.approx(0.01 * p.std(), rel=1e-6)
    assert abs(found.sizes["shear"]) < 1e-9 and found.errors["rotation"] > 1e6
    assert linear_moves(p[:10], positions_of()[:10]) is None


def test_softer_patterns_are_a_sign() -> None:
    soft = misfits_of(np.zeros((N, 2)), positions_of(), blur=0.5)
    options = {"are_refined": False, "near_field": False}
    assert [sign.sentence for sign in signs_of_misfits(soft, are_counts=True, **options)] == [
        "patterns are softer than their models"
    ]
    assert signs_of_misfits(soft, are_counts=False, **options) == []
    sharper = misfits_of(np.zeros((N, 2)), positions_of(), blur=-0.5)
    assert signs_of_misfits(sharper, are_counts=True, **options) == []


def test_signs_make_a_good_fit_poor() -> None:
    misfits, floor = misfits_of(np.zeros((N, 2)), positions_of()), NoiseFloor(0.1, 0.09, 1e6)
    signs = [Sign("", 3.0, "something is wrong"), Sign("lag", 2.0, "positions are behind")]
    assert judge(0.1, floor, 0, misfits).state == "good"
    verdict = judge(0.1, floor, 0, misfits, None, signs)
    assert verdict.state == "poor" and verdict.signs == ("lag",)
    assert verdict.sentence == "the residual is 1.0 times what counting leaves, but positions are behind"
    unknown = judge(0.1, None, 0, misfits, None, signs[1:])
    assert unknown.state == "poor" and unknown.sentence == "positions are behind"
    assert judge(float("nan"), floor, 0, misfits, None, signs).signs == ()


@pytest.mark.parametrize("kind", ["xray", "near"])
def test_moves_are_those_of_a_diagnosis(kind: str) -> None:
    """The slopes by which a run judges are the derivatives that `diagnose` takes by differences."""
    measured = simulate(kind=kind, views=40, window=32, photons_per_view=1e5, seed=4).measurement
    wrong = replace(measured, positions=measured.positions @ turned(6.0).T)
    recon = Reconstruction(wrong)
    for _ in recon.run({"engine": "rpie", "epochs": 6, "batch": 8}):
        pass
    misfits = collect_misfits(recon.problem, recon.state.estimate, np.zeros((40, 2)))
    moves, _ = ResultView(recon.result(), wrong).moves
    by_run = asked_moves(misfits)
    assert np.corrcoef(by_run.ravel(), moves.ravel())[0, 1] > 0.98, "differences over half a pixel are no derivatives"
    assert 0.8 < by_run.std() / moves.std() < 1.25
    assert np.allclose(move_gains(misfits), (by_run * misfits.slopes[:, [3, 4]]).sum(axis=1))


def test_a_fit_that_is_on_its_way_is_called_unfinished() -> None:
    """Moves that views ask for are no proof of a wrong model while the residual falls; what patterns alone show is."""
    misfits, floor = misfits_of(np.zeros((N, 2)), positions_of()), NoiseFloor(0.1, 0.09, 1e6)
    moved, behind = Sign("geometry", 2.0, "views ask to be moved"), Sign("lag", 3.0, "positions are behind")
    for per_epoch, signs, names in (
        (0.98, [moved], ()),
        (0.999, [moved], ("geometry",)),
        (0.98, [behind, moved], ("lag", "geometry")),
    ):
        history = {"residual": 0.01 * per_epoch ** np.arange(30.0), "stage": np.zeros(30)}
        verdict = judge(0.1, floor, 0, misfits, history, signs)
        assert verdict.state == "poor" and verdict.signs == names
        assert ("more epochs first" in verdict.sentence) == (not names)
