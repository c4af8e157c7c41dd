"""A live run says how far it is, and does what it is asked in its folder, as other runs do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptymesh.cli import live, running
from ptymesh.distributed.world import World
from ptymesh.errors import BadInput, Interrupted
from ptymesh.io.results import Result
from ptymesh.live import HandedFrames, LiveOptions, Spool, SpooledStream, reconstruct_live, session
from ptymesh.live.serving import Played, read_scan
from ptymesh.live.state import read_log
from ptymesh.recipe.schema import Recipe
from ptymesh.run_folder import control
from ptymesh.run_folder.control import read_request, write_request
from ptymesh.run_folder.status import Throttle
from ptymesh.simulate import simulate
from ptymesh.watch.runs import RunFolder

VIEWS, SOME = 96, 56
RECIPE = Recipe.parse({"data": {"path": "none.cxi"}, "stages": [{"engine": "rpie", "epochs": 2, "batch": 16}]})


@pytest.fixture(scope="module")
def played() -> Played:
    return read_scan(simulate(views=VIEWS, window=32, seed=3).measurement)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each word is written, and each request is seen, without waiting for the clock."""
    monkeypatch.setattr(Throttle, "is_due", lambda self: True)
    monkeypatch.setattr(control, "EVERY_S", 0.0)


def handed(played: Played, count: int) -> HandedFrames:
    """Return a source that has the first frames, and does not end."""
    source = HandedFrames(played.description)
    source.hand(played.frames[:count], played.positions_m[:count])
    return source


def status(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "status.json").read_text())
    return found


def segments(out: Path) -> int:
    return len(read_log(out / "live.jsonl"))


def once(true: Callable[[], bool], act: Callable[[], object]) -> Callable[[], bool]:
    """Return what `stop` may be: it acts the first time that something is true, and asks for nothing."""
    acted: list[object] = []

    def look() -> bool:
        if not acted and true():
            acted.append(act())
        return False

    return look


def test_asked_to_stop_it_ends_with_the_frames_that_have_come(played: Played, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def ask() -> None:
        seen.append(status(tmp_path) | {"state": RunFolder(tmp_path, tmp_path.parent).summary()["state"]})
        write_request(tmp_path, "stop")

    said: list[str] = []
    steered = once(lambda: segments(tmp_path) > 1, ask)
    outcome, scan = reconstruct_live(
        RECIPE, handed(played, SOME), tmp_path, LiveOptions(uses=9), stop=steered, say=said.append
    )
    (during,) = seen
    assert (during["state"], during["phase"], during["frames"]) == ("running", "receiving", SOME)
    assert during["expected_frames"] == VIEWS and during["engine"] == "rpie" and during["residual"] > 0
    assert outcome.views == scan.views == SOME and outcome.uses.min() >= 9
    assert f"Asked to stop: {SOME} frames have come, and no more are taken." in said
    assert (status(tmp_path)["phase"], status(tmp_path)["outcome"]) == ("done", None)
    assert read_request(tmp_path) is None and not Spool(tmp_path / "spool").has_ended
    # the same command goes on with the frames that follow
    rest = HandedFrames(played.description, first=SOME)
    rest.hand(played.frames[SOME:], played.positions_m[SOME:])
    rest.end()
    outcome, scan = reconstruct_live(RECIPE, rest, tmp_path, LiveOptions(uses=9))
    assert scan.views == VIEWS and outcome.uses.min() >= 9 and len(outcome.latencies_s) == VIEWS - SOME
    replayed = SpooledStream(tmp_path)
    options = LiveOptions(uses=9, admissions=replayed.admissions(9))
    reconstruct_live(RECIPE, replayed, tmp_path / "again", options)
    one, other = (Result.load(folder / "live.h5") for folder in (tmp_path, tmp_path / "again"))
    assert np.array_equal(one.object, other.object) and np.array_equal(one.probe, other.probe)


def test_asked_again_it_stops_at_once(played: Played, tmp_path: Path) -> None:
    asked: list[int] = []

    def steered() -> bool:
        if len(asked) < 2 and segments(tmp_path) > 2 * len(asked):
            asked.append(segments(tmp_path))
            write_request(tmp_path, "stop")
        return False

    with pytest.raises(Interrupted, match=f"Stopped with {SOME} frames"):
        reconstruct_live(RECIPE, handed(played, SOME), tmp_path, LiveOptions(uses=1000), stop=steered)
    assert segments(tmp_path) < 20 and Result.load(tmp_path / "live.h5").attrs["frames"] == SOME
    assert status(tmp_path)["outcome"] == "interrupted" and "goes on with them" in status(tmp_path)["sentence"]
    assert RunFolder(tmp_path, tmp_path.parent).summary()["state"] == "interrupted"


def test_nothing_to_end_with(played: Played, tmp_path: Path) -> None:
    steered = once(lambda: True, lambda: write_request(tmp_path, "stop"))
    with pytest.raises(Interrupted, match="Stopped with 0 frames"):
        reconstruct_live(RECIPE, HandedFrames(played.description), tmp_path, LiveOptions(), stop=steered)
    assert status(tmp_path)["outcome"] == "interrupted"


def test_a_picture_when_it_is_asked_for(played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where none is due, as where writing one takes long."""
    monkeypatch.setattr(session, "SNAPSHOT_S", float("inf"))
    written: list[int] = []

    def look() -> bool:
        done = segments(tmp_path)
        if done and not written:
            written.append(done)
            write_request(tmp_path, "save")
        elif written and done > written[0]:
            written.append(int(Result.load(tmp_path / "live.h5").attrs["segments"]))
            return True
        return False

    with pytest.raises(Interrupted):
        reconstruct_live(RECIPE, handed(played, SOME), tmp_path, LiveOptions(uses=4), stop=look)
    assert read_request(tmp_path) is None and written == [1, 1]


def test_what_fails_says_so_and_what_is_refused_leaves_all_as_it_was(played: Played, tmp_path: Path) -> None:
    class Broken(HandedFrames):
        def take(self, first: int) -> Any:
            if first:
                raise BadInput("The detector has caught fire; put it out.")
            return super().take(first)

    source = Broken(played.description)
    source.hand(played.frames[:SOME], played.positions_m[:SOME])
    with pytest.raises(BadInput, match="caught fire"):
        reconstruct_live(RECIPE, source, tmp_path, LiveOptions())
    assert status(tmp_path)["outcome"] == "failed" and "caught fire" in status(tmp_path)["sentence"]
    before = (tmp_path / "status.json").read_bytes()
    other = HandedFrames(played.description.__class__((16, 16), "<u2"))
    with pytest.raises(BadInput, match="choose another folder"):
        reconstruct_live(RECIPE, other, tmp_path, LiveOptions())
    assert (tmp_path / "status.json").read_bytes() == before


def test_where_another_run_follows_it_is_not_done(played: Played, tmp_path: Path) -> None:
    source = handed(played, SOME)
    source.end()
    reconstruct_live(RECIPE, source, tmp_path, LiveOptions(uses=1, followed=True))
    assert status(tmp_path)["phase"] == "saving"
    assert RunFolder(tmp_path, tmp_path.parent).summary()["state"] == "running"


def test_a_polish_that_is_refused(played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has failed, and is not said to be saving for ever."""

    def refuse(*_: object, **__: object) -> None:
        raise BadInput("The scan shows no object; check the beam.")

    monkeypatch.setattr(running, "execute", refuse)
    source = handed(played, SOME)
    source.end()
    reconstruct_live(RECIPE, source, tmp_path, LiveOptions(uses=1, followed=True))
    with pytest.raises(BadInput, match="no object"):
        live._polish(RECIPE, tmp_path, strict=False)
    assert status(tmp_path)["outcome"] == "failed" and "no object" in status(tmp_path)["sentence"]
    assert RunFolder(tmp_path, tmp_path.parent).summary()["state"] == "failed"


def stopped_on_ranks(world: World, played: Played, out: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Return object, probe and views of a run that is asked to stop by its folder, on these ranks."""
    control.EVERY_S = 0.0
    steered = once(lambda: segments(out) > 1, lambda: write_request(out, "stop"))
    source, stop = (handed(played, SOME), steered) if world.rank == 0 else (None, lambda: False)
    _, scan = reconstruct_live(RECIPE, source, out, LiveOptions(uses=3), world=world, stop=stop)
    world.barrier()
    found = Result.load(out / "live.h5")
    return found.object, found.probe, scan.views


def test_all_ranks_end_alike(ranks: Callable[..., list[Any]], played: Played, tmp_path: Path) -> None:
    first, second = ranks(2, stopped_on_ranks, played, tmp_path)
    replayed = SpooledStream(tmp_path)
    options = LiveOptions(uses=3, admissions=replayed.admissions(3))
    _, scan = reconstruct_live(RECIPE, replayed, tmp_path / "again", options)
    found = Result.load(tmp_path / "again" / "live.h5")
    for obj, probe, views in (first, second):
        assert np.array_equal(obj, found.object) and np.array_equal(probe, found.probe)
        assert views == scan.views == SOME


def test_frames_that_come_after_the_request_wait_for_the_next_command(played: Played, tmp_path: Path) -> None:
    source, threads = handed(played, SOME), []

    def ask() -> None:
        write_request(tmp_path, "stop")
        more = (played.frames[SOME:], played.positions_m[SOME:])
        threads.append(threading.Timer(0.05, source.hand, more))
        threads[0].start()

    steered = once(lambda: segments(tmp_path) > 1, ask)
    outcome, _ = reconstruct_live(RECIPE, source, tmp_path, LiveOptions(uses=9), stop=steered)
    threads[0].join()
    assert outcome.views == Spool(tmp_path / "spool").count == SOME
