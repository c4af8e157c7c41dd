"""`make package`: wheel and sdist are built, and the wheel is installed into fresh environments and used there.

Environments get what pip finds: the newest versions, then the oldest that pyproject.toml allows; torch is that of
constraints.txt in both, as another one may be gigabytes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.package, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TORCH = next(
    line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if line.startswith("torch==")
)

#: What a user does first, from Python, beside the demo.
FIRST = """
import sys
import ptymesh as pm
scan = pm.load("demo/scan.cxi")
result = pm.reconstruct(scan, pm.RPIE(epochs=2, batch=32))
result.save("result.h5")
again = pm.Result.load("result.h5")
assert (again.object == result.object).all() and again.attrs["final_residual"] < 0.2
for shown in (scan, again):
    assert "data:image/png" in shown._repr_html_() and len(repr(shown)) < 200
assert pm.__file__.startswith(sys.prefix), pm.__file__
"""
WITHOUT_EXTRAS = """
import ptymesh as pm
for act in (lambda: pm.Result.load("result.h5").to_xarray(), lambda: pm.tune({"data": {"path": "demo/scan.cxi"}}, {})):
    try:
        act()
    except pm.BadInput as error:
        assert "pip install" in str(error), error
    else:
        raise SystemExit("nothing was missed")
"""
WITH_EXTRAS = """
import ptymesh as pm
data = pm.Result.load("result.h5").to_xarray()
assert data.object.dims == ("z", "y", "x") and data.y.attrs["units"] == "m"
recipe = {"data": {"path": "demo/scan.cxi"}, "stages": [{"engine": "rpie", "epochs": 2, "batch": 32}]}
found = pm.tune(recipe, {"stages.0.gamma_object": [0.5, 1.0]}, trials=2, out="study", reconstruct=False)
assert len(found.trials) == 2 and "Study" in found._repr_html_()
"""
WITH_HYPERSPY = """
import numpy as np
import ptymesh as pm
result = pm.Result.load("result.h5")
whole, beam = result.to_hyperspy(), result.to_hyperspy("probe")
y, x = whole.axes_manager.signal_axes[::-1]
assert (y.name, x.name) == ("y", "x") and y.units == "m" and np.isclose(y.scale, result.pixel_size_m[0])
assert np.allclose(y.axis, result.to_xarray().y) and whole.phase.data.shape == result.phase[0].shape
assert beam.axes_manager.navigation_axes[0].name == "mode" and (beam.data == result.probe).all()
"""


@dataclass
class Environment:
    """A virtual environment and an empty folder to work in."""

    folder: Path
    work: Path

    @property
    def bin(self) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    def __call__(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment, as from a shell that knows of no other Python."""
        own = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
        own |= {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "PTYMESH_CACHE": str(self.folder / "cache")}
        done = subprocess.run(
            [self.bin / words[0], *words[1:]], cwd=self.work, env=own, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        return done

    def install(self, *what: str) -> None:
        self("python", "-m", "pip", "install", "--quiet", *what)


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a new wheel, made from a new sdist, both from this tree; copies replace what was in dist/.

    Every worker builds its own, one after the other, as setuptools writes into the tree; one that took away the files
    of another would leave it without.
    """
    import fcntl

    made = tmp_path_factory.mktemp("dist")
    DIST.mkdir(exist_ok=True)
    with (DIST / ".lock").open("w") as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)
        done = subprocess.run([sys.executable, "-m", "build", "--outdir", made, ROOT], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        for old in DIST.glob("ptymesh-*"):
            old.unlink()
        for new in made.iterdir():
            shutil.copy(new, DIST)
    return made


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("ptymesh-*.whl")
    return found


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], Environment]:
    """Makes a fresh environment with pip and nothing else."""

    def made() -> Environment:
        venv.create(tmp_path / "environment", with_pip=True)
        (tmp_path / "work").mkdir()
        return Environment(tmp_path / "environment", tmp_path / "work")

    return made


def used(environment: Environment, wheel: Path) -> None:
    """The demo, and a first program."""
    version = environment("ptymesh", "--version").stdout.strip()
    assert version == f"ptymesh {wheel.name.split('-')[1]}"
    said = environment("ptymesh", "demo", "--ranks", "2", "--out", "demo")
    assert "the object differs from the truth by" in said.stdout
    assert not [line for line in said.stderr.splitlines() if not line.startswith("Compiling kernels")], said.stderr
    assert (environment.work / "demo" / "overview.png").stat().st_size > 10_000
    environment("python", "-c", FIRST)
    environment("python", "-m", "pip", "check")


def test_the_sdist_holds_what_is_needed_to_build_and_test(dist: Path) -> None:
    (sdist,) = dist.glob("ptymesh-*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    for name in (
        "pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "Makefile", "constraints.txt",
        "src/ptymesh/py.typed", "src/ptymesh/__main__.py", "tests/conftest.py", "docs/meanings.yaml",
        "examples/siemens-star.yaml",
    ):  # fmt: skip
        assert name in names, name
    odd = [name for name in names if re.search(r"__pycache__|\.(pyc|nbc|nbi|so|h5|cxi)$|^\.(ci|github|git)", name)]
    assert not odd, odd
    assert sdist.stat().st_size < 10_000_000


def test_the_newest_versions(fresh: Callable[[], Environment], wheel: Path) -> None:
    environment = fresh()
    environment.install(str(wheel), TORCH)
    used(environment, wheel)
    environment("python", "-c", WITHOUT_EXTRAS)
    environment.install(f"{wheel}[tune,xarray,hyperspy]", TORCH)
    environment("python", "-c", WITH_EXTRAS)
    environment("python", "-c", WITH_HYPERSPY)


def test_the_oldest_versions(fresh: Callable[[], Environment], wheel: Path) -> None:
    extras = PROJECT["optional-dependencies"]
    bounds = [one for one in [*PROJECT["dependencies"], *extras["tune"], *extras["xarray"]] if ">=" in one]
    oldest = [one.replace(">=", "==") for one in bounds if not one.startswith("torch")]
    environment = fresh()
    environment.install(f"{wheel}[tune,xarray]", TORCH, *oldest)
    used(environment, wheel)
    environment("python", "-c", WITH_EXTRAS)
