"""out/started.yaml: what a run that has no checkpoint yet is started anew from."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from ptymesh.errors import BadInput, Diverged
from ptymesh.io.checkpoint import manifests
from ptymesh.run_folder import start_record


def manifest(out: Path, text: str) -> None:
    """A first generation, as every run's is, that says this."""
    (out / "checkpoint" / manifests.folder(1)).mkdir(parents=True, exist_ok=True)
    manifests.write(out / "checkpoint", 1, {"meta": {"said": text}})


def test_it_counts_until_there_is_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "a" / "out"
    assert start_record.pending_recipe(out) is None
    start_record.write_record(out, "seed: 1\ndata: é\n")
    assert start_record.pending_recipe(out) == "seed: 1\ndata: é\n"
    manifest(out, "the first checkpoint; the file was not removed, as a kill came between")
    assert start_record.pending_recipe(out) is None
    start_record.remove_record(out)
    start_record.remove_record(out)
    assert [path.name for path in out.iterdir()] == ["checkpoint"]


def test_an_earlier_runs_checkpoint_is_not_its_own(tmp_path: Path) -> None:
    manifest(tmp_path, "an earlier run's")
    start_record.write_record(tmp_path, "seed: 1\n")
    assert start_record.pending_recipe(tmp_path) == "seed: 1\n"
    shutil.rmtree(tmp_path / "checkpoint")
    assert start_record.pending_recipe(tmp_path) == "seed: 1\n"
    manifest(tmp_path, "its own")
    assert start_record.pending_recipe(tmp_path) is None


@pytest.mark.parametrize("version", [manifests.VERSION, 99])
def test_a_checkpoint_that_cannot_be_read_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    start_record.write_record(tmp_path, "seed: 1\n")
    monkeypatch.setattr(manifests, "VERSION", version)
    manifest(tmp_path, "its own")
    monkeypatch.undo()
    assert start_record.pending_recipe(tmp_path) is None

    def refuse(path: Path) -> bytes:
        raise OSError(errno.EIO, "no answer", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert start_record.pending_recipe(tmp_path) is None
    start_record.write_record(tmp_path, "seed: 1\n")
    assert start_record.pending_recipe(tmp_path) is None


def test_a_run_in_place_of_a_damaged_checkpoint_starts_anew(tmp_path: Path) -> None:
    manifest(tmp_path, "an earlier run's")
    for path in (tmp_path / "checkpoint").rglob(manifests.MANIFEST):
        path.write_text("damaged")
    start_record.write_record(tmp_path, "seed: 1\n")
    assert start_record.pending_recipe(tmp_path) == "seed: 1\n"
    manifest(tmp_path, "its own")
    assert start_record.pending_recipe(tmp_path) is None


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / start_record.STARTED)
    assert start_record.pending_recipe(tmp_path) is None


@pytest.mark.parametrize("text", ["seed: 1\n", "", "# no such head\nseed: 1\n", "\udcff"])
def test_another_file_of_this_name_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / start_record.STARTED).write_bytes(text.encode(errors="surrogateescape"))
    assert start_record.pending_recipe(tmp_path) is None


def test_bad_input_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "a" / "out"
    with pytest.raises(BadInput), start_record.recording_start(out, "seed: 1\n"):
        assert start_record.pending_recipe(out)
        raise BadInput("what was given")
    assert not list(tmp_path.iterdir())
    with pytest.raises(Diverged), start_record.recording_start(out, "seed: 1\n"):
        raise Diverged("later")
    assert start_record.pending_recipe(out)
    with pytest.raises(BadInput), start_record.recording_start(out, "seed: 1\n"):
        raise BadInput("the data are gone, for the moment")
    assert start_record.pending_recipe(out), "it was there before"
    (tmp_path / "file").touch()
    with (
        pytest.raises(BadInput, match="choose another folder with --out"),
        start_record.recording_start(tmp_path / "file" / "b", ""),
    ):
        pass
