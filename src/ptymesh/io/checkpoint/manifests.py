"""Manifests of checkpoints (store.py): the current generation, its files, and whether they are sound.

The folder's manifest names the current generation; a generation's manifest names its files and holds the values saved
with them. Each holds its own digest, so that damage is noticed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ptymesh.distributed.world import World
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.files import to_disk, writing
from ptymesh.io.hdf5 import digests

#: Keys and values of a manifest, as JSON has them.
Manifest = dict[str, Any]

MANIFEST = "manifest.json"
FORMAT, VERSION = "ptymesh-checkpoint", 3
#: Largest size of a manifest that is read.
MOST_BYTES = 64 << 20
COPY = "copy the whole checkpoint folder again"


class Unreadable(BadInput):
    """A checkpoint of another version or of another program, of which no generation can be used."""


def folder(number: int) -> str:
    """Return the name of a generation's folder."""
    return f"{number:06d}"


def shard(rank: int) -> str:
    """Return the name of a rank's file."""
    return f"rank{rank:05d}.h5"


def exists(directory: Path) -> bool:
    """Return True if `directory` holds a checkpoint's manifest; `choose` tells whether it is sound."""
    return (directory / MANIFEST).is_file()


def generations(directory: Path) -> dict[int, Path]:
    """Return the folders of all generations on disk, complete or not, by number."""
    if not directory.is_dir():
        return {}
    folders = (path for path in directory.iterdir() if path.name.isascii() and path.name.isdecimal() and path.is_dir())
    return {int(path.name): path for path in folders if path.name == folder(int(path.name))}


def current(directory: Path) -> int | None:
    """Return the current generation: the one that the manifest names, else the newest with a manifest; None if none."""
    try:
        numbers, _ = _candidates(directory)
    except BadInput:
        return None
    return numbers[0] if numbers else None


def write(directory: Path, number: int, content: Manifest) -> None:
    """Write a generation's manifest, and then the folder's, which makes that generation the current one.

    Args:
        directory: the checkpoint's folder.
        number: of the generation; all of its files must be on the disk already.
        content: what its manifest holds besides the head.
    """
    generation = directory / folder(number)
    with writing(generation / MANIFEST):
        _write(generation / MANIFEST, {**_manifest_head(number), **content})
        to_disk(generation)
    make_current(directory, number)


def make_current(directory: Path, number: int) -> None:
    """Make a generation the current one, by a manifest that is renamed into place."""
    path, temporary = directory / MANIFEST, directory / (MANIFEST + ".new")
    with writing(path):
        _write(temporary, _manifest_head(number))
        os.replace(temporary, path)
        to_disk(directory)


def read_meta(directory: Path) -> dict[str, Any]:
    """Return the meta values of the newest generation whose manifest is sound and whose files have the right sizes.

    Raises:
        BadInput: there is none.
    """
    numbers, notes = _candidates(directory)
    for number in numbers:
        try:
            meta: dict[str, Any] = _manifest(directory, number)["meta"]
        except BadInput as error:
            notes.append(str(error))
        else:
            return meta
    raise _none_sound(directory, notes)


def choose_generation(directory: Path, world: World) -> tuple[Manifest, str]:
    """Return the manifest of the newest sound generation, and a sentence about damaged ones that came before it.

    Collective: every rank checks its share of the files, and all return the same.
    """
    numbers, notes = _agreed_candidates(directory, world)
    for number in numbers:
        manifest, problem = {}, ""
        try:
            manifest = _manifest(directory, number)
            for entry in manifest["files"][world.rank :: world.size]:
                _check_digest(directory / folder(number) / entry["name"], entry[digests.NAME])
        except (BadInput, OSError) as error:  # whatever befalls one rank here, it comes to the sum below
            problem = _error_sentence(error, directory)
        problems = [reply[1:] for reply in world.gather_strings("." + problem) if reply != "."]
        if not problems:
            return manifest, f"{' '.join(notes)} Going on from generation {folder(number)}." if notes else ""
        notes.append(problems[0])
    raise _none_sound(directory, notes)


def _agreed_candidates(directory: Path, world: World) -> tuple[list[int], list[str]]:
    """Return the candidates that rank 0 finds, on every rank. Collective."""
    answer: dict[str, Any] = {}
    if world.rank == 0:
        try:
            answer["numbers"], answer["notes"] = _candidates(directory)
        except (BadInput, OSError) as error:
            answer["error"] = _error_sentence(error, directory)
    answer = json.loads(world.gather_strings(json.dumps(answer) if answer else "")[0])
    if "error" in answer:
        raise BadInput(answer["error"])
    return answer["numbers"], answer["notes"]


def _error_sentence(error: BadInput | OSError, directory: Path) -> str:
    """Return one sentence about an error."""
    if isinstance(error, OSError):
        return f"The checkpoint's {error.filename or directory} cannot be read ({error.strerror or error}); {COPY}."
    return str(error)


def _none_sound(directory: Path, notes: list[str]) -> BadInput:
    if len(notes) == 1:
        return BadInput(notes[0])
    return BadInput(f"No generation in {directory} is sound: {'; '.join(note.rstrip('.') for note in notes)}.")


def _candidates(directory: Path) -> tuple[list[int], list[str]]:
    """Return the numbers of generations that may be used, best first, and what is wrong with the folder's manifest.

    The first is the one that the manifest names; all others with a manifest follow, newest first.
    """
    path = directory / MANIFEST
    if not path.is_file():
        out = directory.parent if directory.name == "checkpoint" else directory
        finished = "; that run is finished" if (out / "result.h5").exists() else ""
        raise BadInput(
            f"{out} holds no checkpoint ({path} is missing){finished}; "
            "give the output folder of a run that was stopped."
        )
    numbers = sorted(
        (n for n, path_of_generation in generations(directory).items() if (path_of_generation / MANIFEST).is_file()),
        reverse=True,
    )
    try:
        named = _read(path)["generation"]
    except Unreadable:
        raise
    except BadInput as error:
        if not numbers:
            raise
        return numbers, [str(error)]
    return [named, *(n for n in numbers if n != named)], []


def _manifest(directory: Path, number: int) -> Manifest:
    """Return a generation's manifest if it and its files' sizes are right; else raise BadInput."""
    path = directory / folder(number) / MANIFEST
    if not path.is_file():
        raise BadInput(f"The checkpoint's {path} is missing; {COPY}.")
    manifest = _read(path)
    files = manifest.get("files") or []
    listed = isinstance(files, list) and len(files) > 0 and all(isinstance(entry, dict) for entry in files)
    if manifest["generation"] != number or not listed or not isinstance(manifest.get("meta"), dict):
        raise BadInput(f"{path} does not say what it should of its files; {COPY}.")
    for rank, entry in enumerate(files):
        has_digest = isinstance(entry.get("bytes"), int) and isinstance(entry.get(digests.NAME), str)
        if entry.get("name") != shard(rank) or not has_digest:
            raise BadInput(f"{path} names {str(entry.get('name'))[:80]!r} where {shard(rank)} should be; {COPY}.")
        _check_size(directory / folder(number) / shard(rank), entry["bytes"])
    return manifest


def _check_size(path: Path, size: int) -> None:
    if not path.is_file():
        raise BadInput(f"The checkpoint's {path} is missing; {COPY}.")
    size_on_disk = path.stat().st_size
    if size_on_disk != size:
        raise BadInput(
            f"The checkpoint's {path} has {size_on_disk} bytes where its manifest says {str(size)[:30]}; it was cut "
            f"short: {COPY}."
        )


def _check_digest(path: Path, digest: str) -> None:
    try:
        digest_on_disk = digests.of_file(path)
    except OSError as error:
        raise BadInput(f"The checkpoint's {path} cannot be read ({error.strerror or error}); {COPY}.") from error
    if digest_on_disk != digest:
        raise BadInput(f"The checkpoint's {path} is damaged: it does not hold what was written; {COPY}.")


def _manifest_head(number: int) -> Manifest:
    return {"format": FORMAT, "version": VERSION, "generation": number}


def _write(path: Path, manifest: Manifest) -> None:
    """Write a manifest with its digest, and flush it to the disk."""
    signed = {**manifest, digests.NAME: digests.of_json(manifest)}
    with path.open("w", encoding="utf-8") as file:
        json.dump(signed, file, indent=1, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> Manifest:
    """Return a manifest whose digest is right; raise Unreadable if it is of another version, BadInput if damaged."""
    try:
        size = path.stat().st_size
        text = path.read_bytes() if size <= MOST_BYTES else b""
        manifest = json.loads(text, parse_constant=_refuse_constant)
        sound = isinstance(manifest, dict) and manifest.get(digests.NAME) == digests.of_json(manifest)
    except (OSError, ValueError, RecursionError, PtymeshError) as error:
        raise BadInput(f"{path} is not readable as JSON ({error}); {COPY}.") from error
    if sound or (isinstance(manifest, dict) and digests.NAME not in manifest):
        _check_kind(path, manifest)
    generation = manifest.get("generation") if sound else None
    if not isinstance(generation, int) or isinstance(generation, bool) or not 0 < generation < 2**62:
        raise BadInput(f"{path} is damaged: it does not say what was written; {COPY}.")
    return dict(manifest)


def _check_kind(path: Path, manifest: Manifest) -> None:
    if manifest.get("format") != FORMAT:
        raise Unreadable(f"{path} is not the manifest of a ptymesh checkpoint; give the folder of an earlier run.")
    version = manifest.get("version")
    if version != VERSION:
        raise Unreadable(
            f"{path} has checkpoint version {str(version)[:30]}, this ptymesh reads {VERSION}; "
            f"resume with the version that wrote it."
        )


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")
