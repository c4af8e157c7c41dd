"""Gather all that a machine without a network lacks to run ptymesh: `make kit`, or

    python tools/make_kit.py --python 3.12 --platform manylinux_2_28_x86_64 [--freeze freeze.txt] [--out dist/kit]

The folder holds the wheel of this commit, wheels of what the target lacks, the checks of a GPU, the benchmarks, the
Siemens star where it is at hand, and run.sh, which installs and runs all of it. What the target has, `pip freeze` or
`pip list --format freeze` there says; without it, the target is taken to have `ASSUMED` and what that needs. The peers
of the benchmarks go to a second folder. docs/how-to/install.md says how the kit is used.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
#: What every machine with a GPU and PyTorch is taken to have, where nobody says what the target has.
ASSUMED = (
    *("torch", "triton", "numpy", "scipy", "h5py", "numba", "llvmlite", "scikit-image", "matplotlib"),
    *("tifffile", "psutil", "xxhash", "PyYAML", "pip"),
)
#: Gigabytes that belong to a machine and its driver: a kit never brings them.
NEVER_GATHERED = {"torch", "triton", "torchvision"}
#: What the checks of a GPU need beside ptymesh.
CHECKS_NEED = ("pytest",)
#: Named by the peers, and needed by no reconstruction.
NOT_TO_COMPUTE = {"jupyter", "mypy", "ruff", "pytest"}
#: MiB that a kit may have, with hdf5plugin (which is 46 MB by itself) and without.
MOST_MIB, MOST_WITHOUT_MIB = 60, 15
#: Folders of the repository that the kit carries, and what of them stays behind.
CARRIED = ("benchmarks", "tests")
LEFT_BEHIND = ("__pycache__", "*.py[cod]", "results", ".*", "fuzz", "real", "docs", "notebook", "packaging", "*.orig")


class KitError(Exception):
    """What keeps a kit from being made, in one sentence."""


@dataclass(frozen=True)
class Target:
    """The machine that the kit is for.

    Attributes:
        python: its Python, as "3.12".
        platform: its platform in the tags of wheels, as "manylinux_2_28_x86_64".
        installed: version of each package that it has, by canonical name; "" where it is not known.
    """

    python: str
    platform: str
    installed: Mapping[str, str]

    @property
    def markers(self) -> dict[str, str]:
        """The environment that markers of requirements are evaluated in."""
        machine = next((m for m in ("x86_64", "aarch64", "arm64", "ppc64le") if self.platform.endswith(m)), "x86_64")
        mac = self.platform.startswith("macosx")
        here = {key: str(value) for key, value in default_environment().items()}
        return here | {
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "platform_python_implementation": "CPython",
            "os_name": "posix",
            "sys_platform": "darwin" if mac else "linux",
            "platform_system": "Darwin" if mac else "Linux",
            "platform_machine": machine,
            "platform_release": "",
            "platform_version": "",
        }

    def has(self, name: str, versions: SpecifierSet) -> bool:
        """Return True if a version that will do is installed there."""
        if name not in self.installed:
            return False
        return not self.installed[name] or versions.contains(self.installed[name], prereleases=True)


def read_freeze(text: str) -> dict[str, str]:
    """Return the versions of what `pip freeze` lists, by canonical name; "" where it names none."""
    found = {}
    for line in text.splitlines():
        named = re.match(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:==\s*([^\s;]+)|@|;|#|$)", line)
        if named:
            found[canonicalize_name(named[1])] = named[2] or ""
    return found


def compatible_platforms(platform: str) -> list[str]:
    """Return the tags of wheels that such a machine takes: of glibc, those of every older one as well."""
    glibc = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", platform)
    if not glibc:
        return [platform]
    newest, machine = int(glibc[1]), glibc[2]
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 4, -1)]
    legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    return tags + [f"{name}_{machine}" for minor, name in legacy.items() if minor <= newest] + [f"linux_{machine}"]


def read_requirements(wheel: Path) -> list[Requirement]:
    """Return what a wheel's metadata say that it requires, with all extras."""
    with zipfile.ZipFile(wheel) as packed:
        name = next(name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(packed.read(name).decode("utf-8"))
    return [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]


@dataclass
class Gathering:
    """Wheels that a target lacks, found by walking through requirements.

    Attributes:
        target: the machine that they are for.
        folder: where they go.
        without: canonical names that are left out.
        pip_options: further options of `pip download`.
    """

    target: Target
    folder: Path
    without: frozenset[str] = frozenset()
    pip_options: Sequence[str] = ()
    _wheels: dict[str, Path] = field(default_factory=dict)
    _versions: dict[str, SpecifierSet] = field(default_factory=dict)
    _extras: dict[str, set[str]] = field(default_factory=dict)
    _walked: set[tuple[str, str]] = field(default_factory=set)

    def add(self, requirements: Iterable[Requirement], extras: Iterable[str] = ()) -> None:
        """Gather what the requirements ask for and the target lacks, and what that needs in turn.

        Raises:
            KitError: The target's torch or Triton is missing or too old, or a wheel cannot be got.
        """
        for requirement in requirements:
            if self._applies(requirement, extras):
                self._add_one(requirement)

    def _applies(self, requirement: Requirement, extras: Iterable[str]) -> bool:
        marker = requirement.marker
        environments = [{**self.target.markers, "extra": extra} for extra in ("", *extras)]
        return marker is None or any(marker.evaluate(environment) for environment in environments)

    def _add_one(self, requirement: Requirement) -> None:
        name = canonicalize_name(requirement.name)
        if name in self.without or self.target.has(name, requirement.specifier):
            return
        if name in NEVER_GATHERED:
            there = self.target.installed.get(name)
            raise KitError(
                f"The target has {f'{name} {there}' if there else f'no {name}'}, and {requirement} is needed: install "
                "it there first, as a kit does not bring it."
            )
        versions = self._versions.get(name, SpecifierSet()) & requirement.specifier
        self._versions[name] = versions
        wheel = self._wheels.get(name)
        if wheel is None or not versions.contains(parse_wheel_filename(wheel.name)[1], prereleases=True):
            if wheel is not None:  # that was got for a looser requirement
                wheel.unlink()
            wheel = self._wheels[name] = self._download(f"{name}{versions}")
        extras = self._extras.setdefault(name, set())
        extras |= requirement.extras
        walk = (wheel.name, ",".join(sorted(extras)))
        if walk not in self._walked:
            self._walked.add(walk)
            self.add(read_requirements(wheel), sorted(extras))

    def _download(self, requirement: str) -> Path:
        with tempfile.TemporaryDirectory(prefix="kit-") as scratch:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", self.target.python]
            for platform in compatible_platforms(self.target.platform):
                command += ["--platform", platform]
            done = subprocess.run(
                [*command, "--dest", scratch, *self.pip_options, requirement], capture_output=True, text=True
            )
            wheels = list(Path(scratch).glob("*.whl"))
            if done.returncode or not wheels:
                said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
                raise KitError(f"No wheel of {requirement} for the target: {said[-1] if said else done.stderr[-200:]}")
            return Path(shutil.move(wheels[0], self.folder / wheels[0].name))

    @property
    def wheels(self) -> list[Path]:
        """What was gathered, by name."""
        return sorted(self._wheels.values())


def close_over(names: Iterable[str], closed: Iterable[Path] = ()) -> dict[str, str]:
    """Return canonical names of packages and of all that the versions installed here say they need, without versions.

    Packages that are not installed here are taken to need nothing.
    """
    from importlib.metadata import PackageNotFoundError, requires

    found: dict[str, str] = {}
    queue = [canonicalize_name(name) for name in names]
    while queue:
        name = queue.pop()
        if name in found:
            continue
        found[name] = ""
        try:
            needed = [Requirement(line) for line in requires(name) or []]
        except (PackageNotFoundError, InvalidRequirement):
            continue
        queue += [canonicalize_name(r.name) for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this tree in a copy of it, so that nothing that lies about gets in, and return it."""
    version = subprocess.run(
        [sys.executable, "-m", "setuptools_scm"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    named = version.stdout.strip().splitlines()
    with tempfile.TemporaryDirectory(prefix="kit-") as scratch:
        tree = Path(scratch) / "tree"
        leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / "src", tree / "src", ignore=leave)
        for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
            shutil.copy(ROOT / name, tree)
        environment = dict(os.environ)
        if version.returncode == 0 and named:
            environment["SETUPTOOLS_SCM_PRETEND_VERSION"] = named[-1]
        code = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
        done = subprocess.run(
            [sys.executable, "-c", code, scratch], cwd=tree, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise KitError(f"The wheel of this tree cannot be built: {done.stderr.strip()[-300:]}")
        (wheel,) = Path(scratch).glob("*.whl")
        return Path(shutil.move(wheel, folder / wheel.name))


def commit() -> str:
    """Return the commit of this tree, with "changed" where files differ from it; empty where there is no git."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty=, changed"], cwd=ROOT, capture_output=True, text=True
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def files_of(folder: Path) -> Iterator[Path]:
    """Yield the files of a kit, in order of their names, without the list of their digests."""
    yield from sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS")


def mebibytes(folder: Path) -> float:
    """Return the size of all files in a folder."""
    return sum(path.stat().st_size for path in files_of(folder)) / 2**20


def write_sums(folder: Path) -> None:
    """Write the digests of all files, by which run.sh sees whether a copy is whole."""
    sums = {path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest() for path in files_of(folder)}
    lines = [f"{digest}  {path}\n" for path, digest in sums.items()]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def clear(folder: Path) -> Path:
    """Remove what a kit left in a folder, and make it anew.

    Raises:
        KitError: It holds something, and no kit.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / "SHA256SUMS").exists():
        raise KitError(f"{folder} holds something that is no kit: name another folder, or empty it.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "SHA256SUMS").touch()  # until all is there, a kit that run.sh refuses and the next `make kit` replaces
    return folder


def make_kit(
    target: Target, out: Path, without: frozenset[str], star: Path | None, pip_options: Sequence[str] = ()
) -> Path:
    """Make the folder of the kit and return it.

    Args:
        target: the machine that it is for.
        out: the folder; a kit that it holds is replaced.
        without: canonical names of packages to leave out.
        star: the Siemens star, or None.
        pip_options: further options of `pip download`.

    Raises:
        KitError: See `Gathering.add`, `clear`.
    """
    wheels = clear(out) / "wheels"
    wheels.mkdir()
    own = build_wheel(wheels)
    gathering = Gathering(target, wheels, without, pip_options)
    gathering.add([*read_requirements(own), *map(Requirement, CHECKS_NEED)])
    for name in CARRIED:
        shutil.copytree(ROOT / name, out / name, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
    shutil.copy(ROOT / "tools" / "run.sh", out)
    shutil.copy(ROOT / "LICENSE", out)
    if star:
        shutil.copy(star, out)
    about = {
        "ptymesh": str(parse_wheel_filename(own.name)[1]),
        "commit": commit(),
        "python": target.python,
        "platform": target.platform,
        "wheels": [path.name for path in (own, *gathering.wheels)],
        "without": sorted(without),
        "star": star.name if star else None,
    }
    (out / "kit.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    write_sums(out)
    return out


def make_peers(target: Target, out: Path, pip_options: Sequence[str] = ()) -> dict[str, str]:
    """Gather the peers of the benchmarks and what they need; return what kept each from it, by requirement."""
    wheels, missing = clear(out) / "wheels", {}
    wheels.mkdir()
    for peer in PEERS:
        try:
            Gathering(target, wheels, frozenset(NOT_TO_COMPUTE), pip_options).add([Requirement(peer)])
        except KitError as error:
            missing[peer] = str(error)
    write_sums(out)
    return missing


def peers_compared() -> tuple[str, ...]:
    """Return the peers that benchmarks/peers/compare.py names, CDTools, which is for CPUs here, left out."""
    text = (ROOT / "benchmarks" / "peers" / "compare.py").read_text(encoding="utf-8")
    named = re.search(r"^PEERS = \((.*)\)$", text, re.MULTILINE)
    return tuple(peer for peer in re.findall(r'"([^"]+)"', named[1] if named else "") if not peer.startswith("cdtools"))


PEERS = peers_compared()


def report(folder: Path, most_mib: float | None = None) -> bool:
    """Print the files of a folder that are large and its size; return True unless it is over `most_mib`."""
    for path in files_of(folder):
        if path.suffix == ".whl" or path.stat().st_size > 1 << 20:
            print(f"  {path.stat().st_size / 2**20:7.2f} MiB  {path.relative_to(folder)}")
    size = mebibytes(folder)
    print(f"  {size:7.2f} MiB  {folder}" + (f"  (at most {most_mib:g})" if most_mib else ""))
    return most_mib is None or size <= most_mib


def main() -> int:
    parser = argparse.ArgumentParser(description="Gather all that a machine without a network lacks to run ptymesh.")
    parser.add_argument("--python", default=f"{sys.version_info.major}.{sys.version_info.minor}", help="the target's")
    parser.add_argument("--platform", default="manylinux_2_28_x86_64", help="the target's, in the tags of wheels")
    parser.add_argument("--freeze", type=Path, help="what `pip freeze` says on the target")
    parser.add_argument("--without", default="", help="packages to leave out, with commas, such as hdf5plugin")
    parser.add_argument("--star", type=Path, help="the Siemens star, for the peers")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "kit")
    parser.add_argument("--peers", type=Path, help="a second folder, for the benchmarks' peers")
    parser.add_argument("--most-mib", type=float, help="a kit that is larger is refused (60; 15 without hdf5plugin)")
    parser.add_argument("--pip-options", default="", help="further options of pip download")
    given = parser.parse_args()
    without = frozenset(canonicalize_name(name) for name in given.without.split(",") if name)
    installed = read_freeze(given.freeze.read_text(encoding="utf-8")) if given.freeze else close_over(ASSUMED)
    target = Target(given.python, given.platform, installed)
    options = given.pip_options.split()
    most = given.most_mib or (MOST_WITHOUT_MIB if "hdf5plugin" in without else MOST_MIB)
    try:
        kit = make_kit(target, given.out, without, given.star, options)
        missing = make_peers(target, given.peers, options) if given.peers else {}
    except KitError as error:
        sys.exit(f"make_kit: {error}")
    print(f"For Python {target.python} on {target.platform}, which has {len(installed)} packages:")
    fits = report(kit, most)
    if given.peers:
        report(given.peers)
    for peer, why in missing.items():
        print(f"  without {peer}: {why}")
    if not given.star:
        print("  without the Siemens star, so that the peers cannot be compared: name it with STAR=")
    if not fits:
        sys.exit(f"make_kit: the kit is over {most:g} MiB; leave packages out (WITHOUT=), or allow more (MOST_MIB=).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
