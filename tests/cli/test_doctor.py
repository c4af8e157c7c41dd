"""ptymesh doctor: what it prints of what was found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ptymesh.cli.doctor import lines
from ptymesh.cli.main import main
from ptymesh.kernels.cpu import compiling
from ptymesh.launcher import doctor

GPUS = [
    {"kind": "cuda", "index": i, "name": "H100", "slice": False, "memory_bytes": 80 << 30, "memory_free_bytes": 8 << 30}
    for i in range(2)
]
WORKS = {"bytes": 1 << 20, "seconds": 2e-4, "GB_per_s": 5.25}


def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["ptymesh", "doctor", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capfd.readouterr()
    return int(left.value.code or 0), out, err


@pytest.fixture
def gloo(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the hang test says; it is not run (tests/distributed/test_doctor.py does)."""
    tried = {"device": "cpu", "backend": "gloo", "ranks": 2, "works": True, "hangs": False, "seconds": 3.0}
    tried |= {"allreduce": [WORKS], "environment": {}}
    monkeypatch.setattr(doctor, "hang_test", lambda *_: tried)
    monkeypatch.setattr(doctor, "DISK_BYTES", 1 << 20)
    return tried


def test_readable_and_json(
    gloo: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, out, err = call(monkeypatch, capfd, "--dir", str(tmp_path))
    assert (status, err) == (0, "") and "gloo, 2 cpu ranks: works" in out and str(tmp_path) in out
    assert "all-reduce of    1 MiB         200 us     5.250 GB/s" in out
    status, out, err = call(monkeypatch, capfd, "--json", "--dir", str(tmp_path))
    found = json.loads(out)
    assert (status, err) == (0, "") and found["backends"][0]["allreduce"] == [WORKS]
    assert {"system", "devices", "environment", "backends", "peers", "disk", "kernels", "advice"} == set(found)


def test_it_offers_to_compile_what_the_first_run_would(
    gloo: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiling, "missing", lambda waves: ["detector"] * (waves == "complex128"))
    out = call(monkeypatch, capfd)[1]
    assert "compiled for single precision" in out and "* `ptymesh warm` compiles the kernels" in out
    monkeypatch.setattr(compiling, "missing", lambda waves: [])
    out = call(monkeypatch, capfd)[1]
    assert "compiled for single and double precision" in out and "ptymesh warm" not in out


def test_what_does_not_work_has_a_status(
    gloo: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    gloo |= {"works": False, "hangs": True, "allreduce": []}
    status, out, _ = call(monkeypatch, capfd)
    assert status == 1 and "gloo, 2 cpu ranks: hangs" in out and "* gloo between 2 cpu ranks hangs" in out


def test_devices_and_copies_between_them(gloo: dict[str, Any], tmp_path: Path) -> None:
    pairs = [
        {"from": 0, "to": 1, "direct": True, "GB_per_s": 41.5, "latency_us": 8.4},
        {"from": 1, "to": 0, "direct": None, "GB_per_s": 0.0, "latency_us": None, "hangs": True},
    ]
    found = {**doctor.examine(tmp_path, 1, 2), "devices": GPUS, "peers": pairs, "environment": {"NCCL_DEBUG": "INFO"}}
    found["kernels"] = {"single": True, "double": False}
    text = "\n".join(lines(found))
    assert "kernels for this processor: compiled for single precision\n" in text
    assert "cuda:1  H100, 8.0 GiB of 80.0 GiB free" in text and "NCCL_DEBUG=INFO" in text
    assert "cuda:0 -> cuda:1  41.5 GB/s  8 us  direct" in text and "cuda:1 -> cuda:0  0.0 GB/s  does not arrive" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--timeout", "0"], "--timeout is 0.0; give a number of seconds above 0."),
        (["--ranks", "1"], "--ranks is 1; give 2 to 4096"),
        (["--dir", "nowhere"], "There is no folder nowhere"),
    ],
)
def test_refused(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status, out, err = call(monkeypatch, capfd, *arguments)
    assert (status, out) == (2, "") and sentence in err
