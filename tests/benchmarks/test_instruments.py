"""Lines of docs/how-to/instruments.md, typed on files of those instruments' layouts."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from ptymesh.cli import main as module
from ptymesh.io.results import Result
from ptymesh.simulate import checked, simulate

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "instruments.md"
ROWS = COLUMNS = 12
SHORT = ["--set", "stages=[{engine: rpie, epochs: 2, batch: 36}]", "--set", "output.figures=false"]
XML = (
    '<root name="scan"><software_version>1.2.2</software_version><raw_file filename="scan_x12_y12.raw"/>'
    '<scan_parameters mode="acquire"><scan_resolution_y>12</scan_resolution_y>'
    "<scan_resolution_x>12</scan_resolution_x><scan_size>0.5</scan_size></scan_parameters><iom_measurements>"
    "<high_voltage>300000.0</high_voltage><nominal_camera_length>0.4</nominal_camera_length><full_scan_field_of_view>"
    "<scale_factor>1</scale_factor><x>3.2e-9</x><y>3.2e-9</y></full_scan_field_of_view></iom_measurements></root>"
)


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("formats")


@pytest.fixture
def files(makers: ModuleType, tmp_path: Path) -> Path:
    """A folder with the files that the page names."""
    made = simulate(checked(kind="electron", views=ROWS * COLUMNS, window=64, scan="raster", seed=3)).measurement
    counts = np.fft.fftshift(made.patterns.read(np.arange(made.views)), axes=(1, 2))
    counts = np.minimum(counts, 255).astype(np.uint8)
    places = np.stack(np.divmod(np.arange(ROWS * COLUMNS), COLUMNS), axis=1) * 5e-11
    scan = makers.Scan(counts, places, 300e3, 2e-11, 5e-11, np.ones((1, 64, 64), complex))
    write = makers.FORMATS
    wide = np.zeros((len(counts), 130, 128), "<f4")
    wide[:, 32:96, 32:96] = counts
    wide.tofile(tmp_path / "scan_x12_y12.raw")
    (tmp_path / "acquisition.xml").write_text(XML)
    path = write["merlin"](tmp_path, scan)[0].rename(tmp_path / "merlin.mib")
    path.with_suffix(".hdr").write_text(f"HDR,\t\nScanX:\t{COLUMNS}\nScanY:\t{ROWS}\nEnd\t")
    more = np.insert(counts, np.arange(COLUMNS, len(counts) + 1, COLUMNS), 0, axis=0)
    write["merlin"](tmp_path, makers.Scan(more, places, 300e3, 2e-11, 5e-11, scan.probe))[0].rename(
        tmp_path / "flyback.mib"
    )
    arina = write["dectris"](tmp_path, scan)[0].rename(tmp_path / "arina_master.h5")
    with h5py.File(arina, "r+") as file:
        file["entry/instrument/beam/incident_energy"] = 300e3
        file["entry/instrument/beam/incident_energy"].attrs["units"] = "eV"
    write["dm4"](tmp_path, scan)
    plain = (tmp_path / "scan.dm4").read_bytes()
    for unit in ("1/nm", "nm"):
        plain = plain.replace(unit.encode("utf-16-le"), (" " * len(unit)).encode("utf-16-le"))
    (tmp_path / "plain.dm4").write_bytes(plain)
    photons = makers.Scan(counts, places * 1e3, 8e3, 2e-8, 5e-8, scan.probe)
    write["hxn_amplitudes"](tmp_path, photons)
    nexus = write["nexus"](tmp_path, photons)[0].rename(tmp_path / "beamline.nxs")
    with h5py.File(nexus, "r+") as file:
        said: dict[str, Any] = {"beam/incident_energy": (8.0, "keV"), "detector/distance": (1.2, "m")}
        said |= {f"detector/{axis}_pixel_size": (150.0, "um") for axis in "yx"}
        for name, (value, unit) in said.items():
            file[f"entry/instrument/{name}"] = value
            file[f"entry/instrument/{name}"].attrs["units"] = unit
    return tmp_path


def typed(command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return what each line of the page with this command prints."""
    text = "".join(re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M))
    said, threads = {}, torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for line in text.replace("\\\n", "").splitlines():
            if shlex.split(line)[1] == command:
                monkeypatch.setattr(sys, "argv", [*shlex.split(line), *(SHORT if command == "run" else [])])
                with pytest.raises(SystemExit) as left:
                    module.main()
                said[line], err = capfd.readouterr()
                assert not left.value.code, f"{line}: {err}"
    finally:
        torch.set_num_threads(threads)
    return said


def test_lines_that_inspect(files: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(files)
    said = typed("inspect", monkeypatch, capfd)
    assert len(said) == 9
    for line, out in said.items():
        assert re.search(r"views +144, windows of", out), f"{line}: {out}"


@pytest.mark.long
def test_lines_that_run(files: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(files)
    for line in typed("run", monkeypatch, capfd):
        folder = shlex.split(line)[-1]
        assert Result.load(files / folder / "result.h5").positions_px.shape == (ROWS * COLUMNS, 2)
