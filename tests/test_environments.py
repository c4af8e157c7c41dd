"""environment.yml and the Containerfiles name what pyproject.toml and constraints.txt do. Nothing here is built."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
CONTAINERFILES = ("Containerfile", "Containerfile.rocm")
#: What conda-forge calls packages otherwise than PyPI does.
CONDA = {"torch": "pytorch", "xxhash": "python-xxhash", "matplotlib": "matplotlib-base", "PyYAML": "pyyaml"}
#: Of environment.yml: what no package of ptymesh's list stands for.
TOOLS = {"c-compiler", "pip"}
#: Extras of which environment.yml has the packages. Triton comes with conda-forge's pytorch.
EXTRAS = ("tune", "xarray")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def instructions(name: str) -> list[tuple[str, str]]:
    """(FROM, ...), (RUN, ...), ... of a Containerfile, continued lines joined."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.lstrip().startswith("#")]
    whole = [line for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in whole)]


def installed(run: str) -> list[list[str]]:
    """Words of every `pip install` of a RUN."""
    commands = [shlex.split(command) for command in run.split("&&")]
    return [command for command in commands if command[:4] == ["python3", "-m", "pip", "install"]]


def test_environment_yml_is_the_projects_list(project: dict[str, Any]) -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["channels"] == ["conda-forge", "nodefaults"] and environment["name"] == "ptymesh"
    *packages, own = environment["dependencies"]
    assert own == {"pip": ["--editable ."]}
    told = {re.split("[>=]", one)[0]: one for one in packages if one not in TOOLS}
    assert len(told) == len(packages) - len(TOOLS), "each once, and the tools"
    listed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    listed += [one for extra in EXTRAS for one in project["project"]["optional-dependencies"][extra]]
    expected = {f"python{project['project']['requires-python']}"}
    for one in listed:
        name = re.split("[>=]", one)[0]
        expected.add(CONDA.get(name, name) + one.removeprefix(name))
    assert set(told.values()) == expected


def test_every_bound_admits_what_is_tested_with() -> None:
    """No package of environment.yml asks for more than constraints.txt has."""

    def number(version: str) -> list[int]:
        return [int(part) for part in version.split(".")]

    known = {CONDA.get(name, name): version for name, version in pinned().items()}
    packages = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    bounds = dict(one.split(">=") for one in packages if isinstance(one, str) and ">=" in one)
    assert set(bounds) - set(known) == {"python"}
    for name in set(bounds) & set(known):
        assert number(bounds[name]) <= number(known[name]), name


@pytest.mark.parametrize("name", CONTAINERFILES)
def test_a_containerfile_says_that_it_was_not_built(name: str) -> None:
    assert "NOT BUILT YET" in "".join((ROOT / name).read_text().splitlines(keepends=True)[:2])


@pytest.mark.parametrize("name", CONTAINERFILES)
def test_a_containerfile_has_a_base_of_one_version(name: str) -> None:
    (first, base), (second, used), *rest = instructions(name)
    assert (first, second, used) == ("ARG", "FROM", "${BASE}")
    image, _, tag = base.removeprefix("BASE=").rpartition(":")
    assert re.fullmatch(r"docker\.io/[a-z]+/[a-z]+", image) and re.search(r"\d+\.\d+", tag), base
    assert {word for word, _ in rest} <= {"RUN", "ENV", "COPY", "CMD"}
    assert rest[-1] == ("CMD", '["ptymesh", "--help"]')


@pytest.mark.parametrize("name", CONTAINERFILES)
def test_a_containerfile_copies_what_is_there_and_is_let_through(name: str, project: dict[str, Any]) -> None:
    ignored = (ROOT / ".containerignore").read_text().splitlines()
    assert "*" in ignored, "what is not named is not sent"
    copied = [source for word, rest in instructions(name) if word == "COPY" for source in rest.split()[:-1]]
    for source in copied:
        assert (ROOT / source).exists() and f"!{source}" in ignored, source
    needed = {"pyproject.toml", "constraints.txt", "src", project["project"]["readme"]}
    assert set(copied) == needed | set(project["project"]["license-files"])


@pytest.mark.parametrize(
    ("name", "extras", "free"),
    [
        ("Containerfile", {"tune", "gpu", "xarray"}, {"triton"}),
        ("Containerfile.rocm", {"tune", "xarray"}, {"torch", "triton"}),
    ],
)
def test_a_containerfile_installs_with_the_constraints(
    name: str, extras: set[str], free: set[str], project: dict[str, Any]
) -> None:
    (run,) = [rest for word, rest in instructions(name) if word == "RUN" and "pip install" in rest]
    (words,) = installed(run)
    assert words[words.index("--constraint") + 1] == "/src/others.txt"
    told = re.fullmatch(r"/src\[(.*)\]", words[-1])
    assert told and set(told.group(1).split(",")) == extras <= set(project["project"]["optional-dependencies"])
    pattern = re.search(r"grep --invert-match --extended-regexp '(.*?)' /src/constraints.txt > /src/others.txt", run)
    assert pattern
    left_out = {one for one, version in pinned().items() if re.search(pattern.group(1), f"{one}=={version}")}
    assert left_out == free, "what the base or torch decides, and no other"
