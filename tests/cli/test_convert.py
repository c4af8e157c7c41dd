"""`ptymesh convert` of results as a user meets it; of data sets, test_inspect.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ptymesh.io.results import Result
from short_runs import Run


def test_there_and_back(run: Run, whole: Result, made: Path, tmp_path: Path) -> None:
    """What comes back is the same to `compare`, and a run that begins with it goes on from where it was."""
    result = made / "whole" / "result.h5"
    status, out, err = run("convert", result, "product.npz")
    assert (status, err) == (0, "")
    first, *lost = out.splitlines()
    assert "product.npz: ptychodus, object of 1 x " in first and "20 views" in first
    assert "The recipe is left out." in lost
    status, out, err = run("convert", "product.npz", "back.h5")
    assert (status, err) == (0, "") and "back.h5: ptymesh" in out
    status, out, err = run("compare", "back.h5", result, "--json")
    found = json.loads(out)
    assert status == 0 and found["nrmse"] < 1e-5 and not found["twin"]
    assert found["position_mean_px"] < 1e-6 and found["probe_nrmse"] < 1e-5
    start = ["--set", "object.initial=back.h5", "--set", "probe.start={kind: result, path: back.h5}"]
    short = "stages=[{engine: rpie, epochs: 1, batch: 10}]"
    status, _, err = run("run", made / "recipe.yaml", "--out", "again", *start, "--set", short)
    assert status == 0, err
    again = Result.load("again/result.h5")
    assert again.attrs["final_residual"] < 1.1 * whole.attrs["final_residual"]


def test_refusals(run: Run, whole: Result, made: Path) -> None:
    result, scan = made / "whole" / "result.h5", made / "scan.cxi"
    for arguments, words in (
        ((result, "out.xyz"), ("out.xyz", ".npz (ptychodus)", "--to")),
        ((result, "out", "--to", "matlab"), ("--to 'matlab'", "ptychodus")),
        ((result, "out.npz", "--set", "data.crop=16"), ("data sets", "--set")),
        ((scan, "out.npz"), ("no result", ".cxi")),
        (("absent.h5", "out.npz"), ("There is no file absent.h5",)),
        ((made / "recipe.yaml", "out.npz"), ("no result",)),
    ):
        status, out, err = run("convert", *arguments)
        assert (status, out) == (2, "") and all(word in err for word in words), err
        assert not list(Path().glob("out*"))
    assert run("convert", result, "out.npz")[0] == 0
    before = Path("out.npz").read_bytes()
    status, _, err = run("convert", result, "out.npz")
    assert status == 2 and "--force" in err and Path("out.npz").read_bytes() == before
    assert run("convert", result, "out.npz", "--force")[0] == 0


def test_torch_stays_away(whole: Result, made: Path, tmp_path: Path) -> None:
    """Arrays in, arrays out: a conversion loads no torch."""
    script = (
        "import sys\nfrom ptymesh.cli import main\n"
        f"sys.argv = ['ptymesh', 'convert', {str(made / 'whole' / 'result.h5')!r}, {str(tmp_path / 'a.npz')!r}]\n"
        "try:\n    main.main()\nexcept SystemExit as left:\n    assert not left.code\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n and no more", b"PK\x03\x04 and no more", b"x: 1\n"])
def test_what_is_no_result(content: bytes, run: Run) -> None:
    Path("in.h5").write_bytes(content)
    status, out, err = run("convert", "in.h5", "out.npz")
    assert (status, out) == (2, "") and err.count("\n") == 1 and not Path("out.npz").exists()
