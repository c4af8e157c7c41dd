"""Times to solution, as far as they go without peers: conventions of what they save, the clock, and who was first."""

from __future__ import annotations

import argparse
import bz2
import dataclasses
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from ptymesh.recipe.schema import DEFAULT_STAGES
from ptymesh.simulate import simulate

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "peers"))
import arrivals
import scenes
import solution
import turns

WINDOW, VIEWS = 32, 40
#: Where windows begin in the object that is known.
FIRST = np.array([7.0, 5.0])


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small scan in the star's format."""
    scan = simulate(views=VIEWS, window=WINDOW, photons_per_view=1e4).measurement
    assert scan.probe is not None
    file = io.BytesIO()
    patterns = scan.patterns.read(np.arange(VIEWS)).astype(np.float32)
    np.savez(file, data=patterns[None], scan=scan.positions[None], probe=scan.probe[None, None, None])
    path = tmp_path_factory.mktemp("star") / "small.npz.bz2"
    path.write_bytes(bz2.compress(file.getvalue()))
    return path


@pytest.fixture(scope="module")
def judge(packed: Path) -> solution.Judge:
    return solution.Judge(packed, 0)


@pytest.fixture(scope="module")
def known(packed: Path, judge: solution.Judge) -> solution.Found:
    """Two modes and an object of different sides that no symmetry leaves alone, of the views that are not held out."""
    star, rng = turns.load(packed), np.random.default_rng(3)
    corners = star.positions - star.positions.min(axis=0) + FIRST
    sides = np.ceil(corners.max(axis=0)).astype(int) + WINDOW + (3, 8)
    patchy = [np.kron(rng.normal(size=-(-sides // 4)), np.ones((4, 4)))[: sides[0], : sides[1]] for _ in range(2)]
    obj = (1 + 0.1 * patchy[0]) * np.exp(0.3j * patchy[1])
    return solution.Found(obj[None].astype(np.complex64), star.modes(2), corners[judge.training])


def intensities(known: solution.Found) -> np.ndarray:
    """Without ptymesh: windows from whole pixels, the probe shifted by the rest."""
    found = []
    y, x = (np.fft.fftfreq(WINDOW)[:, None], np.fft.fftfreq(WINDOW)[None])
    for corner in known.corners:
        whole = np.floor(corner + 0.5).astype(int)
        rest = corner - whole
        shifted = np.fft.ifft2(np.fft.fft2(known.probe) * np.exp(-2j * np.pi * (y * rest[0] + x * rest[1])))
        window = known.object[0, whole[0] : whole[0] + WINDOW, whole[1] : whole[1] + WINDOW]
        found.append((np.abs(np.fft.fft2(shifted * window, norm="ortho")) ** 2).sum(axis=0))
    return np.stack(found)


def as_ptymesh(known: solution.Found) -> dict[str, np.ndarray]:
    return {"object": known.object, "probe": known.probe, "positions": known.corners}


def as_ptychi(known: solution.Found) -> dict[str, np.ndarray]:
    """Its `extract_patches`: a window's first pixel is at origin + position - (side - 1) / 2, transforms are plain."""
    middles = known.corners + (WINDOW - 1) / 2
    centred = middles - (middles.min(axis=0) + middles.max(axis=0)) / 2
    probe = known.probe / WINDOW
    return {
        "object": known.object,
        "probe": probe[None].astype(np.complex64),
        "probe_positions": centred.astype(np.float32),
        "origin": (middles - centred)[0].astype(np.float32),
        "unit": np.float64(WINDOW),
    }


def as_cdtools(known: solution.Found) -> dict[str, np.ndarray]:
    norm = np.abs(known.probe).max()
    return {
        "obj": known.object[0],
        "probe": known.probe / norm,
        "probe_norm": norm,
        "positions": known.corners.astype(np.float32),
    }


def test_slices_of_cdtools_stay_slices(known: solution.Found) -> None:
    """Its model of a single one has an array without them."""
    several = np.concatenate([known.object, known.object.conj()])
    found = solution.read_cdtools({**as_cdtools(known), "obj": several})
    assert found.object.shape == several.shape and (found.object == several).all()


def as_ptyrad(known: solution.Found) -> dict[str, np.ndarray]:
    """Counts over the largest of the mean pattern."""
    scale = np.float32(37.5)
    return {
        "obja": np.abs(known.object)[None],
        "objp": np.angle(known.object)[None],
        "probe": known.probe / np.sqrt(scale),
        "positions": known.corners.astype(np.float32),
        "scale": scale,
    }


WRITERS = {"ptymesh": as_ptymesh, "ptychi": as_ptychi, "cdtools": as_cdtools, "ptyrad": as_ptyrad}


@pytest.mark.parametrize("name", solution.READERS)
def test_what_is_known_is_judged_alike_by_whoever_saved_it(
    name: str, judge: solution.Judge, known: solution.Found, packed: Path
) -> None:
    star = turns.load(packed)
    counts = star.patterns[judge.training]
    expected = ((np.sqrt(intensities(known)) - np.sqrt(counts)) ** 2).sum() / counts.sum()
    found = solution.READERS[name](WRITERS[name](known))
    assert judge.residual(found, judge.training) == pytest.approx(expected, rel=1e-4)
    assert judge.residual(found, judge.held_out) == pytest.approx(judge.residual(known, judge.held_out), rel=1e-4)


def test_views_that_were_held_out_lie_where_the_others_say(judge: solution.Judge, known: solution.Found) -> None:
    """Of a program that has seen all views, or all but those."""
    every = solution.Found(known.object, known.probe, judge.positions - judge.positions.min(axis=0) + FIRST)
    assert judge.residual(every, judge.held_out) == pytest.approx(judge.residual(known, judge.held_out), rel=1e-6)


@pytest.mark.parametrize("wrong", ["transposed", "reversed", "shifted", "conjugated", "dim"])
def test_a_wrong_convention_shows(wrong: str, judge: solution.Judge, known: solution.Found, packed: Path) -> None:
    """So that agreement above is worth something."""
    obj, probe, corners = known.object, known.probe, known.corners
    made = {
        "transposed": (obj.transpose(0, 2, 1), probe, corners),
        "reversed": (obj[:, ::-1], probe, corners),
        "shifted": (obj, probe, corners + 0.5),
        "conjugated": (obj.conj(), probe, corners),
        "dim": (obj, probe * 0.9, corners),
    }[wrong]
    right = judge.residual(known, judge.training)
    assert abs(judge.residual(solution.Found(*made), judge.training) / right - 1) > 0.002


def test_losses_of_programs_stand_for_residuals(judge: solution.Judge, known: solution.Found, packed: Path) -> None:
    counts = turns.load(packed).patterns[judge.training].astype(float)
    misfit = ((np.sqrt(intensities(known)) - np.sqrt(counts)) ** 2).mean()
    residual = judge.residual(known, judge.training)
    assert judge.own("ptymesh", residual) == residual
    assert judge.own("ptychi", misfit) == pytest.approx(residual, rel=1e-4)
    assert judge.own("cdtools", misfit) == pytest.approx(residual, rel=1e-4)
    assert judge.own("ptyrad", np.sqrt(misfit) / np.sqrt(counts).mean()) == pytest.approx(residual, rel=1e-4)


def test_what_is_no_number_is_judged_as_infinite(judge: solution.Judge, known: solution.Found) -> None:
    lost = solution.Found(known.object * np.nan, known.probe, known.corners)
    assert judge.residual(lost, judge.held_out) == np.inf


def test_positions_of_another_scan_are_refused(judge: solution.Judge, known: solution.Found) -> None:
    turned = solution.Found(known.object, known.probe, known.corners[:, ::-1])
    with pytest.raises(solution.PtymeshError, match="saved positions differ by up to"):
        judge.residual(turned, judge.training)


def test_seconds_are_those_of_a_process_that_ends_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch takes 1 s and saving 5 s: a snapshot counts its own saving, and none before it."""
    now = 10.0
    monkeypatch.setattr(turns, "clock", lambda given: now)

    def epoch() -> float:
        nonlocal now
        now += 1
        return 0.5

    def saved() -> turns.Saved:
        nonlocal now
        now += 5
        return {"object": np.full(1, now)}

    given = argparse.Namespace(snapshots=tmp_path, seconds=42.0)
    turns.serve(epoch, given, "clocked 1.0", saved)
    lines = [json.loads(line) for line in (tmp_path / "snapshots.jsonl").read_text().splitlines()]
    assert [line["seconds"] for line in lines] == [10 + line["epoch"] + 5 for line in lines]
    assert [line["epoch"] for line in lines] == [*range(1, 21), 22, 24, 26, 28, 30, 32]
    assert {path.stem for path in tmp_path.glob("*.npz")} == {str(line["epoch"]) for line in lines}


@pytest.mark.parametrize("epochs, saved", [(2, [1, 2]), (22, [*range(1, 21), 22]), (25, [*range(1, 21), 22, 24, 25])])
def test_a_program_that_is_done_ends_there(tmp_path: Path, epochs: int, saved: list[int]) -> None:
    """Its last epoch is saved once, whether or not its turn had come."""
    left = iter([0.5] * epochs)
    turns.serve(lambda: next(left), argparse.Namespace(snapshots=tmp_path, seconds=1e9, clock="cpu"), "done", dict)
    lines = [json.loads(line) for line in (tmp_path / "snapshots.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == saved


def few(name: str) -> scenes.Scene:
    """A scene of 30 views."""
    scene = scenes.SCENES[name]
    return dataclasses.replace(scene, simulated={**scene.simulated, "views": 30})


def test_the_crystal_is_judged_through_its_slices(tmp_path: Path) -> None:
    """What it was made of leaves what counting does; its slices in another order, or one of them, leave more."""
    scene, path = few("crystal"), tmp_path / "crystal.npz.bz2"
    scene.write(path)
    judge, known = solution.Judge(path, 0, scene), simulate(**scene.simulated).truth
    probe, corners = known.probe.astype(np.complex64), np.rint(known.positions)
    assert (judge.positions == corners - corners.min(axis=0)).all()

    def residual(obj: np.ndarray) -> float:
        return judge.residual(solution.Found(obj.astype(np.complex64), probe, corners), judge.training)

    right = residual(known.object)
    assert 0 < right < 0.02
    assert residual(known.object[::-1]) > 1.05 * right and residual(np.ones_like(known.object)) > 1.5 * right


@pytest.mark.long
def test_the_near_field_lies_on_whole_pixels_and_is_judged_at_its_distance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What made it leaves what counting does, worked out here without ptymesh; another distance leaves more."""
    scene, path = few("near"), tmp_path / "near.npz.bz2"
    scene.write(path)
    judge, star = solution.Judge(path, 0, scene), turns.load(path)
    known = simulate(**scene.simulated).truth
    corners = np.rint(known.positions)
    assert (star.positions == corners - corners.min(axis=0)).all()
    side, words = scene.simulated["window"], scene.words
    k2 = sum(k**2 for k in np.meshgrid(*[np.fft.fftfreq(side, 1e-10 * words["pixel"])] * 2, indexing="ij"))
    kernel = np.exp(2j * np.pi * words["distance"] * np.sqrt((1e10 / words["wavelength"]) ** 2 - k2))
    misfit = counts = 0.0
    for view in judge.training[:5]:
        y, x = corners[view].astype(int)
        exit_wave = known.probe[0] * known.object[0, y : y + side, x : x + side]
        made = np.abs(np.fft.ifft2(kernel * np.fft.fft2(exit_wave)))
        misfit += ((made - np.sqrt(star.patterns[view])) ** 2).sum()
        counts += star.patterns[view].sum()
    found = solution.Found(known.object.astype(np.complex64), known.probe.astype(np.complex64), corners)
    assert judge.residual(found, judge.training[:5]) == pytest.approx(misfit / counts, rel=1e-3)
    assert 0 < misfit / counts < 0.001
    farther = {**scene.lengths, "distance_m": 1.5 * scene.lengths["distance_m"]}
    monkeypatch.setattr(scenes.Scene, "lengths", farther)
    assert solution.Judge(path, 0, scene).residual(found, judge.training[:5]) > 10 * misfit / counts


def test_a_program_that_has_no_such_model_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["solution.py", "scan.npz.bz2", "--venv", "peers", "--scene", "near", "--search", "ptyrad"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit):
        solution.main()
    assert "ptyrad is not run on the scene near; search ptychi or cdtools" in capsys.readouterr().err


@pytest.mark.long
def test_ptymesh_runs_its_default_without_the_views_held_out(
    packed: Path, judge: solution.Judge, tmp_path: Path
) -> None:
    given = argparse.Namespace(star=packed, threads=1, clock="wall", seconds=60.0, scene="star")
    held = solution._noted(judge, tmp_path)
    solution.run(Path(sys.executable), "ptymesh", {"engine": "default"}, 2, held, tmp_path / "run", given)
    found = solution.judged("ptymesh", tmp_path / "run", judge)
    points = found["curve"]
    assert points[-1]["epoch"] == sum(stage["epochs"] for stage in DEFAULT_STAGES)
    assert points[0]["seconds"] < points[-1]["seconds"] < 60
    assert points[-1]["held_out"] < points[0]["held_out"]
    assert found["training"] == pytest.approx(found["own_training"], rel=0.2)


def test_who_was_first() -> None:
    """A program has arrived within 1 % of its lowest; ptymesh when it is as good."""

    def case(program: str, *curve: tuple[float, float]) -> dict:
        points = [{"epoch": 1 + i, "seconds": at, "held_out": held} for i, (at, held) in enumerate(curve)]
        return {"program": program, "modes": 1, "curve": points}

    cases = [
        case("slow", (10, 0.5), (20, 0.1004), (30, 0.1), (40, 0.2)),
        case("ptymesh", (1, 0.4), (2, 0.1), (3, 0.09)),
        case("better", (50, 0.05)),
    ]
    ours, slow, better = arrivals.arrivals(cases)
    assert (ours.seconds, ours.lowest, ours.ratio) == (3, 0.09, 1)
    assert (slow.lowest, slow.epoch, slow.seconds, slow.ours, slow.ratio) == (0.1, 2, 20, 2, 10)
    assert (better.seconds, better.ours, better.ratio) == (50, None, None)


def test_seconds_of_runs_are_medians() -> None:
    """As far as the shortest of them has come."""
    epochs = {3: 2, 1: 2, 2: 3}
    runs = [{"curve": [{"epoch": i, "seconds": s * i} for i in range(1, 1 + n)]} for s, n in epochs.items()]
    assert solution.medians(runs)["curve"] == [{"epoch": 1, "seconds": 2}, {"epoch": 2, "seconds": 4}]


@pytest.mark.parametrize("scene", scenes.SCENES)
def test_what_was_found_was_searched_for(scene: str) -> None:
    one = scenes.SCENES[scene]
    assert one.found.keys() == {"ptymesh", *one.candidates}
    for name, found in one.found.items():
        assert name == "ptymesh" or found in one.candidates[name]
        assert one.best(name, 1) == found
    for modes, others in one.more_modes.items():
        for name, found in others.items():
            assert found in one.candidates[name] and found != one.found[name]
            assert one.best(name, modes) == found
