"""Storage of a study: a journal file in its folder, or any database that Optuna's RDB storage speaks to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna import Study
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.files import replacing, writing
from ptymesh.tune.dead_workers import SILENT
from ptymesh.tune.journal_lock import lock_of
from ptymesh.tune.offered import need_optuna, quiet
from ptymesh.tune.options import Tuning

JOURNAL, POINTER = "journal.log", "study.json"
#: Study attributes: what was agreed on when the study began, and what the newest command asks for.
DEFINITION, SETTINGS = "definition", "settings"


def open_storage(url: str | None, folder: Path, heartbeat_s: float = 10.0) -> BaseStorage:
    """Return the journal in the study's folder, or a database.

    Args:
        url: of a database; None for the journal.
        folder: of the study.
        heartbeat_s: how often Optuna notes in a database that a trial's worker lives.

    Raises:
        BadInput: it cannot be reached.
    """
    need_optuna()
    try:
        with quiet():
            if url is None:
                folder.mkdir(parents=True, exist_ok=True)
                journal = (folder / JOURNAL).absolute()
                journal.touch()
                return JournalStorage(JournalFileBackend(str(journal), lock_obj=lock_of(journal)))
            interval = max(1, round(heartbeat_s))  # in whole seconds
            return RDBStorage(
                url,
                engine_kwargs={"pool_pre_ping": True},
                heartbeat_interval=interval,
                grace_period=SILENT * interval,
            )
    except OSError as error:
        raise BadInput(f"{folder} cannot be written ({error.strerror}); choose another folder with --out.") from error
    except Exception as error:  # whatever a database driver raises
        message = " ".join(str(error).split())[:200]
        raise BadInput(f"The storage {_hide_password(url)} cannot be opened ({message}); check its URL.") from error


def open_study(tuning: Tuning, direction: Literal["minimize", "maximize"], *, join: bool) -> Study:
    """Return the study of a tune file, made if it is not there; its workers follow this file's settings from now on.

    Args:
        tuning: the tune file.
        direction: of the objective.
        join: True if the study must be there and its settings stay.

    Raises:
        BadInput: the folder or database holds another study, or none to join.
    """
    folder, name = tuning.output.dir, study_name(tuning)
    if join and tuning.storage is None and not (folder / JOURNAL).exists():
        raise BadInput(f"{folder} holds no study to join; start it without --join, or name its folder with --out.")
    storage = open_storage(tuning.storage, folder, tuning.heartbeat_s)
    exists = name in [study.study_name for study in storage.get_all_studies()]
    if join and not exists:
        raise BadInput(f"The storage has no study {name} to join; start it without --join.")
    study = optuna.create_study(storage=storage, study_name=name, direction=direction, load_if_exists=True)
    agreed = study.user_attrs.get(DEFINITION)
    ours = json.loads(json.dumps(tuning.definition))
    if agreed is not None and agreed != ours:
        which = ", ".join(key for key in ours if agreed.get(key) != ours[key])
        raise BadInput(
            f"{folder} holds a study with another {which}; choose another folder with --out, or forget it with --force."
        )
    if agreed is None:
        study.set_user_attr(DEFINITION, ours)
    if not join:
        study.set_user_attr(SETTINGS, tuning.settings)
    settings = study.user_attrs.get(SETTINGS, tuning.settings)
    pointer = {"storage": tuning.storage, "name": name, "heartbeat_s": settings["heartbeat_s"]}
    with writing(folder / POINTER):
        folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / POINTER) as temporary:
        temporary.write_text(json.dumps(pointer) + "\n", encoding="utf-8")
    return study


def reopen_study(folder: Path) -> Study:
    """Return the study in a folder. Raises BadInput where there is none."""
    try:
        pointer = json.loads((folder / POINTER).read_text(encoding="utf-8"))
        url, name, heartbeat_s = pointer["storage"], pointer["name"], float(pointer.get("heartbeat_s", 10.0))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{folder} holds no study; give the output folder of ptymesh tune.") from error
    storage = open_storage(url, folder, heartbeat_s)
    try:
        return optuna.load_study(storage=storage, study_name=name)
    except KeyError as error:
        raise BadInput(f"The storage of {folder} has no study {name} any more; start it again.") from error


def tuning_of(study: Study, folder: Path) -> Tuning:
    """Return the tune file of the study's newest command, with `folder` as its output."""
    settings = study.user_attrs.get(SETTINGS)
    if settings is None:
        raise PtymeshError("The study has no settings yet; start it with ptymesh tune before workers join.")
    return Tuning.parse({**settings, "output": {"dir": str(folder)}})


def study_name(tuning: Tuning) -> str:
    """Return the name of a study: that of its folder in a database, which may hold several."""
    return "tune" if tuning.storage is None else tuning.output.dir.absolute().name


def remove_study(tuning: Tuning) -> None:
    """Remove the study and the files that it has left, for a new one."""
    folder = tuning.output.dir
    if tuning.storage is not None:
        storage: Any = open_storage(tuning.storage, folder)
        for study in storage.get_all_studies():
            if study.study_name == study_name(tuning):
                storage.delete_study(study._study_id)
    for name in (JOURNAL, POINTER, "best.yaml", "trials.jsonl"):
        (folder / name).unlink(missing_ok=True)


def _hide_password(url: str | None) -> str:
    head, at, tail = (url or "").rpartition("@")
    return f"{head.split('//')[0]}//...@{tail}" if at else tail
