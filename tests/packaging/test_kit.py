"""`make kit`: what a target lacks is gathered, and run.sh installs it without a network and runs what it is told.

Here of made-up wheels; the last test, of `make package`, makes a kit for this Python and uses it with the network off.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
ANY = "py3-none-any"
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_kit", ROOT / "tools" / "make_kit.py")
    assert spec and spec.loader
    module = sys.modules["make_kit"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_kit = load()


def make_wheel(
    folder: Path, name: str, version: str, *requires: str, code: str = "", tag: str = "py3-none-any"
) -> Path:
    """Write a wheel that pip takes."""
    folder.mkdir(parents=True, exist_ok=True)
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *(f"Requires-Dist: {r}" for r in requires)]
    files = {
        f"{module}/__init__.py": code,
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},"
        for path, text in files.items()
    ]
    wheel = folder / f"{module}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for path, text in files.items():
            packed.writestr(path, text)
        packed.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
    return wheel


def test_what_a_freeze_says() -> None:
    text = "numpy==2.5.2\nPyYAML==6.0  # c\nh5py @ file:///h5py.whl\n# torch==1.0\n-e git+x\nruamel.yaml==1\npsutil\n"
    assert make_kit.read_freeze(text) == {
        "numpy": "2.5.2", "pyyaml": "6.0", "h5py": "", "ruamel-yaml": "1", "psutil": "",
    }  # fmt: skip


def test_a_platform_takes_wheels_of_older_ones() -> None:
    tags = make_kit.compatible_platforms("manylinux_2_28_x86_64")
    assert tags[0] == "manylinux_2_28_x86_64" and "manylinux_2_29_x86_64" not in tags
    assert {"manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64"} <= set(tags)
    assert make_kit.compatible_platforms("macosx_12_0_arm64") == ["macosx_12_0_arm64"]


def test_what_the_target_lacks_is_walked_through(tmp_path: Path) -> None:
    """By the target's versions and its markers, with extras, round circles, and nothing that it has."""
    there, wheels = tmp_path / "there", tmp_path / "wheels"
    wheels.mkdir()
    make_wheel(there, "kit-beta", "2.1", "kit-gone; sys_platform == 'win32'", "kit-delta[fast]", "kit-has>=1")
    make_wheel(there, "kit-delta", "1.5", "kit-beta", "kit-fast; extra == 'fast'", "kit-slow; extra == 'slow'")
    make_wheel(there, "kit-delta", "3.0", "kit-beta")
    make_wheel(there, "kit-fast", "1.0", "kit-heavy", tag="cp312-cp312-manylinux_2_17_x86_64")
    make_wheel(there, "kit-fast", "2.0", tag="cp312-cp312-manylinux_2_34_x86_64")  # of a newer glibc
    make_wheel(there, "kit-old", "0.9", tag="cp311-cp311-manylinux_2_17_x86_64")
    target = make_kit.Target("3.12", "manylinux_2_28_x86_64", {"kit-beta": "1.0", "kit-has": "1.2", "kit-named": ""})
    offline = ("--no-index", "--find-links", str(there))
    gathering = make_kit.Gathering(target, wheels, frozenset({"kit-heavy"}), offline)
    asked = "kit-beta>=2; python_version >= '3.12'", "kit-old; python_version < '3.12'", "kit-named>5", "kit_delta<3"
    gathering.add(map(Requirement, asked))
    assert [path.name for path in gathering.wheels] == sorted(path.name for path in wheels.iterdir())
    assert [path.name.rpartition("-py3")[0] or path.name for path in gathering.wheels] == [
        "kit_beta-2.1",
        "kit_delta-1.5",  # 3.0 was got first, for whom any would do
        "kit_fast-1.0-cp312-cp312-manylinux_2_17_x86_64.whl",
    ]
    with pytest.raises(make_kit.KitError, match=r"No wheel of kit-old for the target: ERROR: No matching"):
        gathering.add([Requirement("kit-old")])


@pytest.mark.parametrize(("has", "said"), [({"torch": "2.6"}, "has torch 2.6"), ({}, "has no torch")])
def test_gigabytes_are_not_gathered(has: dict[str, str], said: str, tmp_path: Path) -> None:
    gathering = make_kit.Gathering(make_kit.Target("3.12", "manylinux_2_28_x86_64", has), tmp_path)
    with pytest.raises(make_kit.KitError, match=rf"{said}, and torch>=2.8 is needed: install it there first"):
        gathering.add([Requirement("torch>=2.8")])


def test_what_a_target_is_taken_to_have() -> None:
    """What torch and the others need comes with them; what ptymesh alone needs does not."""
    closed = make_kit.close_over(make_kit.ASSUMED)
    assert {"torch", "sympy", "pillow", "scikit-image"} <= set(closed)
    assert not {"pydantic", "pydantic-core", "hdf5plugin", "pooch", "ptymesh", "pytest"} & set(closed)


def test_a_folder_that_is_no_kit_stays(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(make_kit.KitError, match="holds something that is no kit"):
        make_kit.clear(tmp_path)
    assert (tmp_path / "thesis.tex").exists()
    kit = make_kit.clear(tmp_path / "kit")
    (kit / "large").write_bytes(bytes(3 << 20))
    assert not make_kit.report(kit, 2.9) and make_kit.report(kit, 3.1)
    assert make_kit.clear(kit) == kit and [path.name for path in kit.iterdir()] == ["SHA256SUMS"]


def test_peers_are_those_that_are_compared() -> None:
    assert [peer.partition("==")[0] for peer in make_kit.PEERS] == ["ptychi", "ptyrad"]


CHECK = """
import os, sys, time
print("told", sys.argv[1:], 0 <= time.time() - float(os.environ["PTYMESH_STARTED"]) < 60)
"""


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A kit of made-up wheels, in a folder with a space in its name."""
    folder = tmp_path / "the kit"
    code = "__version__ = '9.9'\nfrom kit_needed import word\n"
    make_wheel(folder / "wheels", "ptymesh", "9.9", "kit-needed", code=code)
    make_wheel(folder / "wheels", "kit-needed", "1.0", code="word = 'here'")
    (folder / "tests" / "kernels").mkdir(parents=True)
    (folder / "tests" / "kernels" / "gpu_check.py").write_text(CHECK)
    shutil.copy(ROOT / "tools" / "run.sh", folder)
    (folder / "kit.json").write_text(json.dumps({"ptymesh": "9.9", "python": THIS}, indent=1))
    make_kit.write_sums(folder)
    return folder


def run(kit: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable, **more}
    return subprocess.run(["./run.sh", *words], cwd=kit, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.long
def test_run_sh_installs_and_runs_what_it_is_told(kit: Path) -> None:
    site = kit / "site"
    done = run(kit, "python", "-c", "import ptymesh; print(ptymesh.word, ptymesh.__file__)")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"here {site / 'ptymesh' / '__init__.py'}\n"
    assert done.stderr.startswith(f"ptymesh 9.9, Python {sys.version.split()[0]}, torch ")
    made = (site / ".installed").stat().st_mtime_ns
    done = run(kit, "gpu-check", "--minutes", "6", "--only", "a b")
    assert done.stdout == "told ['--minutes', '6', '--only', 'a b'] True\n"
    assert (site / ".installed").stat().st_mtime_ns == made, "installed once"
    done = run(kit, "reboot")
    assert (done.returncode, done.stdout) == (2, "") and "reboot is none of ptymesh, python, gpu-check" in done.stderr


def test_run_sh_refuses_what_is_damaged_or_of_another_python(kit: Path) -> None:
    (kit / "wheels" / "kit_needed-1.0-py3-none-any.whl").write_bytes(b"half")
    done = run(kit, "python", "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (2, "") and not (kit / "site").exists()
    assert "run.sh: files of the kit are damaged, changed or missing (see above): copy it again." in done.stderr
    (kit / "kit.json").write_text(json.dumps({"ptymesh": "9.9", "python": "3.99"}, indent=1))
    assert "this kit is for Python 3.99, and" in run(kit).stderr
    assert "nowhere/python does not run: set PYTHON to a Python 3.99" in run(kit, PYTHON="nowhere/python").stderr


def test_run_sh_refuses_another_ptymesh(kit: Path) -> None:
    make_wheel(kit / "wheels", "ptymesh", "9.9", code="__version__ = '1.0'")
    make_kit.write_sums(kit)
    done = run(kit)
    assert done.returncode == 2 and f"imports ptymesh 1.0 {kit}/site/ptymesh/__init__.py" in done.stderr


#: What the target of the real kit lacks, besides ptymesh.
LACKING = ["pydantic", "pydantic-core", "annotated-types", "typing-inspection", "pooch", "platformdirs", "hdf5plugin"]
READ = """
import h5py, sys
import ptymesh as pm
scan = pm.load("scan.cxi")
assert "hdf5plugin" not in sys.modules, "46 MB that this file does not need"
result = pm.reconstruct(scan, pm.RPIE(epochs=2, batch=20))
result.save("result.h5")
"""


def make_target(folder: Path) -> tuple[Path, str]:
    """An environment with links to what this one has, but for what the kit is to bring; its Python and its freeze."""
    venv.create(folder, with_pip=True)
    site = folder / "lib" / f"python{THIS}" / "site-packages"
    freeze = []
    for one in distributions():
        name = canonicalize_name(one.metadata["Name"])
        if name in (*LACKING, "ptymesh", "pip", "setuptools"):
            continue
        freeze.append(f"{name}=={one.version}")
        for top in {file.parts[0] for file in one.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            there = Path(str(one.locate_file(top)))
            if there.exists() and not (site / top).exists():
                (site / top).symlink_to(there)
    return folder / "bin" / "python", "\n".join(freeze)


@pytest.mark.package
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="the kit's platform is that of this machine")
def test_a_kit_made_for_this_python_works_without_a_network(tmp_path: Path) -> None:
    python, freeze = make_target(tmp_path / "target")
    (tmp_path / "freeze.txt").write_text(freeze)
    kit, peers = tmp_path / "kit", tmp_path / "kit-peers"
    for without, most in (("hdf5plugin", 15), ("", 60)):
        command = [sys.executable, str(ROOT / "tools" / "make_kit.py"), "--python", THIS, "--out", str(kit)]
        command += ["--freeze", str(tmp_path / "freeze.txt"), "--without", without]
        command += [] if without else ["--peers", str(peers)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert make_kit.mebibytes(kit) < most and f"(at most {most})" in done.stdout
        about = json.loads((kit / "kit.json").read_text())
        lacking = {name for name in LACKING if name != without}
        assert {canonicalize_name(wheel.partition("-")[0]) for wheel in about["wheels"]} == {"ptymesh", *lacking}
    assert "wheels/ptychi-" in done.stdout and "wheels/ptyrad-" in done.stdout
    work = tmp_path / "work"
    work.mkdir()
    own = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    own |= {"PYTHON": str(python), "PTYMESH_CACHE": str(tmp_path / "cache"), "PTYMESH_KERNELS": "torch"}
    alone = ["unshare", "--map-root-user", "--net", str(kit / "run.sh")]
    if subprocess.run([*alone[:3], "true"], capture_output=True).returncode:
        alone = alone[3:]  # nobody may cut the network here: pip is told that there is none, and nothing else asks

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([*alone, *words], cwd=work, env=own, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done

    began = time.monotonic()
    assert call("ptymesh", "--version").stdout.strip().endswith(about["ptymesh"])
    installing = time.monotonic() - began
    call("ptymesh", "simulate", "scan.cxi", "--views", "40", "--window", "32")
    call("python", "-c", READ)
    assert (work / "result.h5").exists()
    assert "one engine against the reference" in call("gpu-check", "--list").stdout
    print(f"installed and checked in {installing:.0f} s")
