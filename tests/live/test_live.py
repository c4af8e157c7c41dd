"""Reconstruction while frames arrive: nothing is lost, and the picture is nearly that of a run with all frames."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import pytest
import torch

import ptymesh as pm
from ptymesh.compare import compare_results
from ptymesh.distributed.world import World
from ptymesh.engines.gradients.elementwise import Elementwise
from ptymesh.errors import BadInput, Interrupted, PtymeshError
from ptymesh.io.results import Result
from ptymesh.live import LiveOptions, Spool, SpooledStream, open_source, reconstruct_live
from ptymesh.live import spool as spool_module
from ptymesh.live.choice import LARGEST, MIXED, SEGMENT, choose_batch, choose_views
from ptymesh.live.frames import Frames
from ptymesh.live.object_parts import join_part, paste
from ptymesh.live.serving import serve_scan
from ptymesh.live.spool import StreamDescription
from ptymesh.live.state import read_log
from ptymesh.measurement import PatternSource
from ptymesh.recipe.schema import Recipe, load_recipe
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from ptymesh.storage.cached import PatternCache

zmq = pytest.importorskip("zmq")

VIEWS = 160
STAGES = "stages: [{engine: rpie, epochs: 3, batch: 16}]\noutput: {figures: false}\n"


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated scan as a file; its truth lies beside it."""
    path = tmp_path_factory.mktemp("live") / "scan.cxi"
    write(checked(views=VIEWS, window=32, seed=3), path)
    return path


@pytest.fixture(scope="module")
def recipe(scan: Path) -> Recipe:
    """The recipe of the live part, whose probe is that of an earlier run on the same beam."""
    earlier = scan.with_name("earlier.h5")
    recon = pm.Reconstruction(str(scan))
    for _ in recon.run(pm.RPIE(batch=16), epochs=8):
        pass
    recon.result().save(earlier)
    text = f"data: {{path: none.cxi}}\nprobe: {{start: {{kind: result, path: {earlier}}}}}\n{STAGES}"
    path = scan.with_name("live.yaml")
    path.write_text(text)
    return load_recipe(path)


class Prepared:
    """A source that has all frames from the start, and gives some at a time."""

    def __init__(self, path: Path, most: int, ends: bool = True) -> None:
        measured = pm.load(path)
        self.frames = np.fft.fftshift(measured.patterns.read(np.arange(measured.views)), axes=(-2, -1))
        self.positions = measured.positions * np.array(measured.geometry.object_pixel_m)
        geometry = measured.geometry
        self.said = StreamDescription(
            measured.window,
            self.frames.dtype.str,
            energy_eV=geometry.energy_eV,
            radiation=geometry.radiation,
            distance_m=geometry.distance_m,
            detector_pixel_m=geometry.detector_pixel_m,
        )
        self.most, self.ends, self.taken = most, ends, 0

    def describe(self) -> StreamDescription | None:
        return self.said

    def take(self, first: int) -> Frames | None:
        last = min(first + self.most, len(self.frames))
        self.taken = max(self.taken, last)
        return Frames(self.frames[first:last], self.positions[first:last], self.ends and last == len(self.frames))

    def close(self) -> None:
        pass


def error(found: Path | Result, scan: Path) -> float:
    """Return the object's error against the truth."""
    result = Result.load(found) if isinstance(found, Path) else found
    return compare_results(result, Result.load(scan.with_suffix(".truth.h5"))).nrmse


def test_as_good_as_all_frames_at_once(scan: Path, recipe: Recipe, tmp_path: Path) -> None:
    outcome, measured = reconstruct_live(recipe, Prepared(scan, 40), tmp_path, LiveOptions(uses=3))
    assert outcome.views == measured.views == VIEWS
    assert outcome.uses.min() >= 3  # more often where time was left while frames came
    assert len(outcome.latencies_s) == VIEWS and (outcome.latencies_s >= 0).all()
    offline = pm.Reconstruction(str(scan), probe=recipe.probe)
    for _ in offline.run(pm.RPIE(batch=16), epochs=3):
        pass
    assert error(tmp_path / "live.h5", scan) < 1.2 * error(offline.result(), scan)
    rows = [json.loads(line) for line in (tmp_path / "live.jsonl").read_text().splitlines()]
    assert sum(row["new"] for row in rows) == VIEWS
    assert sum(row["views"] for row in rows) == outcome.uses.sum()
    assert rows[-1]["least_uses"] >= 3 and rows[-1]["unseen"] == 0
    assert all(row["latency_s"] > 0 for row in rows if row["new"])
    summary = json.loads((tmp_path / "live.json").read_text())
    assert summary == outcome.summary()
    assert summary["latency_median_s"] == np.median(outcome.latencies_s)
    assert 0 <= summary["uses_at_end_of_stream"]["mean"] <= summary["uses"]["mean"] == outcome.uses.mean()
    attrs = Result.load(tmp_path / "live.h5").attrs
    assert attrs["frames"] == VIEWS and attrs["seconds"] >= summary["seconds"]


def test_more_uses_are_better(scan: Path, recipe: Recipe, tmp_path: Path) -> None:
    errors = []
    for uses in (1, 6):
        reconstruct_live(recipe, Prepared(scan, 200), tmp_path / str(uses), LiveOptions(uses=uses))
        errors.append(error(tmp_path / str(uses) / "live.h5", scan))
    assert errors[1] < 0.8 * errors[0]


@pytest.mark.parametrize("crop", [16, 40])
def test_memory_is_there_before_the_first_frame(
    crop: int, scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told(Prepared):
        def take(self, first: int) -> Frames | None:
            events.append("frames")
            return super().take(first)

    def reserve(cache: PatternCache, source: PatternSource, share: int = 1) -> None:
        events.append((cache.expected, source.shape[1:], source.dtype, share))
        kept(cache, source, share)

    events: list[object] = []
    kept = PatternCache.reserve
    monkeypatch.setattr(PatternCache, "reserve", reserve)
    source, text = Told(scan, 40), tmp_path / "live.yaml"
    source.said = replace(source.said, views=VIEWS)
    text.write_text(f"data: {{path: none.cxi, crop: [{crop}, {crop}], centre: find}}\n{STAGES}")
    if crop > source.said.shape[0]:  # is said as it is where no memory is reserved
        with pytest.raises(BadInput, match=r"data\.crop asks for 40 pixels of a detector that has 32"):
            reconstruct_live(load_recipe(text), source, tmp_path, LiveOptions(uses=1))
        return
    outcome, _ = reconstruct_live(load_recipe(text), source, tmp_path, LiveOptions(uses=1))
    assert outcome.views == VIEWS and Result.load(tmp_path / "live.h5").probe.shape[-2:] == (16, 16)
    assert events[:2] == [(VIEWS, (16, 16), source.frames.dtype, 1), "frames"]


def test_over_zeromq(scan: Path, recipe: Recipe, tmp_path: Path) -> None:
    served: list[str] = []
    server = threading.Thread(target=serve_scan, args=(pm.load(scan), "tcp://127.0.0.1:*", 400.0, served), daemon=True)
    server.start()
    while not served:
        time.sleep(0.01)
    outcome, measured = reconstruct_live(recipe, open_source(served[0]), tmp_path, LiveOptions(timeout_s=60))
    server.join(20)
    assert not server.is_alive()  # as all frames have been stored
    whole = pm.load(scan)
    assert np.array_equal(measured.patterns.read(np.arange(VIEWS)), whole.patterns.read(np.arange(VIEWS)))
    assert np.abs(measured.positions - whole.positions).max() < 1e-9
    assert measured.geometry == whole.geometry
    assert outcome.uses.min() >= 3


@pytest.mark.parametrize("swmr", [True, False])
def test_a_file_that_grows(scan: Path, recipe: Recipe, tmp_path: Path, swmr: bool) -> None:
    made, path = Prepared(scan, 1), tmp_path / "growing.h5"
    done: list[bool] = []

    def write_slowly() -> None:
        with h5py.File(path, "w", libver="latest") as file:
            patterns = file.create_dataset("d/frames", (0, 32, 32), made.frames.dtype, maxshape=(None, 32, 32))
            positions = file.create_dataset("d/yx", (0, 2), "f8", maxshape=(None, 2))
            patterns.attrs["ended"] = False
            if swmr:
                file.swmr_mode = True
            for first in range(0, VIEWS, 20):
                for data, rows in ((positions, made.positions), (patterns, made.frames)):
                    data.resize(first + 20, axis=0)
                    data[first:] = rows[first : first + 20]
                    data.flush()
                time.sleep(0.02)
            patterns.attrs["ended"] = True
        done.append(True)

    said = made.said
    settings = [
        f"data.energy_eV={said.energy_eV!r}",
        f"data.radiation={said.radiation}",
        f"data.distance_m={said.distance_m!r}",
        f"data.detector_pixel_m=[{said.detector_pixel_m[0]!r}, {said.detector_pixel_m[1]!r}]",  # type: ignore[index]
    ]
    known = load_recipe(scan.with_name("live.yaml"), settings)
    writer = threading.Thread(target=write_slowly)
    source = open_source(str(path), "/d/frames", "/d/yx")
    assert source.describe() is None  # there is no file yet
    writer.start()
    if not swmr:  # a file that is written without SWMR is read once it is closed
        writer.join()
    outcome, measured = reconstruct_live(known, source, tmp_path / "out", LiveOptions(uses=1, timeout_s=60))
    writer.join()
    assert done and outcome.views == VIEWS
    assert np.array_equal(measured.patterns.read(np.arange(VIEWS)), pm.load(scan).patterns.read(np.arange(VIEWS)))


@pytest.mark.forked
@pytest.mark.long
def test_killed_and_started_again(scan: Path, recipe: Recipe, tmp_path: Path) -> None:
    """The same frames are there at the end, and each is used as often as asked."""
    served: list[str] = []
    server = threading.Thread(target=serve_scan, args=(pm.load(scan), "tcp://127.0.0.1:*", 60.0, served), daemon=True)
    server.start()
    while not served:
        time.sleep(0.01)
    out = tmp_path / "out"
    command = [sys.executable, "-P", "-m", "ptymesh", "live", str(scan.with_name("live.yaml")), "--from", served[0]]
    command += ["--out", str(out), "--timeout", "60"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    first = subprocess.Popen(command, **quiet)  # type: ignore[call-overload]
    positions = out / "spool" / "positions.raw"
    while not positions.exists() or positions.stat().st_size < 16 * 20:
        assert first.poll() is None
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert Spool(out / "spool").count < VIEWS
    with (out / "spool" / "frames.raw").open("ab") as file:
        file.write(b"half a frame")  # as a write that was cut short leaves it
    again = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert again.returncode == 0, again.stderr
    assert f"{VIEWS} frames" in again.stdout
    spool = Spool(out / "spool")
    whole = Prepared(scan, 1)
    assert spool.has_ended and spool.count == VIEWS
    assert np.array_equal(np.fromfile(spool.folder / "frames.raw", whole.frames.dtype), whole.frames.ravel())
    assert Result.load(out / "result.h5").attrs["verdict"] in ("good", "poor")
    assert error(out / "result.h5", scan) < error(out / "live.h5", scan)
    # there is no source any more, and none is needed
    outcome, _ = reconstruct_live(recipe, open_source("tcp://127.0.0.1:1"), out, LiveOptions(uses=1))
    assert outcome.views == VIEWS


@pytest.mark.long
def test_a_rank_that_dies_is_started_again(scan: Path, recipe: Recipe, tmp_path: Path) -> None:
    """Ranks go on from the spool and the object; the source knows nothing of it."""
    served: list[str] = []
    server = threading.Thread(target=serve_scan, args=(pm.load(scan), "tcp://127.0.0.1:*", 30.0, served), daemon=True)
    server.start()
    while not served:
        time.sleep(0.01)
    out = tmp_path / "out"
    command = [sys.executable, "-P", "-m", "ptymesh", "live", str(scan.with_name("live.yaml")), "--from", served[0]]
    command += ["--out", str(out), "--timeout", "60", "--ranks", "2", "--max-restarts", "1"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while len(read_log(out / "live.jsonl")) < 2:
        assert running.poll() is None
        time.sleep(0.05)
    victim = next(one for one in psutil.Process(running.pid).children() if one.environ().get("RANK") == "1")
    victim.kill()
    said, _ = running.communicate(timeout=200)
    assert running.returncode == 0, said
    assert "starting the ranks again" in said and f"{VIEWS} frames" in said
    whole, spool = Prepared(scan, 1), Spool(out / "spool")
    assert np.array_equal(np.fromfile(spool.folder / "frames.raw", whole.frames.dtype), whole.frames.ravel())
    rows = read_log(out / "live.jsonl")
    assert [row["segment"] for row in rows] == list(range(1, len(rows) + 1))
    assert sum(row["new"] for row in rows) == VIEWS and rows[-1]["least_uses"] >= 3
    assert Result.load(out / "result.h5").attrs["ranks"] == 2


def stop_after(folder: Path, segments: int) -> Callable[[], bool]:
    """Return a function that asks a live run to stop once it has done so many segments."""
    return lambda: len(read_log(folder / "live.jsonl")) >= segments


def test_stopped_it_goes_on_from_its_object(scan: Path, recipe: Recipe, tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    with pytest.raises(Interrupted, match="goes on with them"):
        reconstruct_live(recipe, Prepared(scan, 40, ends=False), part, LiveOptions(), stop=stop_after(part, 2))
    rows = read_log(part / "live.jsonl")
    assert Result.load(part / "live.h5").attrs["segments"] == len(rows) == 2
    with (part / "live.jsonl").open("a") as log:  # segments whose object a killed process has not written
        log.write(json.dumps(rows[-1] | {"frames": VIEWS}) + "\n" + '{"frames": 1')
    outcome, _ = reconstruct_live(recipe, Prepared(scan, 40), part, LiveOptions())
    assert outcome.views == VIEWS and outcome.uses.min() >= 3
    found = read_log(part / "live.jsonl")
    assert found[:2] == rows and [row["segment"] for row in found] == list(range(1, len(found) + 1))
    # a run that is not stopped, with the same frames for each segment, has the same bits
    replayed = SpooledStream(part)
    options = LiveOptions(admissions=replayed.admissions(3))
    reconstruct_live(recipe, replayed, whole, options)
    assert [row["frames"] for row in read_log(whole / "live.jsonl")] == [row["frames"] for row in found]
    for name in ("object", "probe"):
        assert np.array_equal(
            getattr(Result.load(whole / "live.h5"), name), getattr(Result.load(part / "live.h5"), name)
        )


def test_no_summary_is_left_of_a_run_that_goes_on(scan: Path, recipe: Recipe, tmp_path: Path) -> None:
    """As `ptymesh watch` takes a run with one for done."""
    reconstruct_live(recipe, Prepared(scan, 200), tmp_path, LiveOptions(uses=1))
    assert (tmp_path / "live.json").exists()
    more = len(read_log(tmp_path / "live.jsonl")) + 1
    with pytest.raises(Interrupted, match="goes on with them"):
        reconstruct_live(recipe, Prepared(scan, 200), tmp_path, LiveOptions(uses=4), stop=stop_after(tmp_path, more))
    assert not (tmp_path / "live.json").exists()


def replay(world: World, path: Path, folder: Path, out: Path) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Return object, probe, updates and this rank's traffic of a live run that is replayed on these ranks."""
    stream = SpooledStream(folder)
    first = world.rank == 0
    options = LiveOptions(2, admissions=stream.admissions(2)) if first else LiveOptions(2)
    before = world.collectives
    outcome, _ = reconstruct_live(load_recipe(path), stream if first else None, out, options, world=world)
    world.barrier()
    found = Result.load(out / "live.h5")
    return found.object, found.probe, int(outcome.uses.sum()), world.collectives - before


def test_the_same_bits_on_any_ranks(
    ranks: Callable[..., list[Any]], scan: Path, recipe: Recipe, tmp_path: Path
) -> None:
    """Ranks that share a stream follow the same admissions to the same bits."""
    planned = LiveOptions(2, admissions=((40, False), (90, False), (100, False)))
    outcome, _ = reconstruct_live(recipe, Prepared(scan, 200), tmp_path / "first", planned)
    assert outcome.uses.min() == 2
    first = Result.load(tmp_path / "first" / "live.h5")
    log = [(row["frames"], row["views"]) for row in read_log(tmp_path / "first" / "live.jsonl")]
    assert [frames for frames, _ in log[:4]] == [40, 90, 100, VIEWS]
    for size in (2, 3):
        out = tmp_path / str(size)
        found = ranks(size, replay, scan.with_name("live.yaml"), tmp_path / "first", out)
        for obj, probe, uses, collectives in found:
            assert np.array_equal(obj, first.object) and np.array_equal(probe, first.probe)
            assert uses == outcome.uses.sum() and collectives > 0
        assert [(row["frames"], row["views"]) for row in read_log(out / "live.jsonl")] == log


ELEMENTWISE = [
    "{engine: adam, batch: 16}",
    "{engine: adam, batch: 16, parametrisation: amplitude_phase, scheduler: {name: one_cycle}}",
    "{engine: nadam, batch: 16, weight_decay: 0.01}",
    "{engine: sgd, batch: 16, momentum: 0.5}",
]


@pytest.mark.sample(1)
@pytest.mark.parametrize("stage", ELEMENTWISE)
def test_what_optimisers_remember_grows_with_the_object(
    ranks: Callable[..., list[Any]], scan: Path, recipe: Recipe, tmp_path: Path, stage: str
) -> None:
    """Through a stop, after a segment that was not kept, and on two ranks, to the same bits."""
    path = tmp_path / "live.yaml"
    path.write_text(scan.with_name("live.yaml").read_text().replace("{engine: rpie, epochs: 3, batch: 16}", stage))
    changed, stopped = load_recipe(path), tmp_path / "stopped"
    planned = LiveOptions(2, admissions=((40, False), (90, False), (100, False)))
    outcome, _ = reconstruct_live(changed, Prepared(scan, 200), tmp_path / "whole", planned)
    assert outcome.uses.min() == 2
    whole = Result.load(tmp_path / "whole" / "live.h5")
    grown = {name: kept.shape for name, kept in whole.unknowns.items() if kept.shape == whole.object.shape}
    assert grown and all(name.startswith("memory.") for name in whole.unknowns)
    with pytest.raises(Interrupted):
        reconstruct_live(changed, Prepared(scan, 200), stopped, planned, stop=stop_after(stopped, 1))
    assert Result.load(stopped / "live.h5").object.size < whole.object.size
    with (stopped / "live.jsonl").open("a") as log:
        log.write(json.dumps(read_log(stopped / "live.jsonl")[-1]) + "\n")
    reconstruct_live(changed, Prepared(scan, 200), stopped, planned)
    ranks(2, replay, path, tmp_path / "whole", tmp_path / "two")
    for again in (Result.load(stopped / "live.h5"), Result.load(tmp_path / "two" / "live.h5")):
        assert np.array_equal(again.object, whole.object) and np.array_equal(again.probe, whole.probe)
        for name, kept in whole.unknowns.items():
            assert np.array_equal(again.unknowns[name], kept), name


def test_what_an_optimiser_remembers_matters(
    scan: Path, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = load_recipe(scan.with_name("live.yaml"), ["stages.0={engine: adam, batch: 16}"])
    planned, errors, residuals = LiveOptions(2, admissions=tuple((n, False) for n in range(40, 160, 20))), [], []
    for follows in (True, False):
        monkeypatch.setattr(Elementwise, "memory_meets_new_views", follows)
        out = tmp_path / str(follows)
        reconstruct_live(changed, Prepared(scan, 200), out, planned)
        errors.append(error(out / "live.h5", scan))
        residuals.append(read_log(out / "live.jsonl")[-1]["residual"])
        assert bool(Result.load(out / "live.h5").unknowns) == follows
    assert residuals[0] < 0.9 * residuals[1] and errors[0] < errors[1], (errors, residuals)


def admitted_views() -> Any:
    """Return the class of sources that the page shows."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "live.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "live.md", "exec"), names)
    return names["AdmittedViews"]


def go_on(world: World, path: Path, scan: Path, out: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return object and probe of a run that goes on with all views, on these ranks."""
    source = admitted_views()(pm.load(scan))
    source.admit(VIEWS)
    given = source if world.rank == 0 else None
    reconstruct_live(load_recipe(path), given, out, LiveOptions(2), world=world)
    world.barrier()
    found = Result.load(out / "live.h5")
    return found.object, found.probe


@pytest.mark.long
def test_a_program_admits_views(ranks: Callable[..., list[Any]], scan: Path, recipe: Recipe, tmp_path: Path) -> None:
    """Between segments; stopped and gone on with on two ranks, the same bits as a replay on one and on two."""
    out, source = tmp_path / "out", admitted_views()(pm.load(scan))
    source.admit(64)

    def admit_and_stop() -> bool:
        done = len(read_log(out / "live.jsonl"))
        source.admit(64 + 32 * done)
        return done >= 2

    with pytest.raises(Interrupted, match="goes on with them"):
        reconstruct_live(recipe, source, out, LiveOptions(2), stop=admit_and_stop)
    before = read_log(out / "live.jsonl")
    assert len(before) == 2 and before[0]["frames"] == 64 < VIEWS
    wanted = ranks(2, go_on, scan.with_name("live.yaml"), scan, out)[0]
    log = [(row["frames"], row["views"]) for row in read_log(out / "live.jsonl")]
    assert log[:2] == [(row["frames"], row["views"]) for row in before] and log[-1][0] == VIEWS
    for size in (1, 2):
        again = tmp_path / str(size)
        for obj, probe, *_ in ranks(size, replay, scan.with_name("live.yaml"), out, again):
            assert np.array_equal(obj, wanted[0]) and np.array_equal(probe, wanted[1])
        assert [(row["frames"], row["views"]) for row in read_log(again / "live.jsonl")] == log


def test_replays_of_other_runs(scan: Path, recipe: Recipe, tmp_path: Path) -> None:
    reconstruct_live(recipe, Prepared(scan, 200), tmp_path / "made", LiveOptions(uses=1))
    stream = SpooledStream(tmp_path / "made")
    with pytest.raises(BadInput, match="--uses 1"):
        stream.admissions(3)
    with pytest.raises(BadInput, match="had 200 frames, and its spool holds 160"):
        reconstruct_live(recipe, stream, tmp_path / "out", LiveOptions(uses=1, admissions=((200, True),)))


# --- the choice of views ---


def test_new_views_come_first_then_those_least_used() -> None:
    uses = np.concatenate((np.full(600, 2), np.full(300, 1), np.zeros(100))).astype(np.int64)
    chosen = choose_views(uses, 3, 0, 0, ended=False)
    assert len(chosen) == SEGMENT
    assert np.isin(np.arange(900, 1000), chosen).all() and np.isin(np.arange(600, 900), chosen).all()
    assert (np.diff(chosen) > 0).all()
    assert not np.array_equal(chosen, choose_views(uses, 3, 0, 1, ended=False))  # other views of those used twice
    assert np.array_equal(chosen, choose_views(uses, 3, 0, 0, ended=False))


def test_where_many_wait_old_ones_do() -> None:
    uses = np.concatenate((np.ones(100), np.zeros(5000))).astype(np.int64)
    chosen = choose_views(uses, 3, 0, 0, ended=False)
    assert len(chosen) == LARGEST and chosen.min() == 100


def test_views_used_often_enough_are_left_alone() -> None:
    assert len(choose_views(np.full(50, 3), 3, 0, 0, ended=True)) == 0
    assert len(choose_views(np.full(50, 3), 3, 0, 0, ended=False)) == 50  # time is left for them
    assert len(choose_views(np.full(50, 12), 3, 0, 0, ended=False)) == 0


def test_after_the_last_frame_segments_are_long() -> None:
    uses = np.concatenate((np.full(3000, 3), np.full(3000, 1)))
    chosen = choose_views(uses, 3, 0, 0, ended=True)
    assert len(chosen) == LARGEST and chosen.min() >= 3000
    assert len(choose_views(uses, 3, 0, 0, ended=False)) == SEGMENT


def test_some_views_are_from_anywhere() -> None:
    uses = np.concatenate((np.full(5000, 3), np.full(1000, 1), np.zeros(100))).astype(np.int64)
    chosen = choose_views(uses, 3, 0, 0, ended=False)
    assert len(chosen) == SEGMENT and (chosen >= 6000).sum() == 100
    share = (SEGMENT - 100) // MIXED
    assert share - 20 < (chosen < 5000).sum() <= share


def test_batches_are_smaller_where_views_lie_over_each_other() -> None:
    spread = np.stack(np.meshgrid(np.arange(20), np.arange(20)), axis=-1).reshape(-1, 2)
    assert choose_batch(spread * 30.0, (32, 32), 64) == 64  # 400 places
    assert choose_batch(spread * 1.0, (32, 32), 64) == 32  # within two half windows a side
    assert 32 < choose_batch(spread * 8.0, (32, 32), 64) == (10 * 10) // 2
    assert choose_batch(spread * 1.0, (32, 32), 1) == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("engine", ["mpie", "lsqml"])
def test_engines_that_remember_batches(scan: Path, recipe: Recipe, tmp_path: Path, engine: str) -> None:
    """An object that grows is no longer the one that the engine remembers of the segment before."""
    changed = load_recipe(scan.with_name("live.yaml"), [f"stages.0={{engine: {engine}, epochs: 1, batch: 8}}"])
    planned = LiveOptions(2, admissions=((60, False), (120, False)))
    outcome, _ = reconstruct_live(changed, Prepared(scan, 200), tmp_path, planned)
    assert outcome.uses.min() >= 2
    assert error(tmp_path / "live.h5", scan) < 0.5


def test_a_probe_of_several_modes(scan: Path, tmp_path: Path) -> None:
    """It comes from a result, and the recipe does not say how many modes there are."""
    recon = pm.Reconstruction(str(scan), probe_modes=2)
    for _ in recon.run(pm.RPIE(batch=16), epochs=2):
        pass
    recon.result().save(tmp_path / "two.h5")
    changed = load_recipe(scan.with_name("live.yaml"), [f"probe.start.path={tmp_path / 'two.h5'}"])
    reconstruct_live(changed, Prepared(scan, 200), tmp_path / "out", LiveOptions(2))
    assert len(Result.load(tmp_path / "out" / "live.h5").probe) == 2


# --- the object that grows ---


def test_an_object_grows_with_its_parts() -> None:
    rng = np.random.default_rng(0)
    whole = torch.from_numpy(rng.normal(size=(1, 40, 50)) + 1j)
    made, zero = None, np.zeros(2, np.int64)
    for top, left, height, width in ((10, 20, 12, 12), (0, 0, 15, 30), (5, 10, 35, 40)):
        part = whole[:, top : top + height, left : left + width]
        made, zero = join_part(made, zero, part, np.array([-top, -left]))
    assert made is not None and tuple(made.shape[-2:]) == (40, 50) and zero.tolist() == [0, 0]
    assert torch.equal(made[:, 5:40, 10:50], whole[:, 5:40, 10:50])
    assert torch.equal(made[:, :5, :30], whole[:, :5, :30])
    assert (made[:, 20:, :10] == 1).all()  # where nothing has been


def test_objects_apart_are_not_pasted() -> None:
    target = torch.ones(1, 8, 8, dtype=torch.complex128)
    paste(torch.zeros(1, 4, 4, dtype=torch.complex128), target, np.array([8, 0]))
    assert (target == 1).all()


@pytest.mark.parametrize("piece", [7, 32, 1000])
def test_frames_in_pieces_are_whole(piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "WRITE_BYTES", piece)  # frames have 40 bytes
    spool, frames = Spool(tmp_path, StreamDescription((4, 5), ">u2")), np.arange(140, dtype=">u2").reshape(7, 4, 5)
    positions = np.arange(14.0).reshape(7, 2)
    spool.append(frames[:3], positions[:3])
    with (tmp_path / "frames.raw").open("ab") as file:
        file.write(bytes(57))  # pieces of the next frames, whose positions were not written: the process was killed
    spool = Spool(tmp_path)
    assert spool.count == 3
    spool.append(frames[3:3], positions[3:3])
    spool.append(frames[3:], positions[3:])
    assert spool.count == 7 and np.array_equal(spool.frames(0, 7), frames)
    assert np.array_equal(spool.positions(7), positions)


# --- what is refused ---


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("stages.0.engine=lbfgs", "make it epie, rpie, mpie, lsqml, adam"),
        ("stages.0={engine: adam, unknowns: {background: true}}", "unknowns.background is not kept between segments"),
        (("optics.descan=true", "stages.0.unknowns={descan: true}"), "unknowns.descan is not kept"),
        ("data.views.step=2", "leave it out"),
        ("positions.raster={shape: [10, 16], step_m: 1e-6}", "leave it out"),
        ("probe.opr_modes=1", "leave it out"),
        ("object.modes=2", "leave it out"),
        ("optics={binned_detector: true}", "wider than the frames of a stream"),
    ],
)
def test_recipes_that_need_all_views(
    scan: Path, recipe: Recipe, tmp_path: Path, setting: str | tuple[str, ...], word: str
) -> None:
    changed = load_recipe(scan.with_name("live.yaml"), [setting] if isinstance(setting, str) else [*setting])
    with pytest.raises(BadInput, match=word):
        reconstruct_live(changed, Prepared(scan, 40), tmp_path, LiveOptions())


def test_another_stream_in_the_same_folder(scan: Path, recipe: Recipe, tmp_path: Path) -> None:
    Spool(tmp_path / "spool", StreamDescription((16, 16), "<u2"))
    with pytest.raises(BadInput, match="choose another folder"):
        reconstruct_live(recipe, Prepared(scan, 40), tmp_path, LiveOptions())


def test_a_source_that_is_silent(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(PtymeshError, match="has not answered"):
        reconstruct_live(recipe, open_source("tcp://127.0.0.1:1"), tmp_path, LiveOptions(timeout_s=0.2))


@pytest.mark.parametrize("answer", [b"what?", b'{"first": 7, "count": 1}', b"[]"])
def test_who_answers_otherwise(recipe: Recipe, tmp_path: Path, answer: bytes) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.REP)
    port = socket.bind_to_random_port("tcp://127.0.0.1")

    def answer_once() -> None:
        socket.recv()
        socket.send_multipart([answer, b"", b""])

    other = threading.Thread(target=answer_once)
    other.start()
    with pytest.raises(BadInput, match=r"no source of frames|is not understood"):
        reconstruct_live(recipe, open_source(f"tcp://127.0.0.1:{port}"), tmp_path, LiveOptions(timeout_s=5))
    other.join()
    socket.close()
    context.term()


@pytest.mark.parametrize("address", ["http://here", "tcp://nowhere"])
def test_addresses(address: str) -> None:
    with pytest.raises(BadInput, match="give tcp://HOST:PORT"):
        open_source(address)


@pytest.mark.parametrize("said", [None, {}, {"shape": [3], "dtype": "<u2"}, {"shape": [4, 4], "dtype": "O"}])
def test_descriptions(said: object) -> None:
    with pytest.raises(BadInput, match="is not understood"):
        StreamDescription.parse(said, "the source")


def test_frames_of_another_shape(tmp_path: Path) -> None:
    spool = Spool(tmp_path, StreamDescription((4, 4), "<u2"))
    with pytest.raises(BadInput, match="do not"):
        spool.append(np.zeros((2, 4, 5), "<u2"), np.zeros((2, 2)))
    with pytest.raises(BadInput, match="one position"):
        spool.append(np.zeros((2, 4, 4), "<u2"), np.zeros((1, 2)))
    assert spool.count == 0


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    spool = Spool(tmp_path, StreamDescription((4, 4), "<u2"))
    spool._frames.unlink()
    spool._frames.symlink_to("/dev/full")
    with pytest.raises((PtymeshError, OSError)):
        spool.append(np.zeros((2, 4, 4), "<u2"), np.zeros((2, 2)))
