"""Positions at a rate of their own: between samples with times, for frames with times."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.live import ApartStream, FrameSource, Spool, open_positions, open_source
from ptymesh.live.frames import FrameClock, Frames
from ptymesh.live.positions import GrowingRows, interpolate_positions
from ptymesh.live.receiving import Receiver
from ptymesh.live.serving import read_scan
from ptymesh.live.spool import StreamDescription
from ptymesh.simulate import simulate

zmq = pytest.importorskip("zmq")
cbor2 = pytest.importorskip("cbor2")


def path_of_beam(t: np.ndarray) -> np.ndarray:
    """Return places (n, 2) at times (n,), with a corner at each whole second."""
    corners = np.array([[0.0, 1.0], [3.0, 1.0], [3.0, -2.0], [5.0, 4.0], [5.0, 4.0]])
    return np.stack([np.interp(t, np.arange(5.0), column) for column in corners.T], axis=1)


def samples_at(times: Any) -> np.ndarray:
    t = np.asarray(times, np.float64)
    return np.column_stack((t, path_of_beam(t)))


def test_between_samples_along_straight_lines() -> None:
    times = np.array([0.0, 0.25, 0.9, 2.0, 3.75])
    for at in (np.arange(5.0), np.arange(0.0, 4.01, 0.125), [0.0, 1.0, 1.0, 2.0, 2.5, 3.0, 4.0]):
        assert np.allclose(interpolate_positions(samples_at(at), times, 0.0), path_of_beam(times), atol=1e-12)


@pytest.mark.parametrize("start", [0.0, 1.7e9])
def test_the_mean_over_an_exposure(start: float) -> None:
    """Against a sum over many moments of it, also where it holds several samples, on a clock that counts from 1970."""
    samples, times = samples_at([0, 0.1, 1, 2, 2.2, 3, 4]), np.array([0.0, 0.7, 1.5])
    samples[:, 0] += start
    found = interpolate_positions(samples, start + times, 0.9)
    moments = times[:, None] + 0.9 * (np.arange(20000) + 0.5) / 20000
    wanted = path_of_beam(moments.ravel()).reshape(3, -1, 2).mean(axis=1)
    assert np.allclose(found, wanted, atol=1e-6)
    assert not np.allclose(found, path_of_beam(times), atol=0.1), "the exposure matters"


def test_frames_wait_for_a_sample_after_their_exposure() -> None:
    samples, times = samples_at([0.0, 1.0, 2.0]), np.array([0.5, 1.5, 1.9, 2.0])
    assert [len(interpolate_positions(samples, times, exposure)) for exposure in (0.0, 0.1, 0.5, 2.0)] == [4, 3, 2, 0]
    assert len(interpolate_positions(samples[:0], times, 0.0)) == 0


@pytest.mark.parametrize(
    ("added", "words"),
    [
        ([[(0, 0, 0), (2, 0, 0), (1.5, 0, 0)]], "Position 3 of here has the time 1.5 s, which lies before 2 s"),
        ([[(0, 0, 0), (2, 0, 0)], [(1.5, 0, 0), (9, 0, 0)]], "Position 3 of here has the time 1.5 s"),
        ([[(0, 0, 0), (1, np.nan, 0)]], r"Position 2 of here is \[1.0, nan, 0.0\]; give"),
        ([[(0, 0, 0)], [(np.inf, 0, 0)]], "Position 2 of here"),
        ([[(0, 0)], [(np.inf, 0)]], "Position 2 of here"),
    ],
)
def test_samples_that_cannot_be(added: Any, words: str) -> None:
    rows = GrowingRows("here")
    with pytest.raises(BadInput, match=words):
        for some in added:
            rows.add(np.array(some, np.float64))


def test_rows_that_are_added_stay_in_their_order() -> None:
    rows, wanted = GrowingRows("here"), samples_at(np.arange(0.0, 4.0, 0.1))
    for first, last in ((0, 0), (0, 1), (1, 4), (4, 4), (4, 31), (31, 40)):
        rows.add(wanted[first:last])
        assert np.array_equal(rows.read(), wanted[:last]) or last == 0


@pytest.mark.parametrize(
    ("samples", "times", "words"),
    [
        ([(3, 0, 0), (9, 0, 0)], [2.5], "--frame-start"),
        ([(0, 0, 0), (9, 0, 0)], [2.0, 1.0], "frames go backwards"),
        ([(0, 0, 0), (9, 0, 0)], [np.nan], "--frame-period"),
    ],
)
def test_times_that_cannot_be(samples: Any, times: list[float], words: str) -> None:
    with pytest.raises(BadInput, match=words) as found:
        interpolate_positions(np.array(samples, np.float64), np.array(times), 0.0)
    assert str(found.value).endswith(".") and str(found.value).count(". ") == 0


class Timed:
    """A source of frames without positions.

    Args:
        times: of its frames; None where it does not know them.
        most: frames of an answer.
        said: what it says of them.
    """

    def __init__(self, times: list[float] | None, most: int = 2, **said: Any) -> None:
        self.times, self.most, self.said = times, most, StreamDescription((2, 2), "<u2", **said)

    def describe(self) -> StreamDescription:
        return self.said

    def take(self, first: int) -> Frames:
        last = min(first + self.most, 8)
        times = None if self.times is None else np.array(self.times[first:last])
        return Frames(np.zeros((last - first, 2, 2), "<u2"), None, first == 8, times_s=times)

    def close(self) -> None:
        pass


def receive(source: FrameSource, spool: Path, path: Path, clock: FrameClock, count: int = 8) -> np.ndarray:
    """Return the positions of a stream once so many frames have them."""
    with Receiver(ApartStream(source, open_positions(path, "/yx"), clock), spool) as receiver:
        until = time.monotonic() + 10
        while receiver.spool is None or receiver.spool.held < 8 or receiver.count < count:
            receiver.check()
            assert time.monotonic() < until
            time.sleep(0.005)
    return Spool(spool).positions(count)


TIMES = 0.5 + 0.25 * np.arange(8)


@pytest.mark.parametrize("kind", ["txt", "h5"])
def test_a_file_of_samples(kind: str, tmp_path: Path) -> None:
    """Frames with times, a period that the source says or the command, and a clock that begins elsewhere."""
    rows = samples_at(np.arange(0.0, 4.1, 0.5))
    path = tmp_path / f"yx.{kind}"
    if kind == "h5":
        with h5py.File(path, "w") as file:
            file["yx"] = rows
    else:
        path.write_text("t,y,x\n" + "".join(f"{t},{y},{x}\n" for t, y, x in rows))
    wanted = path_of_beam(TIMES)
    streams: dict[str, tuple[FrameSource, FrameClock]] = {
        "own": (Timed([*TIMES]), FrameClock()),
        "later": (Timed([*(TIMES - 0.5)]), FrameClock(0.5)),
        "said": (Timed(None, frame_period_s=0.25), FrameClock(0.5)),
        "given": (Timed(None), FrameClock(0.5, 0.25)),
        "before": (Timed([*np.zeros(8)], frame_period_s=9.0), FrameClock(0.5, 0.25)),
    }
    for name, (source, clock) in streams.items():
        assert np.allclose(receive(source, tmp_path / name, path, clock), wanted, atol=1e-12), name
    means = interpolate_positions(rows, TIMES, 0.5)
    exposed = Timed([*TIMES], exposure_s=0.5)
    assert np.allclose(receive(exposed, tmp_path / "exposed", path, FrameClock()), means)
    assert np.allclose(receive(exposed, tmp_path / "none", path, FrameClock(exposure_s=0.0)), wanted)
    with pytest.raises(BadInput, match="--frame-period"):
        receive(Timed(None), tmp_path / "unknown", path, FrameClock())


def test_another_process_goes_on(tmp_path: Path) -> None:
    """Frames keep their times on disk while samples are late."""
    path, rows = tmp_path / "yx.txt", samples_at(np.arange(0.0, 4.1, 0.5))
    lines = [f"{t} {y} {x}\n" for t, y, x in rows]
    path.write_text("".join(lines[:3]))
    first = receive(Timed([*TIMES]), tmp_path / "spool", path, FrameClock(), count=3)
    path.write_text("".join(lines))
    whole = receive(Timed(None), tmp_path / "spool", path, FrameClock())
    assert np.array_equal(whole[:3], first) and np.allclose(whole, path_of_beam(TIMES), atol=1e-12)


class Answering:
    """A program that speaks the plain protocol, with samples of positions.

    Args:
        samples: (m, 3), of which each answer has at most three.
        times: True if frames have times of their own, else the stream says their period.
    """

    def __init__(self, samples: np.ndarray, times: bool) -> None:
        self.samples, self.times, self.asked = samples, times, list[dict[str, int]]()
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.REP)
        self.address = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.stop.is_set():
            if self.socket.poll(20):
                self.socket.send_multipart(self.answer(json.loads(self.socket.recv())))

    def answer(self, request: dict[str, int]) -> list[bytes]:
        self.asked.append(request)
        first, sample = request["next"], request["sample"]
        last = max(first, min(8, first + request["most"], first + 3))
        rows = self.samples[sample : sample + 3] if request["most"] else self.samples[:0]
        ended = first == 8 and sample + len(rows) == len(self.samples)
        stream = {"shape": [2, 2], "dtype": "<u2"} | ({} if self.times else {"frame_period_s": 0.25})
        head = {"first": first, "count": last - first, "samples": len(rows), "ended": ended, "stream": stream}
        frames = np.full((last - first, 2, 2), first, "<u2").tobytes()
        parts = [json.dumps(head).encode(), frames, rows.astype("<f8").tobytes()]
        return [*parts, TIMES[first:last].astype("<f8").tobytes()] if self.times else parts

    def close(self) -> None:
        self.stop.set()
        self.thread.join()
        self.socket.close()
        self.context.term()


@pytest.fixture(params=[True, False])
def answering(request: pytest.FixtureRequest) -> Iterator[Answering]:
    made = Answering(samples_at(np.arange(0.0, 4.1, 0.25)), request.param)
    yield made
    made.close()


def test_samples_over_the_plain_protocol(answering: Answering, tmp_path: Path) -> None:
    """In answers of their own number; a receiver that is started again asks for all of them, and loses nothing."""
    clock = FrameClock(0.0 if answering.times else 0.5)

    def run(until_count: int) -> None:
        with Receiver(ApartStream(open_source(answering.address), None, clock), tmp_path / "spool") as receiver:
            until = time.monotonic() + 10
            while receiver.count < until_count or (until_count == 8 and not receiver.ended):
                receiver.check()
                assert time.monotonic() < until
                time.sleep(0.005)

    run(1)
    run(8)
    assert np.allclose(Spool(tmp_path / "spool").positions(8), path_of_beam(TIMES), atol=1e-12)
    begun = [request["next"] for request in answering.asked if request["most"] and request["sample"] == 0]
    assert len(begun) == 2 and begun[1] > 0, "the second process asks for the samples anew, and for no frame twice"


def test_samples_that_end_too_early(tmp_path: Path) -> None:
    made = Answering(samples_at([0.0, 1.0, 2.0]), True)
    try:
        with (
            pytest.raises(BadInput, match="last 1 frames are later than its last position"),
            Receiver(open_source(made.address), tmp_path / "spool") as receiver,
        ):
            until = time.monotonic() + 10
            while time.monotonic() < until:
                receiver.check()
                time.sleep(0.005)
    finally:
        made.close()


@pytest.mark.parametrize("change", [{"samples": 5}, {"samples": "many"}, {"samples": -1}])
def test_answers_that_hold_other_samples_than_they_say(change: dict[str, Any], tmp_path: Path) -> None:
    made = Answering(samples_at([0.0, 9.0]), True)
    answer = made.answer

    def changed(request: dict[str, int]) -> list[bytes]:
        head, *parts = answer(request)
        return [json.dumps(json.loads(head) | change).encode(), *parts]

    made.answer = changed  # type: ignore[method-assign]
    source = open_source(made.address)
    try:
        with pytest.raises(BadInput, match="no source of frames"):
            source.take(0)
    finally:
        source.close()
        made.close()


def test_times_of_a_detector(tmp_path: Path) -> None:
    """A Dectris detector says when each image began, and how long it was exposed."""
    from ptymesh.live.dectris import DectrisSource, Encoder

    encoder, said = Encoder(StreamDescription((2, 2), "<u2", views=8)), []
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.linger = 0
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        source = DectrisSource(f"dectris://127.0.0.1:{port}")
        start = cbor2.loads(encoder.start()) | {"count_time": 0.5, "frame_time": 0.25}
        socket.send(cbor2.dumps(start))
        for number, t in enumerate(TIMES):
            message = cbor2.loads(encoder.image(number, np.zeros((2, 2), "<u2")))
            socket.send(cbor2.dumps(message | {"start_time": [round(1000 * (t - 0.5)), 1000]}))
        socket.send(encoder.end())
        rows = samples_at(np.arange(0.0, 4.1, 0.5))
        (tmp_path / "yx.txt").write_text("".join(f"{t} {y} {x}\n" for t, y, x in rows))
        said = receive(source, tmp_path / "spool", tmp_path / "yx.txt", FrameClock(0.5))
    assert np.allclose(said, interpolate_positions(rows, TIMES, 0.5), atol=1e-12)


@pytest.mark.parametrize("words", [{"frame_period_s": 0}, {"exposure_s": -1.0}, {"frame_period_s": "often"}])
def test_descriptions_with_times_that_cannot_be(words: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="is not understood"):
        StreamDescription.parse({"shape": [2, 2], "dtype": "<u2", **words}, "the source")


@pytest.mark.forked(1)
def test_the_clock_of_the_command(tmp_path: Path) -> None:
    """A file that grows, frames every 0.25 s from 0.5 s on, and an exposure over which positions are averaged."""
    played = read_scan(simulate(views=8, window=16, seed=2).measurement)
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        made = file.create_dataset("patterns", data=played.frames)
        made.attrs["ended"] = True
    rows = samples_at(np.arange(0.0, 4.1, 0.5)) * [1, 1e-6, 1e-6]
    (tmp_path / "encoder.txt").write_text("".join(f"{t} {y} {x}\n" for t, y, x in rows.tolist()))
    said = played.description
    assert said.detector_pixel_m is not None
    (tmp_path / "live.yaml").write_text(
        f"data: {{path: none.cxi, energy_eV: {said.energy_eV}, radiation: {said.radiation}, "
        f"distance_m: {said.distance_m}, detector_pixel_m: {said.detector_pixel_m[0]}}}\n"
        "stages: [{engine: rpie, epochs: 1, batch: 4}]\n"
    )
    words = "live live.yaml --from scan.h5 --positions-from encoder.txt --frame-start 0.5 --frame-period 0.25"
    words += " --exposure 0.5 --out out --uses 1 --no-polish"
    command = [sys.executable, "-P", "-m", "ptymesh", *words.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    wanted = interpolate_positions(rows, TIMES, 0.5)
    assert np.allclose(Spool(tmp_path / "out" / "spool").positions(8), wanted, atol=1e-15)
