"""Makes digests and sizes agree with what was changed, so that a command looks further than at these."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py

from fuzz import groups

#: Whether this ptymesh writes digests.
DIGESTS = find_spec("ptymesh.io.hdf5.digests") is not None


def result(path: Path) -> str:
    """The digests of a result, which is without them where this process cannot read it all; in words, what was done."""
    if not DIGESTS:
        return "without digests"
    from ptymesh.io.hdf5 import digests

    with h5py.File(path, "r+") as file:
        nodes = [file[name] for name in groups.names(file)]
        if all(groups.harmless(node) for node in nodes if isinstance(node, h5py.Dataset)):
            digests.sign(file)
            return "signed"
        for node in (file, *nodes):
            if digests.NAME in node.attrs:
                del node.attrs[digests.NAME]
    return "unsigned"


def manifests(checkpoint: Path) -> list[Path]:
    """All manifests of a checkpoint."""
    return sorted(path for path in checkpoint.rglob("manifest.json") if path.is_file())


def shard(checkpoint: Path, changed: Path) -> str:
    """What the manifests say of a shard."""
    for path in manifests(checkpoint):
        tree = json.loads(path.read_text(encoding="utf-8"))
        for entry in tree.get("files", ()):
            if (path.parent / entry["name"]) == changed:
                entry["bytes"] = changed.stat().st_size
                if DIGESTS:
                    from ptymesh.io.hdf5 import digests

                    entry[digests.NAME] = digests.of_file(changed)
        manifest(path, tree)
    return "the manifest agrees"


def manifest(path: Path, tree: Any) -> None:
    """Writes a manifest with its digest, where it can have one."""
    tree = json.loads(json.dumps(tree))  # whose keys are texts
    if DIGESTS and isinstance(tree, dict):
        from ptymesh.io.hdf5 import digests

        tree = {**tree, digests.NAME: digests.of_json(tree)}
    path.write_text(json.dumps(tree), encoding="utf-8")
