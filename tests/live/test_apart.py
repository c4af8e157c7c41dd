"""Detectors that push frames in Dectris' messages, and positions that come apart from frames."""

import struct
import threading
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import ptymesh as pm
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.live import ApartStream, LiveOptions, Spool, open_positions, open_source, reconstruct_live
from ptymesh.live.dectris import DectrisSource, Encoder, Unpacker
from ptymesh.live.frames import Frames
from ptymesh.live.receiving import Receiver
from ptymesh.live.serving import read_scan, serve_dectris, serve_scan
from ptymesh.live.spool import StreamDescription
from ptymesh.recipe.schema import load_recipe
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked

zmq = pytest.importorskip("zmq")
cbor2 = pytest.importorskip("cbor2")

SAID = StreamDescription((4, 4), "<u2", views=8)


def shuffled(block: np.ndarray) -> bytes:
    """Return a block of numbers as bitshuffle orders it: the lowest bits of all, then the next ones."""
    bits = np.unpackbits(block.view(np.uint8).reshape(len(block), -1), axis=1, bitorder="little")
    return np.packbits(bits.T, axis=1, bitorder="little").tobytes()


def literal(raw: bytes) -> bytes:
    """Return bytes as an LZ4 block of one run of literals."""
    rest = len(raw) - 15
    return bytes([0xF0]) + b"\xff" * (rest // 255) + bytes([rest % 255]) + raw


def packed(algorithm: str, frame: np.ndarray) -> bytes:
    """Return a frame compressed in one block, from the layout alone."""
    if algorithm == "lz4":  # a block that is as long as what it stands for is stored as it is
        return struct.pack(">QII", frame.nbytes, frame.nbytes, frame.nbytes) + frame.tobytes()
    block = literal(shuffled(frame.ravel()))
    return struct.pack(">QII", frame.nbytes, frame.nbytes, len(block)) + block


@pytest.mark.parametrize("algorithm", ["bslz4", "lz4", None])
@pytest.mark.parametrize(("dtype", "tag"), [("|u1", 64), ("<u2", 69), ("<u4", 70), (">u2", 65), (">u4", 66)])
def test_arrays_as_the_layout_has_them(algorithm: str | None, dtype: str, tag: int) -> None:
    frame = np.random.default_rng(1).integers(0, 200, (32, 16)).astype(dtype)
    content: Any = frame.tobytes()
    if algorithm is not None:
        size = 0 if algorithm == "lz4" else frame.itemsize
        content = cbor2.CBORTag(56500, [algorithm, size, packed(algorithm, frame)])
    message = cbor2.dumps(cbor2.CBORTag(40, [[32, 16], cbor2.CBORTag(tag, content)]))
    found = Unpacker().array(cbor2.loads(message))
    assert found.dtype == np.dtype(dtype) and np.array_equal(found, frame)


@pytest.mark.parametrize("algorithm", ["bslz4", "lz4", None])
def test_messages_that_are_made_are_read(algorithm: str | None) -> None:
    frame = np.random.default_rng(2).poisson(3.0, (64, 48)).astype("<u2")
    encoder, unpacker = Encoder(StreamDescription((64, 48), "<u2"), algorithm), Unpacker()
    for number in range(3):
        message = cbor2.loads(encoder.image(number, frame + number))
        assert message["type"] == "image" and message["image_id"] == number
        assert np.array_equal(unpacker.array(message["data"]["threshold_1"]), frame + number)


@pytest.mark.parametrize("algorithm", ["bslz4", "lz4"])
def test_bytes_that_were_changed_do_not_end_the_process(algorithm: str) -> None:
    """The filters of HDF5 believe lengths: those that do not fit are refused before."""
    rng, unpacker = np.random.default_rng(3), Unpacker()
    frame = rng.poisson(2.0, (64, 64)).astype("<u2")
    sound, refused = unpacker.pack(algorithm, frame), 0
    for number in range(400):
        changed = bytearray(sound[: rng.integers(1, len(sound) + 1)] if number % 4 == 0 else sound)
        first = 8 if number % 2 else 0  # of what stands in front of blocks, or anywhere
        for at in rng.integers(
            first, min(first + 12, len(changed)) if number % 2 and len(changed) > 20 else len(changed), 2
        ):
            changed[at] = rng.integers(256)
        tagged = cbor2.CBORTag(56500, [algorithm, 2, bytes(changed)])
        try:
            unpacker.array(cbor2.CBORTag(40, [[64, 64], cbor2.CBORTag(69, tagged)]))
        except (ValueError, OSError):
            refused += 1
    assert refused > 150
    whole = cbor2.CBORTag(56500, [algorithm, 2, sound])
    assert np.array_equal(unpacker.array(cbor2.CBORTag(40, [[64, 64], cbor2.CBORTag(69, whole)])), frame)


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated scan as a file."""
    path = tmp_path_factory.mktemp("apart") / "scan.cxi"
    write(checked(views=80, window=32, seed=3), path)
    return path


def started(target: Any, *given: Any) -> tuple[threading.Thread, str]:
    """Start to serve a scan, and return the thread and the address."""
    served: list[str] = []
    thread = threading.Thread(target=target, args=(*given, served), daemon=True)
    thread.start()
    while not served:
        assert thread.is_alive()
        time.sleep(0.01)
    return thread, served[0]


RECIPE = "data: {path: none.cxi, radiation: photon}\nstages: [{engine: rpie, epochs: 1, batch: 16}]\n"


def test_a_detector_and_positions_in_a_file(scan: Path, tmp_path: Path) -> None:
    where, whole = tmp_path / "yx.txt", pm.load(scan)
    thread, address = started(serve_dectris, whole, "tcp://127.0.0.1:*", 1000.0, where)
    (tmp_path / "live.yaml").write_text(RECIPE)
    outcome, measured = reconstruct_live(
        load_recipe(tmp_path / "live.yaml"),
        ApartStream(
            open_source(address.replace("tcp", "dectris"), positions=None), open_positions(where, "/positions")
        ),
        tmp_path / "out",
        LiveOptions(uses=1, timeout_s=60),
    )
    thread.join(20)
    assert not thread.is_alive()
    assert outcome.views == 80 and outcome.uses.min() == 1 and len(outcome.latencies_s) == 80
    assert np.array_equal(measured.patterns.read(np.arange(80)), whole.patterns.read(np.arange(80)))
    assert np.abs(measured.positions - whole.positions).max() < 1e-9
    assert measured.geometry == whole.geometry


class Numbered:
    """A source of frames without positions, which has each once.

    Args:
        numbers: of its frames, in the detector's count.
        ends: True if it says that it has ended.
    """

    def __init__(self, numbers: list[int], ends: bool = True) -> None:
        self.numbers, self.ends = np.array(numbers), ends

    def describe(self) -> StreamDescription | None:
        return SAID

    def take(self, first: int) -> Frames | None:
        numbers, self.numbers = self.numbers, self.numbers[:0]
        frames = np.broadcast_to(numbers[:, None, None], (len(numbers), 4, 4)).astype("<u2")
        return Frames(frames, None, self.ends, numbers) if len(numbers) or self.ends else None

    def close(self) -> None:
        pass


def wait(receiver: Receiver, held: int, count: int) -> None:
    """Wait until a receiver has so many frames, and so many of them with positions."""
    until = time.monotonic() + 10
    while receiver.spool is None or (receiver.spool.held, receiver.spool.count) != (held, count):
        receiver.check()
        assert time.monotonic() < until
        time.sleep(0.005)


def test_frames_wait_for_their_positions(tmp_path: Path) -> None:
    path = tmp_path / "yx.csv"
    stream = ApartStream(Numbered([0, 1, 2, 3], ends=False), open_positions(path, ""))
    with Receiver(stream, tmp_path / "spool") as receiver:
        wait(receiver, 4, 0)
        path.write_text("y,x\n0,10\n1,11\n2,1")  # the last line is half written
        wait(receiver, 4, 2)
        assert receiver.waiting == 2 and not receiver.ended
    # another process goes on; what its detector sent meanwhile is gone, and positions still belong to their frames
    with path.open("a") as file:
        file.write("2\n" + "".join(f"{k},{k + 10}\n" for k in range(3, 8)))
    with Receiver(ApartStream(Numbered([6, 7]), open_positions(path, "")), tmp_path / "spool") as receiver:
        wait(receiver, 6, 6)
    spool = Spool(tmp_path / "spool")
    kept = [0, 1, 2, 3, 6, 7]
    assert spool.missing() == 2
    assert np.array_equal(spool.positions(6), np.stack((kept, np.array(kept) + 10), axis=1))
    assert np.fromfile(spool.folder / "frames.raw", "<u2").reshape(6, 16)[:, 0].tolist() == kept


def test_the_last_image_ends_a_stream_whose_end_was_lost(tmp_path: Path) -> None:
    path = tmp_path / "yx.txt"
    path.write_text("0 0\n" * 8)
    stream = ApartStream(Numbered([5, 6, 7], ends=False), open_positions(path, ""))
    with Receiver(stream, tmp_path / "spool") as receiver:
        wait(receiver, 3, 3)
        until = time.monotonic() + 10
        while not receiver.ended:
            assert time.monotonic() < until
            time.sleep(0.005)


def test_frames_over_the_plain_protocol_and_positions_in_a_file(scan: Path, tmp_path: Path) -> None:
    thread, address = started(serve_scan, pm.load(scan), "tcp://127.0.0.1:*", 4000.0)
    played = read_scan(pm.load(scan))
    with h5py.File(tmp_path / "yx.h5", "w") as file:
        file["d/yx"] = played.positions_m[::-1]  # others than those of the stream, which do not count
    positions = open_positions(tmp_path / "yx.h5", "/d/yx")
    with Receiver(ApartStream(open_source(address, positions=None), positions), tmp_path / "spool") as receiver:
        wait(receiver, 80, 80)
        thread.join(10)
    assert not thread.is_alive()
    assert np.array_equal(Spool(tmp_path / "spool").positions(80), played.positions_m[::-1])


def test_positions_in_an_hdf5_file_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "yx.h5"
    source = open_positions(path, "/yx")
    assert source.read().shape == (0, 2)
    for count in (2, 5):
        with h5py.File(path, "a") as file:
            if "yx" not in file:
                file.create_dataset("yx", (0, 2), "f8", maxshape=(None, 2))
            file["yx"].resize(count, axis=0)
            file["yx"][...] = np.arange(2 * count).reshape(count, 2)
        assert np.array_equal(source.read(), np.arange(2 * count).reshape(count, 2))
    with pytest.raises(BadInput, match="name the positions"):
        open_positions(path, "/other").read()


@pytest.mark.parametrize("line", ["1 2 3", "1 2 3 4", "one two", "1 nan"])
def test_lines_that_are_no_positions(tmp_path: Path, line: str) -> None:
    path = tmp_path / "yx.txt"
    path.write_text(f"0 0\n{line}\n")
    with pytest.raises(BadInput, match=r"Line 2 .* two numbers"):
        open_positions(path, "").read()


def test_a_folder_whose_positions_came_otherwise(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "together", SAID)
    spool.append(np.zeros((1, 4, 4), "<u2"), np.zeros((1, 2)))
    with pytest.raises(BadInput, match="leave out --positions-from"):
        spool.append_frames(np.zeros((1, 4, 4), "<u2"), np.zeros(1, np.int64))
    spool = Spool(tmp_path / "apart", SAID)
    spool.append_frames(np.zeros((1, 4, 4), "<u2"), np.zeros(1, np.int64))
    with pytest.raises(BadInput, match="name them with --positions-from"):
        spool.append(np.zeros((1, 4, 4), "<u2"), np.zeros((1, 2)))


def test_a_detector_needs_a_file_of_positions() -> None:
    with pytest.raises(BadInput, match="--positions-from"):
        open_source("dectris://127.0.0.1:1")


def image(**changes: Any) -> bytes:
    """Return the message of an image whose array is tagged as `changes` say."""
    packed = changes.get("packed", cbor2.CBORTag(56500, ["bslz4", 2, Unpacker().pack("bslz4", np.ones((4, 4), "<u2"))]))
    array = cbor2.CBORTag(40, [changes.get("shape", [4, 4]), cbor2.CBORTag(changes.get("tag", 69), packed)])
    data = changes.get("data", {"a": array})
    return bytes(cbor2.dumps({"type": "image", "image_id": changes.get("number", 0), "data": data}))


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"\xff\xff", "no CBOR"),
        (cbor2.dumps([1]), "no map"),
        (image(number=-1), "without image_id"),
        (image(data={}), "channels none"),
        (image(data={"a": 1, "b": 2}), "channels a, b"),
        (image(data={"a": 1}), "no array with tag 40"),
        (image(shape=[4, 5]), "another size"),
        (image(shape=[4]), "image 0, whose data"),
        (image(shape=["4", 4]), "a shape of"),
        (image(tag=99), "numbers with tag 99"),
        (image(packed=b"short"), "image 0, whose data"),
        (image(packed=cbor2.CBORTag(56500, ["zip", 2, b""])), "compression zip"),
        (image(packed=cbor2.CBORTag(56500, ["bslz4", 2, struct.pack(">QII", 32, 32, 20) + b"broken"])), "image 0"),
    ],
)
def test_messages_that_are_not_understood(message: bytes, words: str) -> None:
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.linger = 0
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        source = DectrisSource(f"dectris://127.0.0.1:{port}")
        socket.send(message)
        with pytest.raises(BadInput, match=words):
            for _ in range(50):
                source.describe()
        source.close()


def test_one_of_several_channels() -> None:
    arrays = {name: cbor2.CBORTag(40, [[1, 2], cbor2.CBORTag(64, bytes([k, k]))]) for k, name in enumerate("ab")}
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.linger = 0
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        source = DectrisSource(f"dectris://127.0.0.1:{port}/b")
        socket.send(image(data=arrays))
        got = None
        while got is None:
            got = source.take(0)
        assert got.frames.tolist() == [[[1, 1]]] and got.numbers is not None and got.numbers.tolist() == [0]
        source.close()


def test_a_detector_that_is_silent(tmp_path: Path) -> None:
    (tmp_path / "live.yaml").write_text(RECIPE)
    with pytest.raises(PtymeshError, match="has not answered"):
        reconstruct_live(
            load_recipe(tmp_path / "live.yaml"),
            ApartStream(open_source("dectris://127.0.0.1:1", positions=None), open_positions(tmp_path / "yx.txt", "")),
            tmp_path,
            LiveOptions(timeout_s=0.2),
        )
