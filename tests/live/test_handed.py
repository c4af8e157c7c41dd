"""Frames that a program hands over: none is lost, what is stored is let go, and what does not fit is refused."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from ptymesh.compare import compare_results
from ptymesh.errors import BadInput, Interrupted
from ptymesh.io.results import Result
from ptymesh.live import HandedFrames, LiveOptions, SpooledStream, reconstruct_live
from ptymesh.live.frames import MOST
from ptymesh.live.serving import Played, read_scan
from ptymesh.live.spool import StreamDescription
from ptymesh.live.state import read_log
from ptymesh.recipe.schema import Recipe
from ptymesh.simulate import simulate

VIEWS = 96


@pytest.fixture(scope="module")
def played() -> Played:
    return read_scan(simulate(views=VIEWS, window=32, seed=3).measurement)


KEYS = {"data": {"path": "none.cxi"}, "stages": [{"engine": "rpie", "epochs": 2, "batch": 16}]}
RECIPE = Recipe.parse(KEYS)


def hand_over(source: HandedFrames, played: Played, first: int, last: int) -> None:
    for at in range(first, last, 20):
        upto = min(at + 20, last)
        source.hand(played.frames[at:upto], played.positions_m[at:upto])


def test_a_thread_hands_frames_over_and_a_replay_has_the_same_bits(played: Played, tmp_path: Path) -> None:
    source = HandedFrames(played.description)

    def acquire() -> None:
        hand_over(source, played, 0, VIEWS)
        source.end()

    detector = threading.Thread(target=acquire)
    detector.start()
    outcome, measured = reconstruct_live(RECIPE, source, tmp_path / "made", LiveOptions(uses=1))
    detector.join()
    assert outcome.views == measured.views == VIEWS
    np.testing.assert_array_equal(SpooledStream(tmp_path / "made").take(0).frames, played.frames)
    stream = SpooledStream(tmp_path / "made")
    options = LiveOptions(uses=1, admissions=stream.admissions(1))
    reconstruct_live(RECIPE, stream, tmp_path / "again", options)
    one, other = (Result.load(tmp_path / name / "live.h5") for name in ("made", "again"))
    assert np.array_equal(one.object, other.object) and np.array_equal(one.probe, other.probe)


@pytest.mark.parametrize("again", [True, False])
def test_a_run_that_was_stopped_goes_on(played: Played, tmp_path: Path, again: bool) -> None:
    """With all frames handed over again, or with those that it has not stored."""
    source, segments = HandedFrames(played.description), iter((False, True))
    hand_over(source, played, 0, 40)
    with pytest.raises(Interrupted):
        reconstruct_live(RECIPE, source, tmp_path, LiveOptions(uses=1), stop=lambda: next(segments))
    assert not source.take(40).frames.size
    rest = HandedFrames(played.description, first=0 if again else 40)
    hand_over(rest, played, 0 if again else 40, VIEWS)
    rest.end()
    assert reconstruct_live(RECIPE, rest, tmp_path, LiveOptions(uses=1))[0].views == VIEWS


def test_frames_are_let_go_when_they_are_stored() -> None:
    source = HandedFrames(StreamDescription((2, 3), "<u2"))
    frames = np.arange(6 * (MOST + 5), dtype="<u2").reshape(-1, 2, 3)
    source.hand(frames, np.zeros((len(frames), 2)))
    frames[:] = 0  # a detector's buffer is used again
    source.end()
    first = source.take(0)
    assert len(first.frames) == MOST and not first.ended and first.frames[1, 0, 0] == 6
    last = source.take(MOST)
    assert len(last.frames) == 5 and last.ended and last.frames[0, 0, 0] == 6 * MOST
    done = source.take(MOST + 5)
    assert done.frames.shape == (0, 2, 3) and done.ended
    with pytest.raises(BadInput, match="from number 261 on, and the run's folder holds 3; begin with number 3"):
        source.take(3)


def test_what_does_not_fit_is_refused() -> None:
    source = HandedFrames(StreamDescription((2, 3), "<u2"))
    frames, places = np.zeros((4, 2, 3), "<u2"), np.zeros((4, 2))
    with pytest.raises(BadInput, match=r"they must be \(n, 2, 3\) uint16"):
        source.hand(frames[0], places)
    with pytest.raises(BadInput, match=r"they must be \(n, 2, 3\) uint16"):
        source.hand(frames.astype(float), places)
    with pytest.raises(BadInput, match=r"Positions of 4 frames must be \(4, 2\), not \(3, 2\)"):
        source.hand(frames, places[:3])
    with pytest.raises(BadInput, match="not finite"):
        source.hand(frames, np.full((4, 2), np.nan))
    source.end()
    with pytest.raises(BadInput, match="after the stream has been ended"):
        source.hand(frames, places)


@pytest.mark.parametrize(
    ("kind", "radiation", "most"), [("potential", "electron", 0.03), ("amplitude_phase", "xray", 0.3)]
)
def test_values_go_from_segment_to_segment(kind: str, radiation: str, most: float, tmp_path: Path) -> None:
    """Also through a stop and after a segment that was not kept, to the same bits, and they grow with the scan."""
    made = simulate(kind=radiation, views=60, window=32, overlap=0.7, slices=1, photons_per_view=1e6, seed=4)
    truth = Result(
        made.truth.object, made.truth.probe, made.truth.positions, pixel_size_m=made.truth.geometry.object_pixel_m
    )
    truth.save(tmp_path / "truth.h5")
    start = {"kind": "result", "path": str(tmp_path / "truth.h5")}
    played = read_scan(made.measurement)
    rows = np.argsort(played.positions_m[:, 0])  # a scan that goes from top to bottom
    played = played._replace(frames=played.frames[rows], positions_m=played.positions_m[rows])
    recipe = Recipe.parse({**KEYS, "object": {"kind": kind}, "probe": {"start": start}})
    planned = ((20, False), (30, False), (40, False))

    def run(folder: Path, stops: int = 0) -> Result:
        source = HandedFrames(played.description)
        hand_over(source, played, 0, 60)
        source.end()
        options = LiveOptions(uses=8, admissions=planned)
        reconstruct_live(
            recipe, source, folder, options, stop=lambda: 0 < stops <= len(read_log(folder / "live.jsonl"))
        )
        return Result.load(folder / "live.h5")

    whole = run(tmp_path / "whole")
    assert whole.potential is not None and whole.attrs["object_kind"] == kind
    assert np.ptp(whole.potential) > 0.1 and (whole.potential_V_nm is not None) == (kind == "potential")
    np.testing.assert_allclose(whole.object / np.abs(whole.object), np.exp(1j * whole.potential), atol=1e-6)
    assert ("object_values" in whole.unknowns) == (kind != "potential")
    assert compare_results(whole, truth).nrmse < most
    with pytest.raises(Interrupted):
        run(tmp_path / "stopped", 2)
    stopped = Result.load(tmp_path / "stopped" / "live.h5")
    assert stopped.object.size < whole.object.size
    with (tmp_path / "stopped" / "live.jsonl").open("a") as log:  # a segment whose object a killed process has not kept
        log.write(json.dumps(read_log(tmp_path / "stopped" / "live.jsonl")[-1]) + "\n")
    again = run(tmp_path / "stopped")
    assert np.array_equal(again.potential, whole.potential) and np.array_equal(again.object, whole.object)
    assert np.array_equal(again.probe, whole.probe) and again.attrs.get("absorption", 0) == 0
    for name, values in whole.unknowns.items():
        assert np.array_equal(again.unknowns[name], values)
