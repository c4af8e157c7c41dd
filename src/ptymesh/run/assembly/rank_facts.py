"""Facts that ranks must have in common before they compute together, and compare (distributed/agreement.py).

Paths may differ between machines, and what lies there is compared instead; so may what each rank can hold.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel

from ptymesh.distributed.agreement import flatten
from ptymesh.engines import Engine
from ptymesh.io.checkpoint.identity import digests_of_scan
from ptymesh.io.hdf5 import digests
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.recipe.schema import Recipe

#: Keys of a recipe that say where something lies, or what a rank may hold.
OF_A_MACHINE = ("data.path", "memory_budget", "scratch")
REMEDY = "start all ranks with the same recipe, options and data"


def recipe_facts(recipe: Recipe, **options: object) -> dict[str, str]:
    """Return what a recipe says, key by key, and the options with which a command runs it."""
    raw = recipe.model_dump(mode="json", exclude={"stages"})
    raw["stages"] = [stage_facts(stage) for stage in recipe.stages]
    facts = flatten({**raw, **options})
    return {name: value for name, value in facts.items() if not _is_of_a_machine(name)}


def _is_of_a_machine(name: str) -> bool:
    """Return True if a key of a recipe may differ between machines."""
    return name.startswith(OF_A_MACHINE) or (name.startswith("scans.") and ".data.path" in name)


def scan_facts(scan: Measurement) -> dict[str, str]:
    """Return digests of a scan's arrays, and its geometry. Patterns that lie in a file are looked at here and there."""
    sample_digests = digests_of_scan(scan)
    facts = {f"data ({name})": value for name, value in sample_digests.items() if name not in ("path", "extent")}
    facts |= {f"geometry.{name}": value for name, value in flatten(vars(scan.geometry)).items()}
    facts["data (views)"] = str(scan.views)
    facts["data (nominal positions)"] = digests.of_array(scan.positions.round(6))
    if isinstance(scan.patterns, ArraySource):
        facts["data (patterns)"] = digests.of_array(scan.patterns.patterns)
    if scan.probe is not None:
        facts["data (probe)"] = digests.of_array(scan.probe)
    return {name: _shortened(value) if name.startswith("data (") else value for name, value in facts.items()}


def stage_facts(stage: Engine | None) -> dict[str, object]:
    """Return what a stage of a recipe says, with its engine's name."""
    return {} if stage is None else {"engine": stage.name, **stage.model_dump(mode="json")}


def optics_facts(optics: dict[str, object] | None) -> dict[str, object]:
    """Return operators between probe and detector as plain values, in their order."""
    optics_values = {} if optics is None else optics
    return {
        f"{index} {name}": one.model_dump(mode="json") if isinstance(one, BaseModel) else one
        for index, (name, one) in enumerate(optics_values.items())
    }


def file_facts(key: str, reference: object) -> dict[str, str]:
    """Return the digest of the file that an option names (`file.npz:name`), in place of its path; nothing for others.

    Args:
        key: the option's name.
        reference: its value.
    """
    if not isinstance(reference, str | Path):
        return {}
    text = str(reference)
    for path in (Path(text), Path(text.rpartition(":")[0])):
        try:
            if path.name and path.is_file():
                stat = path.stat()
                return {key: f"of a file with digest {_file_digest(path, stat.st_mtime_ns, stat.st_size)[:12]}"}
        except (OSError, ValueError):
            continue
    return {}


@lru_cache(maxsize=16)
def _file_digest(path: Path, changed: int, size: int) -> str:
    return digests.of_file(path)


def _shortened(digest: str) -> str:
    return digest if len(digest) < 13 else digest[:12]
