"""Ranks whose strings hash otherwise, as those of separately started processes do, end with the same bits.

The pool of ranks of the other tests is forked from one process, and shares its hash seed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
import ptymesh as pm
from ptymesh.io.checkpoint import store as checkpoint

recon = pm.Reconstruction(pm.load("scan.cxi"), precision="double", seed=1, optics={"view_defocus": True})
stages = [
    {"engine": "adam", "positions": {"gain": 1}, "probe": {"opr": False}, "unknowns": dict.fromkeys(
        ("object", "probe", "positions", "weights", "background", "defocus"), True)},
    {"engine": "lsqml", "positions": True, "probe": {"intensity": True}, "models": {"scan_geometry": True}},
]
for stage in stages:
    list(recon.run({**stage, "epochs": 1, "batch": 7}))
e = recon.state.estimate
recon.state.save(Path(sys.argv[2]), recon.problem, {})
saved = checkpoint.load(Path(sys.argv[2]))
names, order = [*saved.tiles, *saved.shared], [*{"positions", "weights"}]
arrays = {name: e[name] for name in e} | {"object": recon.problem.layout.gather_whole(e.object, e)}
np.savez(sys.argv[1], names=names, order=order, **{name: array.numpy() for name, array in arrays.items()})
"""


def started(folder: Path, name: str, hash_seed: str, **environ: str) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(SCRIPT)
    given = {**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1", **environ}
    command = [sys.executable, "script.py", name, "checkpoint"]
    return subprocess.Popen(command, cwd=folder, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.long
def test_the_hash_of_strings_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(checked(kind="xray", views=20, window=32, position_error_px=0.3, seed=3), tmp_path / "scan.cxi")
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
    of_rank = [
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", **there}
        for rank in range(2)
    ]
    running = [started(tmp_path, f"{rank}.npz", seed, **of_rank[rank]) for rank, seed in enumerate(("1", "3"))]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["script.py", "alone.npz", "alone"])
    exec(compile(SCRIPT, "script.py", "exec"), {})  # written above
    said = [process.communicate(timeout=120) for process in running]
    assert all(process.returncode == 0 for process in running), said
    alone, *both = (dict(np.load(tmp_path / name)) for name in ("alone.npz", "0.npz", "1.npz"))
    _, *orders = (tuple(found.pop("order")) for found in (alone, *both))
    assert orders[0] != orders[1], "the two go through a set in different orders"
    assert {"positions", "weights", "defocus"} < set(alone) and (alone["weights"] != 1).any()
    assert "engine/0/object.exp_avg" in alone["names"], "what engines remember, and exchange, in one order"
    for found in both:
        for name in alone:
            assert np.array_equal(found[name], alone[name]), name
