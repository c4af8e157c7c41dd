"""ptymesh slurm: the script is sound, and does what it says with programs that stand in for Slurm's."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

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
    assert (
        "srun --kill-on-bad-exit=0 --cpus-per-task=6 apptainer exec --nv ptymesh.sif ptymesh run 'my recipe.yaml'"
        in out
    )
    assert "--out there --device cuda" in out
    assert "--device cuda --interface ib0" in out
    _, plain, _ = script("--gpus-per-node", "0", "--ranks-per-node", "8", "--container", "podman-hpc run img")
    assert "--ntasks-per-node=8" in plain and "gpus-per-node" not in plain and "--device cpu" in plain
    assert "podman-hpc run img ptymesh run" in plain and "#SBATCH --partition" not in plain
    assert "cpus-per-task" not in plain


@pytest.mark.parametrize(
    ("container", "gpus", "expected"),
    [
        (None, 1, []),
        ("img.sif", 1, ["apptainer", "exec", "--nv", "img.sif"]),
        ("img.sif", 0, ["apptainer", "exec", "img.sif"]),
        ("a:b.sif", 0, ["apptainer", "exec", "a:b.sif"]),
        ("docker://lab/ptymesh:cuda", 1, ["apptainer", "exec", "--nv", "docker://lab/ptymesh:cuda"]),
        ("apptainer exec --rocm img.sif", 1, ["apptainer", "exec", "--rocm", "img.sif"]),
        ("'img.sif'", 0, ["apptainer", "exec", "img.sif"]),
        ("./wrapper", 1, ["./wrapper"]),
        ("lab/wrapper", 1, ["lab/wrapper"]),
        ("ptymesh:cuda", 1, ["podman", "run", ..., "--device=nvidia.com/gpu=all", "ptymesh:cuda"]),
        ("localhost/ptymesh:cuda", 0, ["podman", "run", ..., "localhost/ptymesh:cuda"]),
        ("localhost:5000/lab/ptymesh:1.0", 0, ["podman", "run", ..., "localhost:5000/lab/ptymesh:1.0"]),
    ],
)
def test_what_stands_before_ptymesh(container: str | None, gpus: int, expected: list[object], tmp_path: Path) -> None:
    told = ["bash", "-c", f"printf '%s\\n' {slurm.within(container, gpus)}"]
    words = subprocess.run(told, cwd=tmp_path, capture_output=True, text=True).stdout.split()
    if ... in expected:
        own = ["--rm", "--env-host", "--network=host", "--ipc=host", "--pid=host", "--security-opt=label=disable"]
        own += [f"--volume={tmp_path}:{tmp_path}", f"--workdir={tmp_path}"]
        expected = [*expected[:2], *own, *expected[3:]]
    assert words == expected


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--nodes", "0"], "--nodes is 0; give 1 or more."),
        (["--gpus-per-node", "-1"], "--gpus-per-node is -1; give 0 or more."),
        (["--gpus-per-node", "2", "--ranks-per-node", "3"], "--ranks-per-node is 3 for 2 GPUs"),
        (["--time", "soon"], "--time is 'soon'; give it as HH:MM:SS"),
        (["--time", "00:09:00"], "give more than 10 minutes"),
        (["--cpus-per-task", "0"], "--cpus-per-task is 0"),
        (["--time", "٣٠"], "--time is '٣٠'; give it as HH:MM:SS"),
        (["--partition", "gpu\ntouch injected"], "--partition is 'gpu\\ntouch injected'; give a name of letters"),
        (["--account", "lab --wrap=x"], "--account is 'lab --wrap=x'; give a name of letters"),
        (["--partition", "-x"], "--partition is '-x'; give"),
        (["--interface", "ib0\n"], "--interface is 'ib0\\n'; give one without line breaks"),
        (["--out", "a\rb"], "The output folder is 'a\\rb/checkpoint/manifest.json'; give one without line breaks"),
        (["--container", "say 'hello"], '--container is "say \'hello" (No closing quotation); close every quotation'),
        (["--container", "a\x1b.sif"], "--container is 'a\\x1b.sif'; give one without"),
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


#: What may do harm in a script, and what names are made of.
PIECES = [
    "\n",
    "\r",
    "touch injected",
    ";",
    "&",
    "|",
    "$(touch injected)",
    "`touch injected`",
    "'",
    '"',
    "\\",
    "#",
    " ",
]
PIECES += [
    "${PATH}",
    ">injected",
    "<(touch injected)",
    "!",
    "*",
    "~",
    "-",
    "--wrap=x",
    "é",
    "a",
    "7",
    ".",
    "/",
    "\u2028",
    "%",
]
ANY = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
PLACES = ("recipe", "out", "partition", "account", "interface", "container")
#: Stand for srun and whatever is put before ptymesh: the words that they got, one a line, after the number of words.
TELL = '#!/bin/bash\necho "$#" >> said\nprintf "%s\\n" "$@" >> said\n'


@pytest.fixture(scope="module")
def turns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("turns")
    (folder / "bin").mkdir()
    for name in ("srun", "scontrol", "ptymesh", "apptainer", "podman"):
        (folder / "bin" / name).write_text(TELL)
        (folder / "bin" / name).chmod(0o755)
    return folder


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.fixed_dictionaries(dict.fromkeys(PLACES, ANY)))
@example(dict(zip(PLACES, ("my recipe", "my out", "p100", "lab", "ib0", "podman run img"), strict=True)))
@example(dict(zip(PLACES, ("my recipe", "my out", "p", "l", "ib0", "lab/ptymesh:cuda"), strict=True)))
@example(dict(zip(PLACES, ("-x", "-y", "a,b", "l@b", "$(touch injected)", "podman; touch injected"), strict=True)))
@example(
    dict(zip(PLACES, ("$(touch injected)", "`touch injected`", "p", "l", "';touch injected;'", "a b.sif"), strict=True))
)
def test_nothing_that_is_given_is_executed(turns: Path, given: dict[str, str]) -> None:
    """With words of all kinds in every place: refused in one sentence, or handed on as they are."""
    folder, environ = turns, {"PATH": f"{turns / 'bin'}:/usr/bin:/bin"}
    name = (given["recipe"].replace("/", "_") or "recipe") + ".yaml"
    (folder / name).write_text(RECIPE)
    out = given["out"] or "out"
    options = {name: given[name] or "x" for name in ("partition", "account", "interface", "container")}
    try:
        text = written(folder, name, out, options)
    except BadInput as error:
        assert "\n" not in str(error)
        return
    finally:
        (folder / name).unlink()
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    (folder / "said").unlink(missing_ok=True)
    before = sorted(folder.iterdir())
    ran = subprocess.run(["bash", "-c", text], cwd=folder, env=environ, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr, ran.stdout) == (0, "", "")
    assert sorted(folder.iterdir()) == sorted([*before, folder / "said"]), "nothing else was done"
    count, *words = (folder / "said").read_text().split("\n")[:-1]
    assert int(count) == len(words)
    plain = [str(Path(out)), "--device", "cuda", "--interface", options["interface"]]
    plain[0] = f"./{plain[0]}" if plain[0].startswith("-") else plain[0]
    assert words[-5:] == plain and words[-6] == "--out"
    assert words[-7] == (f"./{name}" if name.startswith("-") else name) and words[-9:-7] == ["ptymesh", "run"]
    own = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert len(own) == 11 and own[-2:] == [f"#SBATCH --{key}={options[key]}" for key in ("partition", "account")]


def written(folder: Path, recipe: str, out: str, options: dict[str, str]) -> str:
    """The script, of the command itself."""
    import contextlib
    import io

    said, before = io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(said):
            slurm.command(Path(recipe), out=Path(out), **options)  # type: ignore[arg-type]
    finally:
        os.chdir(before)
    return said.getvalue()


@pytest.mark.parametrize("there", ["my out/checkpoint/manifest.json", "my out/started.yaml"])
def test_what_was_interrupted_is_resumed(script, tmp_path: Path, there: str) -> None:  # type: ignore[no-untyped-def]
    _, text, _ = script("--gpus-per-node", "0")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text(SRUN.replace('exec "$@"', "exit 0"))
    (tmp_path / "bin" / "srun").chmod(0o755)
    (tmp_path / there).parent.mkdir(parents=True)
    (tmp_path / there).touch()
    environ = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    assert subprocess.run(["bash", "-c", text], env=environ, timeout=30).returncode == 0
    assert (tmp_path / "calls").read_text().startswith("srun --kill-on-bad-exit=0 ptymesh resume my out --device cpu")
