"""ptymesh slurm: the script is sound, and does what it says with programs that stand in for Slurm's."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ptymesh.cli import slurm
from ptymesh.cli.main import main
from ptymesh.errors import BadInput

RECIPE = """
data: {path: scan.cxi}
stages: [{engine: rpie, epochs: 2, batch: 7}]
output: {dir: my out}
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """script(options...) -> (status, standard output, standard error) of `ptymesh slurm`, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my recipe.yaml").write_text(RECIPE)

    def call(*options: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ptymesh", "slurm", "my recipe.yaml", *options])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    return call


def test_every_option_is_in_the_script(script) -> None:  # type: ignore[no-untyped-def]
    resources = ["--nodes", "2", "--gpus-per-node", "4", "--time", "1-02:00:00", "--cpus-per-task", "6"]
    options = [*resources, "--partition", "p100", "--account", "lab"]
    status, out, err = script(*options, "--container", "ptymesh.sif", "--interface", "ib0", "--out", "there")
    assert (status, err) == (0, "")
    for line in (
        "#SBATCH --job-name=my_recipe",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --cpus-per-task=6",
        "#SBATCH --time=1-02:00:00",
        "#SBATCH --signal=B:USR1@300",
        "#SBATCH --requeue",
        "#SBATCH --partition=p100",
        "#SBATCH --account=lab",
    ):
        assert line in out.splitlines(), line
    assert "apptainer exec --nv ptymesh.sif ptymesh run 'my recipe.yaml' --out there" in out
    assert "--device cuda --interface ib0" in out
    _, plain, _ = script("--gpus-per-node", "0", "--ranks-per-node", "8", "--container", "podman-hpc run img")
    assert "--ntasks-per-node=8" in plain and "gpus-per-node" not in plain and "--device cpu" in plain
    assert "podman-hpc run img ptymesh run" in plain and "#SBATCH --partition" not in plain


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--nodes", "0"], "--nodes is 0; give 1 or more."),
        (["--gpus-per-node", "-1"], "--gpus-per-node is -1; give 0 or more."),
        (["--gpus-per-node", "2", "--ranks-per-node", "3"], "--ranks-per-node is 3 for 2 GPUs"),
        (["--time", "soon"], "--time is 'soon'; give it as HH:MM:SS"),
        (["--time", "00:09:00"], "give more than 10 minutes"),
        (["--cpus-per-task", "0"], "--cpus-per-task is 0"),
    ],
)
def test_refused(script, options: list[str], sentence: str) -> None:  # type: ignore[no-untyped-def]
    status, out, err = script(*options)
    assert (status, out) == (2, "") and sentence in err


@pytest.mark.parametrize(
    ("time", "expected"),
    [("30", 1800), ("30:10", 1810), ("2:00:00", 7200), ("1-2", 93600), ("1-2:30", 95400), ("1-0:0:5", 86405)],
)
def test_times(time: str, expected: int) -> None:
    assert slurm.seconds(time) == expected


def test_no_time() -> None:
    with pytest.raises(BadInput):
        slurm.seconds("1:2:3:4")


#: srun as the job sees it: it passes signals on to its tasks, and ends with their status.
SRUN = """\
#!/bin/bash
echo "srun $*" >> calls
[ "$1" = --kill-on-bad-exit=0 ] && shift
exec "$@"
"""
#: ptymesh that works until it is told to stop, then leaves a checkpoint; resumed, it finishes.
PTYMESH = """\
#!/bin/bash
if [ "$1" = resume ]; then exit 0; fi
trap 'mkdir -p "my out/checkpoint"; touch "my out/checkpoint/manifest.json"; exit 75' USR1
touch started
while :; do sleep 0.05; done
"""


def test_it_checkpoints_requeues_and_resumes(script, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    _, text, _ = script("--gpus-per-node", "0")
    (tmp_path / "job.sh").write_text(text)
    programs = {"srun": SRUN, "ptymesh": PTYMESH, "scontrol": '#!/bin/bash\necho "scontrol $*" >> calls\n'}
    (tmp_path / "bin").mkdir()
    for name, body in programs.items():
        (tmp_path / "bin" / name).write_text(textwrap.dedent(body))
        (tmp_path / "bin" / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "42"}
    job = subprocess.Popen(["bash", "job.sh"], env=environ, stdout=subprocess.PIPE, text=True)
    while not (tmp_path / "started").exists():
        assert job.poll() is None
    job.send_signal(10)  # Slurm's B:USR1
    out, _ = job.communicate(timeout=30)
    assert job.returncode == 0 and "goes back into the queue" in out
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0].endswith("ptymesh run my recipe.yaml --out my out --device cpu")
    assert calls[1:] == ["scontrol requeue 42"]
    again = subprocess.run(["bash", "job.sh"], env=environ, capture_output=True, text=True, timeout=30)
    assert again.returncode == 0 and again.stdout == ""
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[2:] == ["srun --kill-on-bad-exit=0 ptymesh resume my out --device cpu"]
    (tmp_path / "bin" / "ptymesh").write_text("#!/bin/bash\nexit 3\n")
    assert subprocess.run(["bash", "job.sh"], env=environ, timeout=30).returncode == 3
    # a step that has ended before anybody looks
    early = (tmp_path / "job.sh").read_text().replace("step=$!\n", "step=$!\nsleep 0.5\n")
    assert subprocess.run(["bash", "-c", early], env=environ, timeout=30).returncode == 3
