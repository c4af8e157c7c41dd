"""What is packed, and that the files around the package are sound; what is built is installed by `make package`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    """Without the caches of numba, which are this machine's code, and with a version where there is no git."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, tree)
    cache = tree / "src" / "ptymesh" / "kernels" / "__pycache__"
    cache.mkdir()
    (cache / "compiled.nbc").write_text("machine code")
    code = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == "ptymesh-0.1.0.dev0-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        about = packed.read(metadata).decode()
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "ptymesh").rglob("*.py")}
    page = [path for path in (ROOT / "src/ptymesh/watch").iterdir() if path.suffix in (".html", ".css", ".js")]
    beside = {str(path.relative_to(ROOT / "src")) for path in page}
    beside |= {"ptymesh/py.typed", "ptymesh/cli/slurm.sh"}
    assert len(beside) == 8
    assert {name for name in names if ".dist-info/" not in name} == modules | beside
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "License-Expression: BSD-3-Clause" in about and "Requires-Python: >=3.11" in about


def requirements() -> dict[str, str]:
    """Dependencies of the package: name in lower case and its lower bound."""
    found = {}
    for one in PROJECT["project"]["dependencies"]:
        name, _, bound = one.partition(">=")
        found[name.lower()] = bound
    return found


def test_every_dependency_has_a_lower_bound() -> None:
    assert [name for name, bound in requirements().items() if not bound] == ["llvmlite"], "which numba chooses"


def test_the_conda_recipe_asks_for_the_same() -> None:
    there = {"torch": "pytorch", "matplotlib": "matplotlib-base", "xxhash": "python-xxhash"}
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8"))
    asked = dict(line.replace(" >=", ">=").partition(">=")[::2] for line in recipe["requirements"]["run"])
    assert asked.pop("python") == PROJECT["project"]["requires-python"].removeprefix(">=")
    assert asked == {there.get(name, name): bound for name, bound in requirements().items()}
    host = " ".join(recipe["requirements"]["host"]).replace(" >=", ">=")
    assert all(one in host for one in PROJECT["build-system"]["requires"])
    (script,) = recipe["build"]["python"]["entry_points"]
    assert script.partition(" = ")[2] == PROJECT["project"]["scripts"]["ptymesh"]


def test_the_citation_is_sound() -> None:
    """What the format asks for, and no version, which would not be that of the tag."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0" and cited["authors"] and cited["message"] and cited["title"]
    assert cited["license"] == PROJECT["project"]["license"] and "version" not in cited


@pytest.mark.parametrize(
    "schema", ["github-workflows", "github-issue-forms", "github-issue-config", "citation-file-format"]
)
def test_files_of_the_forge_follow_their_schema(schema: str) -> None:
    """The schemas come with check-jsonschema; nothing is fetched."""
    forms = ROOT / ".github" / "ISSUE_TEMPLATE"
    files = {
        "github-workflows": WORKFLOWS,
        "github-issue-forms": [path for path in sorted(forms.glob("*.yml")) if path.stem != "config"],
        "github-issue-config": [forms / "config.yml"],
        "citation-file-format": [ROOT / "CITATION.cff"],
    }[schema]
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_take_what_is_not_theirs_with_care() -> None:
    for path in WORKFLOWS:
        text = path.read_text(encoding="utf-8")
        found: dict[Any, Any] = yaml.safe_load(text)
        assert found["permissions"] == {"contents": "read"}, path.name
        assert text.startswith("# Not yet run"), "to be taken out by whoever has seen it run"
        for name, job in found["jobs"].items():
            assert job["timeout-minutes"] <= 180, name
            for step in job["steps"]:
                uses = step.get("uses", "")
                assert not uses or re.fullmatch(r"actions/[\w-]+@v\d+", uses), "of others' actions, none"
                if uses.startswith("actions/checkout"):
                    assert step["with"]["persist-credentials"] is False
                assert not re.search(r"\$\{\{\s*github\.(event|head_ref)", step.get("run", "")), "a title is no script"
                for target in re.findall(r"\bmake ([a-z -]+)", step.get("run", "")):
                    rules = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
                    assert set(target.split()) <= set(rules), path.name


def test_issues_ask_for_what_is_needed() -> None:
    for name in ("bug", "data"):
        form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text(encoding="utf-8"))
        (asked,) = (one for one in form["body"] if one.get("id") == "doctor")
        assert "ptymesh doctor --json" in asked["attributes"]["label"] and asked["validations"]["required"]
