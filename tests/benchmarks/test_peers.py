"""The comparison with peers, as far as it goes without them: loader, starting modes, epochs in turns, PtyRAD's mend."""

from __future__ import annotations

import argparse
import bz2
import importlib.util
import io
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ptymesh.errors import PtymeshError
from ptymesh.simulate import simulate

FOLDER = Path(__file__).parents[2] / "benchmarks" / "peers"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"peers_{name}", FOLDER / f"{name}.py")
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = sys.modules[name] = made  # as programs of the folder find each other
    spec.loader.exec_module(made)
    return made


star, compare = load("turns"), load("compare")
SEVERAL = {"slices": 1, "inner": 0, "positions": False}


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A small scan in the star's format."""
    scan = simulate(views=12, window=32).measurement
    assert scan.probe is not None
    file = io.BytesIO()
    arrays = scan.patterns.read(np.arange(12)).astype(np.float32)[None], scan.positions[None].astype(np.float32)
    np.savez(file, data=arrays[0], scan=arrays[1], probe=scan.probe[None, None, None].astype(np.complex64))
    path = tmp_path / "small.npz.bz2"
    path.write_bytes(bz2.compress(file.getvalue()))
    return path


def test_all_start_from_modes_of_the_data_s_power(packed: Path) -> None:
    loaded = star.load(packed)
    assert loaded.patterns.shape == (12, 32, 32) and loaded.positions.shape == (12, 2)
    modes = loaded.modes(6)
    powers = (np.abs(modes) ** 2).sum(axis=(1, 2))
    assert powers.sum() == pytest.approx(loaded.patterns.sum(axis=(1, 2)).mean(), rel=1e-5)
    assert powers[1:] / powers.sum() == pytest.approx(0.02, rel=1e-4)
    assert np.linalg.matrix_rank(modes.reshape(6, -1)) == 6


@pytest.mark.forked
def test_ptymesh_beside_a_peer(packed: Path, tmp_path: Path) -> None:
    """The peer is a script of three lines that speaks the same protocol."""
    peer = tmp_path / "slow_run.py"
    peer.write_text(
        f"import sys, time; sys.path.insert(0, {str(FOLDER)!r})\n"
        "from turns import arguments, serve\n"
        "serve(lambda: print('more') or time.sleep(0.2) or 3.5, arguments(), 'slow 1.0', dict)\n"
    )
    given = argparse.Namespace(
        star=packed, batch=6, turns=2, threads=1, device="cpu", subpixel="none", clock="wall", **SEVERAL
    )
    found = compare.side_by_side(Path(sys.executable), str(peer), "rpie", 2, given)
    slow, ours = (found["seconds"][name] for name in ("slow", "ptymesh"))
    assert found["peer"] == "slow 1.0"
    for seconds in (slow, ours):
        cut_short = len(seconds) > 1 + compare.MOST  # one turn, at least, had as many epochs as it may have
        assert sum(seconds[1:]) >= 2 * compare.TURN_S or cut_short
    assert len(slow) <= 1 + 2 * 5 and len(ours) <= 1 + 2 * compare.MOST
    assert compare.VIEWS / 5 < found["peer_views_per_s"] < compare.VIEWS / 0.2, "an epoch sleeps for 0.2 s"
    assert found["ratio"] == pytest.approx(found["ptymesh_views_per_s"] / found["peer_views_per_s"])
    losses = found["losses"]["ptymesh"]
    assert losses[-1] < losses[0]


def test_a_peer_that_fails_says_why(packed: Path, tmp_path: Path) -> None:
    peer = tmp_path / "broken_run.py"
    peer.write_text("raise RuntimeError('no such thing')")
    given = argparse.Namespace(
        star=packed, batch=6, turns=2, threads=1, device="cpu", subpixel="none", clock="wall", **SEVERAL
    )
    with pytest.raises(PtymeshError, match="stopped: RuntimeError: no such thing"):
        compare.side_by_side(Path(sys.executable), str(peer), "rpie", 2, given)


def test_ptyrad_is_mended_once(tmp_path: Path) -> None:
    file = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path), "platbase": str(tmp_path)}))
    file = file / "ptyrad" / "plotting" / "basic.py"
    file.parent.mkdir(parents=True)
    file.write_text("title(f'up to {lr_iters['niter'][-1]}', size=16)\n")
    for _ in range(2):
        compare.mend_ptyrad(tmp_path)
        assert file.read_text() == "title(f'up to {lr_iters[\"niter\"][-1]}', size=16)\n"
