"""out/started.yaml: what a run that has no checkpoint yet is started anew from."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from ptymesh.errors import BadInput, Diverged
from ptymesh.io import manifests
from ptymesh.run import started


def manifest(out: Path, text: str) -> None:
    """A first generation, as every run's is, that says this."""
    (out / "checkpoint" / manifests.folder(1)).mkdir(parents=True, exist_ok=True)
    manifests.write(out / "checkpoint", 1, {"meta": {"said": text}})


def test_it_counts_until_there_is_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "a" / "out"
    assert started.pending(out) is None
    started.note(out, "seed: 1\ndata: é\n")
    assert started.pending(out) == "seed: 1\ndata: é\n"
    manifest(out, "the first checkpoint; the file was not removed, as a kill came between")
    assert started.pending(out) is None
    started.forget(out)
    started.forget(out)
    assert [path.name for path in out.iterdir()] == ["checkpoint"]


def test_an_earlier_runs_checkpoint_is_not_its_own(tmp_path: Path) -> None:
    manifest(tmp_path, "an earlier run's")
    started.note(tmp_path, "seed: 1\n")
    assert started.pending(tmp_path) == "seed: 1\n"
    shutil.rmtree(tmp_path / "checkpoint")
    assert started.pending(tmp_path) == "seed: 1\n"
    manifest(tmp_path, "its own")
    assert started.pending(tmp_path) is None


@pytest.mark.parametrize("version", [manifests.VERSION, 99])
def test_a_checkpoint_that_cannot_be_read_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    started.note(tmp_path, "seed: 1\n")
    monkeypatch.setattr(manifests, "VERSION", version)
    manifest(tmp_path, "its own")
    monkeypatch.undo()
    assert started.pending(tmp_path) is None

    def refuse(path: Path) -> bytes:
        raise OSError(errno.EIO, "no answer", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert started.pending(tmp_path) is None
    started.note(tmp_path, "seed: 1\n")
    assert started.pending(tmp_path) is None


def test_a_run_in_place_of_a_damaged_checkpoint_starts_anew(tmp_path: Path) -> None:
    manifest(tmp_path, "an earlier run's")
    for path in (tmp_path / "checkpoint").rglob(manifests.MANIFEST):
        path.write_text("damaged")
    started.note(tmp_path, "seed: 1\n")
    assert started.pending(tmp_path) == "seed: 1\n"
    manifest(tmp_path, "its own")
    assert started.pending(tmp_path) is None


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / started.STARTED)
    assert started.pending(tmp_path) is None


@pytest.mark.parametrize("text", ["seed: 1\n", "", "# no such head\nseed: 1\n", "\udcff"])
def test_another_file_of_this_name_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / started.STARTED).write_bytes(text.encode(errors="surrogateescape"))
    assert started.pending(tmp_path) is None


def test_bad_input_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "a" / "out"
    with pytest.raises(BadInput), started.noted(out, "seed: 1\n"):
        assert started.pending(out)
        raise BadInput("what was given")
    assert not list(tmp_path.iterdir())
    with pytest.raises(Diverged), started.noted(out, "seed: 1\n"):
        raise Diverged("later")
    assert started.pending(out)
    with pytest.raises(BadInput), started.noted(out, "seed: 1\n"):
        raise BadInput("the data are gone, for the moment")
    assert started.pending(out), "it was there before"
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="choose another folder with --out"), started.noted(tmp_path / "file" / "b", ""):
        pass
