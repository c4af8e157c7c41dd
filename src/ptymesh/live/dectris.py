"""Frames of detectors that speak Dectris' Stream V2: CBOR messages that are pushed over ZeroMQ.

H, W    detector pixels

A message is a map with a `type`: `start` (of a series, with energy, pixel, exposure and number of images), `image`
(with `image_id`, `start_time`, ticks of a clock since the series began and ticks per second, and `data`, an array for
each channel), `end`. Arrays are typed arrays of RFC 8746 (tag 40 of their shape and
a tag of their numbers), whose bytes may be compressed: tag 56500 of [algorithm, size of a number, bytes], with the
framing of HDF5's filters of that name.

Such a detector sends each message once. It waits while nobody receives, but a message that a receiver had taken and
not yet stored when it was killed is gone; frames keep their numbers, so that positions still belong to them.

Source: github.com/dectris/documentation, stream_v2 and cbor.
"""

from __future__ import annotations

import math
import struct
import uuid
from typing import Any, cast

import h5py
import hdf5plugin
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.hdf5.damage import check_bitshuffle_blocks
from ptymesh.live.frames import MOST, Frames, check_port, zmq_module
from ptymesh.live.spool import StreamDescription

#: Types of numbers by the tag of their array.
TYPES = {64: "|u1", 65: ">u2", 66: ">u4", 69: "<u2", 70: "<u4", 85: "<f4"}
#: Tags of an array with several axes, and of bytes that are compressed.
MULTI_AXIS, COMPRESSED = 40, 56500
#: Milliseconds that an answer waits for its first frame.
WAIT_MS = 200
#: Bytes before the first block of what HDF5's lz4 filter has compressed.
LZ4_HEADER_BYTES = 12
#: Port of a detector's stream.
PORT = 31001


def cbor_module() -> Any:
    """Return the package cbor2; raise BadInput where it is not installed."""
    try:
        import cbor2
    except ImportError as error:
        raise BadInput("Streams of Dectris detectors need cbor2; install ptymesh[live].") from error
    return cbor2


class DectrisSource:
    """A detector, or a program like one, that pushes its frames.

    Args:
        address: dectris://HOST:PORT/CHANNEL; without a port it is 31001, and without a channel there must be one alone.

    Raises:
        BadInput: zmq or cbor2 is not installed, or the address is none.
    """

    def __init__(self, address: str) -> None:
        zmq, self._cbor = zmq_module(), cbor_module()
        host, _, self._channel = address.removeprefix("dectris://").partition("/")
        endpoint = f"tcp://{host}" if ":" in host else f"tcp://{host}:{PORT}"
        check_port(endpoint, address)
        self._address, self._context, self._again = address, zmq.Context(), zmq.Again
        self._socket = self._context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._unpacked, self._start = Unpacker(), dict[str, Any]()
        #: Image that was read to describe the stream, and has not been given yet.
        self._waiting: tuple[int, np.ndarray, float] | None = None
        self._has_ended = False
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise BadInput(f"--from is {address}, which is no address ({error}); give dectris://HOST:PORT.") from error

    def describe(self) -> StreamDescription | None:
        """Return what the detector says of its frames, once there is one, None before."""
        if self._waiting is None:
            self._waiting = self._next_image(WAIT_MS)
        if self._waiting is None:
            return None
        start, image = self._start, self._waiting[1]
        pixel = start.get("pixel_size_y"), start.get("pixel_size_x")
        away = start.get("detector_translation")
        facts = {
            "shape": image.shape,
            "dtype": image.dtype.str,
            "energy_eV": start.get("incident_energy") or None,
            "distance_m": (abs(away[2]) or None) if isinstance(away, list | tuple) and len(away) == 3 else None,
            "detector_pixel_m": pixel if all(pixel) else None,
            "views": start.get("number_of_images"),
            "frame_period_s": start.get("frame_time") or None,
            "exposure_s": start.get("count_time") or None,
        }
        return StreamDescription.parse(facts, self._address)

    def take(self, first: int) -> Frames | None:
        """Return the frames that have come since, None while none have.

        Args:
            first: not read; such a detector cannot go back.

        Raises:
            BadInput: a message is not understood.
        """
        images = [] if self._waiting is None else [self._waiting]
        self._waiting = None
        while len(images) < MOST and not self._has_ended:
            image = self._next_image(0 if images else WAIT_MS)
            if image is None:
                break
            if images and (image[1].shape, image[1].dtype) != (images[0][1].shape, images[0][1].dtype):
                raise BadInput(f"{self._address} has changed its frames to {image[1].shape} {image[1].dtype}.")
            images.append(image)
        if not images:
            nothing = np.empty((0, 0, 0)), None, True, np.empty(0, np.int64)
            return Frames(*nothing) if self._has_ended else None
        numbers, times = np.array([image[0] for image in images], np.int64), np.array([image[2] for image in images])
        detector_times = None if np.isnan(times).any() else times
        return Frames(np.stack([image[1] for image in images]), None, self._has_ended, numbers, detector_times)

    def _next_image(self, wait_ms: int) -> tuple[int, np.ndarray, float] | None:
        """Return number, frame (H, W) and time of the next image, None where none comes in time or all have come."""
        while not self._has_ended and self._socket.poll(wait_ms):
            message = self._parse(self._socket.recv())
            kind = message.get("type")
            if kind == "start":
                self._start = message
            elif kind == "end":
                self._has_ended = True
            elif kind == "image":
                return self._image(message)
        return None

    def _parse(self, message: bytes) -> dict[str, Any]:
        """Return the map of a message."""
        try:
            message_fields = self._cbor.loads(message)
        except (ValueError, EOFError, self._cbor.CBORDecodeError) as error:
            raise self._refusal(f"no CBOR ({error})") from error
        if not isinstance(message_fields, dict):
            raise self._refusal("no map")
        return message_fields

    def _image(self, message: dict[str, Any]) -> tuple[int, np.ndarray, float]:
        """Return number, frame (H, W) and time in seconds, NaN where it says none, of the message of an image."""
        number, channels = message.get("image_id"), message.get("data")
        if not isinstance(number, int) or number < 0 or not isinstance(channels, dict):
            raise self._refusal("an image without image_id or data")
        name = self._channel or (next(iter(channels)) if len(channels) == 1 else None)
        if name not in channels:
            names = ", ".join(map(str, channels)) or "none"
            raise BadInput(
                f"{self._address} sends channels {names}; choose one with --from dectris://HOST:PORT/CHANNEL."
            )
        try:
            ticks, per_second = message.get("start_time") or (math.nan, 1)
            return number, self._unpacked.array(channels[name]), ticks / per_second
        except (ValueError, TypeError, AttributeError, OSError, ZeroDivisionError) as error:
            raise self._refusal(f"image {number}, whose data are not understood ({error})") from error

    def _refusal(self, problem: str) -> BadInput:
        return BadInput(f"{self._address} has sent {problem}; it is no stream of Dectris' version 2.")

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()
        self._context.term()


class Unpacker:
    """Reads arrays of messages, whose bytes HDF5's filters decompress in a file that is kept in memory."""

    def __init__(self) -> None:
        self._file = h5py.File(f"unpacked-{uuid.uuid4()}", "w", driver="core", backing_store=False)
        self._datasets: dict[tuple[str, int, str, int], h5py.Dataset] = {}

    def array(self, tagged: Any) -> np.ndarray:
        """Return an array (H, W).

        Args:
            tagged: value with CBOR's tag 40.

        Raises:
            ValueError: it is no array of two axes, or of numbers that are not known.
            OSError: its bytes cannot be decompressed.
        """
        if getattr(tagged, "tag", None) != MULTI_AXIS:
            raise ValueError("no array with tag 40")
        (height, width), numbers = tagged.value
        if not all(isinstance(side, int) and 0 < side < 1 << 16 for side in (height, width)):
            raise ValueError(f"a shape of {height} x {width}")
        dtype = TYPES.get(getattr(numbers, "tag", 0))
        if dtype is None:
            raise ValueError(f"numbers with tag {getattr(numbers, 'tag', None)}, not {', '.join(map(str, TYPES))}")
        packed = numbers.value
        if getattr(packed, "tag", None) == COMPRESSED:
            algorithm, size, packed = packed.value
            flat = self._decompress(algorithm, size, packed, height * width * np.dtype(dtype).itemsize)
        else:
            flat = np.frombuffer(packed, np.uint8)
        return flat.view(dtype).reshape(height, width)

    def _decompress(self, algorithm: str, size: int, packed: bytes, length: int) -> np.ndarray:
        """Return the bytes (length,) uint8 of compressed ones; size: of a number, in bytes."""
        if algorithm not in FILTERS or size not in ((0, 1, 2, 4) if algorithm == "lz4" else (1, 2, 4)):
            raise ValueError(f"compression {algorithm} of numbers of {size} bytes, not {' or '.join(FILTERS)}")
        # the filters believe lengths in what they are given, and may end this process
        if algorithm == "bslz4":
            check_bitshuffle_blocks(packed, length, size)
        else:
            _check_lz4_blocks(packed, length)
        dataset = self._dataset(algorithm, size or 1, length)
        dataset.id.write_direct_chunk((0,), packed)
        return cast(np.ndarray, dataset[...]).view(np.uint8)

    def pack(self, algorithm: str, values: np.ndarray) -> bytes:
        """Return an array's bytes, compressed.

        Args:
            algorithm: bslz4 or lz4.
            values: of numbers with 1, 2 or 4 bytes.
        """
        flat = np.ascontiguousarray(values).view(f"<u{values.itemsize}").ravel()
        dataset = self._dataset(algorithm, values.itemsize, flat.nbytes)
        dataset[...] = flat
        dataset.flush()
        return bytes(dataset.id.read_direct_chunk((0,))[1])

    def _dataset(self, algorithm: str, size: int, length: int) -> h5py.Dataset:
        """Return a dataset of one chunk of `length` bytes, in numbers of `size` bytes."""
        key = algorithm, size, "numbers", length
        if key not in self._datasets:
            shape, name = (length // size,), f"{algorithm}-{size}-{length}"
            dataset = self._file.create_dataset(name, shape, f"<u{size}", chunks=shape, **FILTERS[algorithm])
            self._datasets[key] = dataset
        return self._datasets[key]


def _check_lz4_blocks(packed: bytes, length: int) -> None:
    """Raise ValueError if lengths in bytes that HDF5's lz4 filter has compressed do not fit them.

    Args:
        packed: length of all (8) and of a block (4), then of each block its compressed length (4) and its bytes.
        length: of what was compressed.
    """
    if len(packed) < LZ4_HEADER_BYTES:
        raise ValueError("they end too early")
    total_bytes, block = struct.unpack_from(">QI", packed)
    if total_bytes != length or not 0 < block < 1 << 31:
        raise ValueError(f"they say that they are {total_bytes} bytes in blocks of {block}, not {length} bytes")
    at = LZ4_HEADER_BYTES
    for first in range(0, length, min(block, length)):
        if at + 4 > len(packed):
            raise ValueError("they end too early")
        (size,) = struct.unpack_from(">I", packed, at)
        if not 0 < size <= min(block, length - first):  # a block that does not shrink is stored as it is
            raise ValueError(f"a block of {size} bytes stands for {min(block, length - first)}")
        at += 4 + size
    if at > len(packed):
        raise ValueError("they end too early")


#: Filters of HDF5 by the name that messages give to their compression.
FILTERS: dict[str, Any] = {"bslz4": hdf5plugin.Bitshuffle(nelems=0, cname="lz4"), "lz4": hdf5plugin.LZ4()}


class Encoder:
    """Makes messages as a detector does.

    Args:
        description: of the frames.
        compression: bslz4 or lz4; None: bytes as they are.
    """

    def __init__(self, description: StreamDescription, compression: str | None = "bslz4") -> None:
        self._cbor, self._description, self._compression, self._packer = (
            cbor_module(),
            description,
            compression,
            Unpacker(),
        )
        kinds = {dtype: tag for tag, dtype in TYPES.items()}
        if description.dtype not in kinds:
            raise BadInput(f"Frames are {description.dtype}; streams of Dectris' version 2 hold {', '.join(kinds)}.")
        self._tag, self._series = kinds[description.dtype], {"series_id": 1, "series_unique_id": str(uuid.uuid4())}

    def start(self) -> bytes:
        """Return the message that begins a series."""
        description = self._description
        pixel = description.detector_pixel_m or (0.0, 0.0)
        message = {
            "type": "start",
            **self._series,
            "channels": ["threshold_1"],
            "image_size_x": description.shape[1],
            "image_size_y": description.shape[0],
            "incident_energy": description.energy_eV or 0.0,
            "number_of_images": description.views,
            "pixel_size_x": pixel[1],
            "pixel_size_y": pixel[0],
            "detector_translation": [0.0, 0.0, description.distance_m or 0.0],
        }
        return bytes(self._cbor.dumps(message))

    def image(self, number: int, frame: np.ndarray) -> bytes:
        """Return the message of a frame (H, W)."""
        tag, packed = self._cbor.CBORTag, frame.tobytes()
        if self._compression is not None:
            size = 0 if self._compression == "lz4" else frame.itemsize
            packed = tag(COMPRESSED, [self._compression, size, self._packer.pack(self._compression, frame)])
        data = {"threshold_1": tag(MULTI_AXIS, [list(frame.shape), tag(self._tag, packed)])}
        return bytes(self._cbor.dumps({"type": "image", **self._series, "image_id": number, "data": data}))

    def end(self) -> bytes:
        """Return the message that ends a series."""
        return bytes(self._cbor.dumps({"type": "end", **self._series}))
