"""The recipe of a run that has begun and has no checkpoint yet, so that `ptymesh resume` can start it anew.

    out/started.yaml     the recipe, after a line of comment that names the manifest that the run is going to replace

It is there from the moment at which the command line was checked to the first checkpoint or the result. Where an
earlier run's checkpoint lies in the folder, the digest of its manifest tells whether it is still that one: a kill may
come between the first checkpoint and the removal of this file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ptymesh.errors import BadInput
from ptymesh.io.checkpoint import manifests

STARTED = "started.yaml"
#: In place of a digest where there is no checkpoint.
NOTHING = "nothing"
#: In place of a digest of a checkpoint that cannot be read at the moment.
UNREADABLE = "unreadable"
_HEAD = "# Of a run that has no checkpoint yet: `ptymesh resume` starts it anew. In place of: "


def write_record(out: Path, recipe: str) -> None:
    """Record that a run with this recipe is about to start in this folder, which is made. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    temporary = out / (STARTED + ".new")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(f"{_HEAD}{_manifest_digest(out)}\n{recipe}")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, out / STARTED)


def pending_recipe(out: Path) -> str | None:
    """Return the recipe of a run that has to start anew; None without one, or where its own checkpoint is there."""
    try:
        if not (out / STARTED).is_file():
            return None
        head, _, recipe = (out / STARTED).read_text(encoding="utf-8").partition("\n")
    except (OSError, ValueError):
        return None
    digest = _manifest_digest(out)
    is_own = digest not in (NOTHING, head.removeprefix(_HEAD)) or digest == UNREADABLE
    return recipe if head.startswith(_HEAD) and not is_own else None


def remove_record(out: Path) -> None:
    """Remove the record: the run has a checkpoint or a result, or will have none."""
    (out / STARTED).unlink(missing_ok=True)


@contextmanager
def recording_start(out: Path, recipe: str) -> Iterator[None]:
    """Record a run around its start; where its input is refused (status 2), all of that is taken back."""
    if pending_recipe(out) == recipe:  # started before
        yield
        return
    folders_made = [folder for folder in (out, *out.absolute().parents) if not folder.exists()]
    try:
        write_record(out, recipe)
    except OSError as error:
        _take_back(out, folders_made)
        raise BadInput(f"{out} cannot be written to ({error.strerror}); choose another folder with --out.") from error
    try:
        yield
    except Exception as error:
        if getattr(error, "exit_status", getattr(error, "exit_code", 1)) == BadInput.exit_status:
            _take_back(out, folders_made)
        raise


def _take_back(out: Path, folders_made: list[Path]) -> None:
    """Remove the record, and the folders that were made for it, innermost first, as nothing else was written."""
    with suppress(OSError):
        (out / (STARTED + ".new")).unlink(missing_ok=True)
        remove_record(out)
        for folder in folders_made:  # the first that is not empty ends this
            folder.rmdir()


def _manifest_digest(out: Path) -> str:
    """Return the digest of what the checkpoint's current generation says of itself and of its files.

    Of a checkpoint that is damaged, or of another version, it is that of its manifest as it stands.
    """
    directory = out / "checkpoint"
    try:
        if not manifests.exists(directory):
            return NOTHING
        number = manifests.current(directory)
        checkpoint_folder = directory if number is None else directory / manifests.folder(number)
        manifest = (checkpoint_folder / manifests.MANIFEST).read_bytes()
    except OSError:
        return UNREADABLE
    return hashlib.sha256(manifest).hexdigest()
