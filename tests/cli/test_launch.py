"""A user's own program, unchanged: alone, under ptymesh launch, torchrun, srun and mpirun (what these set by hand)."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ptymesh.cli.main import main
from ptymesh.io.results import Result
from ptymesh.kernels.cpu.ready import make_ready
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from warm import python

SCRIPT = """
import sys
import ptymesh as pm

before = pm.world()
scan = pm.load("scan.cxi")
recon = pm.Reconstruction(scan, precision="double", seed=1)
for report in recon.run(pm.RPIE(epochs=3, batch=7)):
    print(report)
recon.plot("object.png")
figure = recon.plot()
figure.savefig("again.png")
result = recon.result()
result.save(sys.argv[1])
assert pm.Result.load(sys.argv[1]).object.shape == recon.object.shape, "it is there for all when save returns"
assert (pm.world().rank, pm.world().size) == (before.rank, before.size) and result.attrs["ranks"] == before.size
print("world of", pm.world().size, "done", *sys.argv[2:])
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scan, the program, and its result when it runs alone."""
    folder = tmp_path_factory.mktemp("made")
    make_ready(torch.complex128)  # kernels that are compiled here need no word about it from a rank
    write(checked(kind="xray", views=20, window=32, seed=3), folder / "scan.cxi")
    (folder / "scan.truth.h5").unlink()
    (folder / "script.py").write_text(SCRIPT)
    ((status, out, err),) = together(folder, [(["script.py", "result.h5", "--debug", "-n"], {})])
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == "world of 1 done --debug -n" and len(out.splitlines()) == 4
    return folder


def together(
    folder: Path, programs: list[tuple[list[str], dict[str, str]]], spares: int = 0
) -> list[tuple[int, str, str]]:
    """Runs Python programs side by side, each with variables of its own; status, standard output, standard error."""
    started = [python(command, folder, {**os.environ, **environ}, spares) for command, environ in programs]
    said = [process.communicate(timeout=200) for process in started]
    return [(process.returncode, out, err) for process, (out, err) in zip(started, said, strict=True)]


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def programs(how: str) -> list[tuple[list[str], dict[str, str]]]:
    """The commands that start the program on two ranks, with what srun and mpirun would set."""
    script, options = "script.py", ["result.h5", "--debug", "-n"]
    if how == "launch":
        return [(["-m", "ptymesh", "launch", "-n", "2", "--device", "cpu", script, *options], {})]
    if how == "torchrun":
        runner = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        return [([*runner, script, *options], {})]
    port = free_port()
    names = {
        "srun": {"SLURM_PROCID": "{rank}", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "{rank}"},
        "mpirun": {"OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
    }
    more = {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "localhost"} if how == "srun" else {}
    return [
        (
            [script, *options],
            {name: value.format(rank=rank) for name, value in names[how].items()} | more | {"MASTER_PORT": port},
        )
        for rank in range(2)
    ]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "how", ["launch", *(pytest.param(how, marks=pytest.mark.long) for how in ("torchrun", "srun")), "mpirun"]
)
def test_the_same_program_the_same_files_the_same_result(made: Path, tmp_path: Path, how: str) -> None:
    for name in ("scan.cxi", "script.py"):
        (tmp_path / name).symlink_to(made / name)
    ended = together(tmp_path, programs(how), spares=2 if how in ("launch", "torchrun") else 0)
    assert all(status == 0 for status, _, _ in ended), ended
    assert how == "torchrun" or not any(err for _, _, err in ended), ended
    lines = [line for _, out, _ in ended for line in out.splitlines()]
    assert len(lines) == 4 and lines[-1] == "world of 2 done --debug -n", "rank 0 alone is heard"
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in made.iterdir()}
    found, expected = Result.load(tmp_path / "result.h5"), Result.load(made / "result.h5")
    assert found.attrs["ranks"] == 2
    for name in ("object", "probe", "positions_px"):
        one, other = getattr(found, name), getattr(expected, name)
        assert np.linalg.norm(one - other) <= 1e-12 * np.linalg.norm(other), name


FAILS = """
import ptymesh as pm
recon = pm.Reconstruction(pm.load("scan.cxi"), seed=1)
for report in recon.run(pm.RPIE(epochs=3, batch=7)):
    if pm.world().rank == 1 and report.epoch == 2:
        raise KeyError("my own mistake")
"""


def test_what_one_rank_says_when_it_fails_is_shown(made: Path, tmp_path: Path) -> None:
    (tmp_path / "scan.cxi").symlink_to(made / "scan.cxi")
    (tmp_path / "fails.py").write_text(FAILS)
    command = ["-m", "ptymesh", "launch", "--ranks", "2", "--logs", "logs", "fails.py"]
    ((status, _, err),) = together(tmp_path, [(command, {})], spares=2)
    assert status == 1
    assert "--- rank 1 (all of it in logs/rank1.txt)" in err and 'raise KeyError("my own mistake")' in err
    last = err.splitlines()[-1]
    assert last.startswith("ptymesh: Rank 1 failed") and "KeyError: 'my own mistake'" in last
    assert "my own mistake" in (tmp_path / "logs" / "rank1.txt").read_text()


SLOW = """
import time
import ptymesh as pm
recon = pm.Reconstruction(pm.load("scan.cxi"), seed=1)
for report in recon.run(pm.RPIE(epochs=2, batch=7)):
    if pm.world().rank == 0 and report.epoch == 1:
        time.sleep(7)  # somebody looks at a picture
recon.result().save("slow.h5")
"""


def test_a_slow_first_rank_is_waited_for(made: Path, tmp_path: Path) -> None:
    (tmp_path / "scan.cxi").symlink_to(made / "scan.cxi")
    (tmp_path / "slow.py").write_text(SLOW)
    command = ["-m", "ptymesh", "launch", "--ranks", "2", "--batch-timeout", "3", "slow.py"]
    ((status, _, err),) = together(tmp_path, [(command, {})], spares=2)
    assert (status, err) == (0, "") and (tmp_path / "slow.h5").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["gone.py"], "There is no program gone.py; check the path."),
        (["-n", "0", "there.py"], "--ranks is 0; give 1 to 4096 on one machine."),
        (
            ["-n", "4096", "--device", "cpu", "there.py"],
            "there are 4 cores here: more ranks than cores are slower",
        ),
        (["there.yaml"], "there.yaml is a recipe, not a Python program; give it to ptymesh run"),
        (["-n", "2", "--backend", "mpi", "there.py"], "Backend 'mpi' is unknown"),
        (["-n", "2", "--batch-timeout", "-1", "there.py"], "--timeout is -1.0"),
        (["--max-restarts", "2", "there.py"], "--max-restarts starts failed ranks again"),
    ],
)
def test_refused(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").touch()
    (tmp_path / "there.yaml").touch()
    monkeypatch.setattr(sys, "argv", ["ptymesh", "launch", *arguments])
    monkeypatch.setattr("ptymesh.launcher.rank_processes.cores", lambda: 4)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2 and sentence in capfd.readouterr().err


def test_options_reach_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "show.py").write_text(
        "import os, sys; from pathlib import Path\n"
        "names = 'PTYMESH_DEVICE PTYMESH_BACKEND PTYMESH_INTERFACE PTYMESH_TIMEOUT TORCHELASTIC_RESTART_COUNT'\n"
        "said = ' '.join(os.environ.get(name, '-') for name in names.split())\n"
        "Path('said.txt').write_text(said)\n"
        "sys.exit(1 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and os.environ['RANK'] == '1' else 0)\n"
    )
    options = ["-n", "2", "--device", "cpu", "--backend", "gloo", "--interface", "lo", "--timeout", "7"]
    monkeypatch.setattr(sys, "argv", ["ptymesh", "launch", *options, "--max-restarts", "1", "show.py"])
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    assert (tmp_path / "said.txt").read_text() == "cpu gloo lo 7.0 1"
