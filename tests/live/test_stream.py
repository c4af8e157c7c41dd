"""`ptymesh stream` plays a data set that is there."""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptymesh as pm
from ptymesh.cli.stream import command
from ptymesh.errors import BadInput
from ptymesh.live import ApartStream, LiveOptions, open_positions, open_source, reconstruct_live
from ptymesh.measurement import Measurement
from ptymesh.recipe.schema import Recipe
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked

pytest.importorskip("zmq")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="addresses of files are not there on Windows")

VIEWS = 80
RECIPE = Recipe.parse(
    {"data": {"path": "none.cxi", "radiation": "photon"}, "stages": [{"engine": "rpie", "epochs": 1, "batch": 16}]}
)


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("played") / "scan.cxi"
    write(checked(views=VIEWS, window=32, seed=3), path)
    return path


def played(scan: Path, address: str, out: Path, **options: Any) -> tuple[Measurement, float]:
    """Return what a live run takes of a scan that the command plays, and how many seconds that took."""
    given = {"rate": 4000.0, "protocol": "plain", "positions_to": None, "set_": []} | options
    thread = threading.Thread(target=command, args=(scan, address), kwargs=given, daemon=True)
    began, where = time.monotonic(), given["positions_to"]
    thread.start()
    stream: Any
    if where is None:
        stream = open_source(address)
    else:
        detector = open_source(address.replace("tcp", "dectris"), positions=None)
        stream = ApartStream(detector, open_positions(where, "/positions"))
    _, measured = reconstruct_live(RECIPE, stream, out, LiveOptions(uses=1, timeout_s=60))
    thread.join(20)
    assert not thread.is_alive(), "it ends once all frames were taken"
    return measured, time.monotonic() - began


@pytest.mark.parametrize("setting", [(), ("data.crop=[16, 16]",)])
def test_a_data_set_is_played_as_it_is_prepared(scan: Path, tmp_path: Path, setting: tuple[str, ...]) -> None:
    measured, _ = played(scan, f"ipc://{tmp_path}/socket", tmp_path / "out", set_=list(setting))
    whole = pm.load(scan, crop=(16, 16)) if setting else pm.load(scan)
    assert measured.window == whole.window == ((16, 16) if setting else (32, 32))
    assert np.array_equal(measured.patterns.read(np.arange(VIEWS)), whole.patterns.read(np.arange(VIEWS)))
    assert np.abs(measured.positions - whole.positions).max() < 1e-9 and measured.geometry == whole.geometry


def test_masked_pixels_are_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(checked(views=VIEWS, window=32, seed=3, defect="beamstop"), tmp_path / "scan.cxi")
    with pytest.raises(BadInput, match="nowhere cannot be used"):
        command(tmp_path / "scan.cxi", "nowhere")
    hidden = int((~pm.load(tmp_path / "scan.cxi").mask).sum())
    assert hidden > 0 and f"{hidden} masked pixels are sent as 0" in capfd.readouterr().out


def test_at_a_rate(scan: Path, tmp_path: Path) -> None:
    _, seconds = played(scan, f"ipc://{tmp_path}/socket", tmp_path / "out", rate=60.0)
    assert seconds > VIEWS / 60 - 0.1


def test_as_a_detector(scan: Path, tmp_path: Path) -> None:
    pytest.importorskip("cbor2")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    where, whole = tmp_path / "yx.txt", pm.load(scan)
    measured, _ = played(scan, address, tmp_path / "out", protocol="dectris", positions_to=where)
    assert np.array_equal(measured.patterns.read(np.arange(VIEWS)), whole.patterns.read(np.arange(VIEWS)))
    assert len(where.read_text().splitlines()) == VIEWS
    assert np.abs(measured.positions - whole.positions).max() < 1e-9


def test_a_file_that_exists_is_not_replaced_by_positions(scan: Path) -> None:
    before = scan.read_bytes()
    with pytest.raises(BadInput, match=r"--positions-to is .*scan.cxi, which exists; name another file"):
        command(scan, "tcp://127.0.0.1:*", protocol="dectris", positions_to=scan)
    assert scan.read_bytes() == before


@pytest.mark.parametrize("port", ["99999", "-1", "x", "", "9" * 5000])
def test_ports_that_cannot_be_are_refused(scan: Path, port: str) -> None:
    """ZeroMQ listens at 34463 for 99999."""
    with pytest.raises(BadInput, match=r"has no port up to 65535; give (tcp|dectris)://HOST:PORT, such as tcp://127"):
        command(scan, f"tcp://127.0.0.1:{port}")
    for scheme in ("tcp", "dectris"):
        with pytest.raises(
            BadInput, match=f"has no port up to 65535; give (tcp|dectris)://HOST:PORT, such as {scheme}://127"
        ):
            open_source(f"{scheme}://127.0.0.1:{port}", positions=None)
