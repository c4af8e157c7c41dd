"""What the campaign, and hostile use before it, once found: each as the smallest change of a sound input that shows it.

An entry's function changes the working folder of a case (which holds copies of the originals that it names) and gives
the arguments of ptymesh. All must end as the harness allows, and with one of the statuses that stand beside them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import yaml

from fuzz import archives, cases, originals, signing
from ptymesh.io.hdf5.damage import HEAP

REFUSED = ("2",)
EITHER = ("0", "2")
OUT = ["--out", "out", "--device", "cpu"]


@dataclass(frozen=True)
class Entry:
    """names: originals that are copied; change: of the working folder; arguments; statuses: that are allowed."""

    names: tuple[str, ...]
    change: Callable[[Path], Any]
    arguments: tuple[str, ...]
    statuses: tuple[str, ...] = REFUSED


def made(name: str, folder: Path, sources: Path) -> cases.Case:
    """The case of this name, ready to be tried."""
    entry = ENTRIES[name]
    case = cases.new(name, entry.arguments[0], folder)
    cases.take(case, sources, *entry.names)
    if "stopped" in entry.names:
        (case.place / "stopped").rename(case.place / "out")
    entry.change(case.place)
    case.arguments, case.words = [part.format(sources=sources) for part in entry.arguments], [name]
    return case


def expected(name: str) -> tuple[str, ...]:
    """Statuses that the case of this name may end with."""
    return ENTRIES[name].statuses


def hdf5(file: str, change: Callable[[h5py.File], Any]) -> Callable[[Path], None]:
    """A change of an HDF5 file."""

    def apply(folder: Path) -> None:
        with h5py.File(folder / file, "r+") as opened:
            change(opened)

    return apply


def link(name: str, target: Any) -> Callable[[h5py.File], None]:
    """Puts a link (or anything else) in place of what has this name."""

    def apply(file: h5py.File) -> None:
        if name in file:
            del file[name]
        file[name] = target

    return apply


def attribute(name: str, key: str, value: Any) -> Callable[[h5py.File], None]:
    """Sets an attribute."""

    def apply(file: h5py.File) -> None:
        file[name].attrs[key] = value

    return apply


def recipe(**groups: Any) -> Callable[[Path], None]:
    """recipe.yaml for own.cxi with these groups in place of its own."""

    def apply(folder: Path) -> None:
        tree = {**originals.recipe(), **groups}
        (folder / "recipe.yaml").write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")

    return apply


def text(content: str) -> Callable[[Path], None]:
    """recipe.yaml of this text."""

    def apply(folder: Path) -> None:
        (folder / "recipe.yaml").write_text(content, encoding="utf-8")

    return apply


def manifest(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """A change of all manifests of the checkpoint that name files."""

    def apply(folder: Path) -> None:
        for path in signing.manifests(folder / "out" / "checkpoint"):
            tree = json.loads(path.read_text(encoding="utf-8"))
            if "files" in tree:
                change(tree)
                signing.manifest(path, tree)

    return apply


def member(file: str, name: str, header: str) -> Callable[[Path], None]:
    """A member of an npz with another header."""

    def apply(folder: Path) -> None:
        arrays = dict(np.load(folder / file))
        np.savez(folder / file, **arrays)
        import zipfile

        with zipfile.ZipFile(folder / file) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()}
        members[f"{name}.npy"] = archives._with_header(header) + bytes(64)
        with zipfile.ZipFile(folder / file, "w") as archive:
            for key, content in members.items():
                archive.writestr(key, content)

    return apply


def nothing(folder: Path) -> None:
    """The inputs as they are."""


def of_itself(file: h5py.File) -> None:
    """Makes the patterns of a generic file a virtual dataset of themselves, upon which HDF5 recurses without end."""
    shape, dtype = file["frames"].shape, file["frames"].dtype
    del file["frames"]
    layout = h5py.VirtualLayout(shape, dtype=dtype)
    layout[...] = h5py.VirtualSource(".", "frames", shape=shape)
    file.create_virtual_dataset("frames", layout)


def generic(folder: Path) -> None:
    """recipe.yaml for scan.h5."""
    (folder / "recipe.yaml").write_text(yaml.safe_dump(originals.recipe("hdf5"), sort_keys=False), encoding="utf-8")


def put(file: h5py.File, name: str, value: Any) -> None:
    """Other values, and no digests that would tell."""
    file.attrs.pop("xxh3_128", None)
    file.pop(name, None)
    file[name] = value


def modes_alone(file: h5py.File) -> None:
    """OPR modes of which nothing says the shares."""
    put(file, "opr/modes", file["probe"][()])
    file.pop("opr/weights", None)


def short_chunk(file: h5py.File) -> None:
    """A chunk with a checksum, which is shorter than that."""
    shape = file["probe"].shape
    file.attrs.pop("xxh3_128", None)
    del file["probe"]
    made = file.create_dataset("probe", shape, "c8", chunks=shape, fletcher32=True)
    made.id.write_direct_chunk((0, 0, 0), b"\1")


def stage_before(file: h5py.File) -> None:
    """A last epoch in a stage before the first one."""
    stages = file["history/stage"][()].astype(np.int64)
    put(file, "history/stage", np.append(stages[:-1], -(2**62)))


def heap_without_end(folder: Path) -> None:
    """A heap of strings whose first object has no length: HDF5 steps over it for ever."""
    content = bytearray((folder / "result.h5").read_bytes())
    first = content.index(HEAP) + 16
    content[first : first + 16] = bytes(16)
    (folder / "result.h5").write_bytes(content)


def brighter(folder: Path) -> None:
    """Counts of 1e33 in tike.npz, from which a run comes to a probe that no result may hold."""
    arrays = dict(np.load(folder / "tike.npz"))
    np.savez(folder / "tike.npz", **{**arrays, "data": arrays["data"].astype(np.float32) * np.float32(1e33)})
    recipe(data={"path": "tike.npz"}, stages=[{"engine": "lsqml", "epochs": 1}])(folder)


BEAM, DETECTOR = "entry_1/instrument_1/beam_1", "entry_1/instrument_1/detector_1"
INSPECT = ("inspect", "own.cxi", "--json")
OTHERS = ("inspect", "others.cxi", "--json")
RUN = ("run", "recipe.yaml", *OUT)
VIEW = ("view", "result.h5", "--out", "out")
RESUME = ("resume", "out", "--device", "cpu")

ENTRIES: dict[str, Entry] = {
    "a soft link to itself": Entry(
        ("own.cxi",),
        hdf5("own.cxi", link(f"{DETECTOR}/distance", h5py.SoftLink(f"/{DETECTOR}/distance"))),
        INSPECT,
        EITHER,
    ),
    "an external link to a device": Entry(
        ("others.cxi",), hdf5("others.cxi", link(BEAM, h5py.ExternalLink("/dev/zero", "/x"))), OTHERS
    ),
    "a propagation that is none": Entry(
        ("own.cxi",), hdf5("own.cxi", attribute("entry_1/ptymesh", "propagation", "sideways")), INSPECT
    ),
    "patterns that are a virtual dataset of themselves": Entry(
        ("scan.h5",), lambda folder: (generic(folder), hdf5("scan.h5", of_itself)(folder)), RUN
    ),
    "a mask that is a group": Entry(
        ("others.cxi",),
        hdf5("others.cxi", lambda file: (file.pop(f"{DETECTOR}/mask"), file.create_group(f"{DETECTOR}/mask"))),
        OTHERS,
    ),
    "a date that is none": Entry(("own.cxi",), text("data: {path: own.cxi}\nseed: 2020-13-45\n"), RUN),
    "a tag that does not fit": Entry(("own.cxi",), text("data: {path: own.cxi}\nseed: !!int abc\n"), RUN),
    "brackets without end": Entry(("own.cxi",), text("data: " + "[" * 3000), RUN),
    "a number of many digits": Entry(("own.cxi",), text(f"data: {{path: own.cxi}}\nseed: {'9' * 5000}\n"), RUN),
    "a home that is none": Entry((), recipe(data={"path": "~nosuch/x"}), RUN),
    "a name that is too long": Entry((), recipe(data={"path": "a" * 300}), RUN),
    "a scan of objects": Entry(
        ("tike.npz",),
        lambda folder: np.savez(folder / "tike.npz", data=np.ones((9, 16, 16)), scan=np.array([None] * 9)),
        ("inspect", "tike.npz"),
    ),
    "a shape below zero": Entry(
        ("tike.npz",), member("tike.npz", "scan", archives.HEADERS[1]), ("inspect", "tike.npz")
    ),
    "a manifest without files": Entry(("stopped",), manifest(lambda tree: tree.pop("files")), RESUME),
    "a manifest without meta": Entry(("stopped",), manifest(lambda tree: tree.update(meta={})), RESUME),
    "positions at the end of the world": Entry(
        ("tike.npz",),
        lambda folder: np.savez(folder / "tike.npz", data=np.ones((9, 16, 16)), scan=np.eye(9, 2) * 1e300),
        ("inspect", "tike.npz"),
        EITHER,
    ),
    "a chunk shorter than its checksum": Entry(("result.h5",), hdf5("result.h5", short_chunk), VIEW),
    "OPR modes without weights": Entry(("result.h5",), hdf5("result.h5", modes_alone), VIEW),
    "an OPR mode that is a number": Entry(
        ("result.h5",), hdf5("result.h5", lambda file: (modes_alone(file), put(file, "opr/modes", 1j))), VIEW
    ),
    "weights beyond all numbers": Entry(
        ("result.h5",),
        hdf5("result.h5", lambda file: put(file, "opr/weights", np.full((len(file["positions_px"]), 1), 2.0**64))),
        VIEW,
    ),
    "positions beyond the object": Entry(
        ("result.h5",), hdf5("result.h5", lambda file: put(file, "positions_px", file["positions_px"][()] + 1e9)), VIEW
    ),
    "every view held out": Entry(
        ("own.cxi",), recipe(data={"path": "own.cxi", "views": {"start": -1}}, hold_out=0.2), RUN
    ),
    "a residual in words": Entry(
        ("result.h5",), hdf5("result.h5", lambda file: put(file, "history/residual", ["low"])), VIEW
    ),
    "patterns that are one number": Entry(
        ("tike.npz",),
        lambda folder: np.savez(folder / "tike.npz", data=np.array(3.0), scan=np.ones((9, 2))),
        ("inspect", "tike.npz"),
    ),
    "a name of two lines": Entry(
        ("result.h5",), hdf5("result.h5", lambda file: put(file, "odd\nname", h5py.Empty("f"))), VIEW, EITHER
    ),
    "a probe beyond all numbers": Entry(
        ("result.h5",), hdf5("result.h5", lambda file: put(file, "probe", file["probe"][()] * 1e19)), VIEW
    ),
    "an initial object beyond all numbers": Entry(
        ("own.cxi",),
        lambda folder: (
            np.save(folder / "object.npy", np.full((30, 30), 1e259 + 0j)),
            recipe(object={"initial": "object.npy"})(folder),
        ),
        RUN,
    ),
    "a flat that is nearly nothing": Entry(
        ("own.cxi",),
        lambda folder: (
            np.save(folder / "gain.npy", np.full((16, 16), 1e-300)),
            recipe(data={"path": "own.cxi", "gain": "gain.npy"})(folder),
        ),
        RUN,
    ),
    "a whole number of 5000 digits": Entry(("own.cxi",), text(f"data: {{path: own.cxi, crop: 0x{'f' * 4200}}}\n"), RUN),
    "a whole number beyond all arrays": Entry(("own.cxi",), recipe(data={"path": "own.cxi", "crop": 16**40}), RUN),
    "a stage before the first": Entry(("result.h5",), hdf5("result.h5", stage_before), VIEW, EITHER),
    "text in a heap without end": Entry(("result.h5",), heap_without_end, VIEW),
    "pixels smaller than anything": Entry(
        ("own.cxi",),
        recipe(data={"path": "own.cxi", "detector_pixel_m": 1e-300}),
        ("convert", "recipe.yaml", "out/made.cxi"),
    ),
    "counts beyond all results": Entry(("tike.npz",), brighter, RUN, ("2", "3")),
    "a sound run": Entry(("own.cxi",), recipe(), RUN, ("0",)),
    "a sound resume": Entry(("stopped",), nothing, RESUME, ("0",)),
}
NAMES = tuple(ENTRIES)
