"""Of a file that grows only what was added is read, and one that was cut back or replaced is read anew."""

import json
import os
from pathlib import Path

import pytest

from ptymesh.watch.growing import GrowingFiles


def lines(*epochs: int) -> str:
    return "".join(json.dumps({"epoch": epoch, "residual": 1 / (1 + epoch)}) + "\n" for epoch in epochs)


def epochs(files: GrowingFiles, path: Path) -> list[int]:
    return [row["epoch"] for row in files.rows(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "metrics.jsonl"
    made.write_text(lines(*range(1000)))
    return made


def test_what_was_added_alone_is_read(path: Path) -> None:
    files = GrowingFiles()
    assert epochs(files, path) == list(range(1000))
    before = files.bytes_read
    assert before == path.stat().st_size and epochs(files, path) == list(range(1000)) and files.bytes_read == before
    with path.open("a") as file:
        file.write(lines(1000))
    assert epochs(files, path) == list(range(1001)) and files.bytes_read - before == len(lines(1000))


def test_a_line_that_is_being_written(path: Path) -> None:
    files, line = GrowingFiles(), lines(1000)
    for part in (line[:7], line[7:20], line[20:]):
        assert epochs(files, path) == list(range(1000))
        with path.open("a") as file:
            file.write(part)
    assert epochs(files, path) == list(range(1001))


def test_a_run_that_was_resumed_cuts_the_file_back(path: Path) -> None:
    files = GrowingFiles()
    assert len(files.rows(path)) == 1000
    os.truncate(path, len(lines(*range(500))))
    assert epochs(files, path) == list(range(500))
    os.truncate(path, len(lines(*range(400))))
    with path.open("a") as file:  # longer than before, and other lines
        file.write(lines(*range(2000, 2200)))
    assert epochs(files, path) == [*range(400), *range(2000, 2200)]


def test_a_file_that_was_replaced(path: Path, tmp_path: Path) -> None:
    files = GrowingFiles()
    assert len(files.rows(path)) == 1000
    (tmp_path / "new").write_text(lines(*range(5000, 7000)))
    os.replace(tmp_path / "new", path)
    assert epochs(files, path) == list(range(5000, 7000))


def test_odd_lines(path: Path) -> None:
    path.write_bytes(b'[1]\nnonsense\n\xff\n{"epoch": NaN}\n' + lines(3).encode())
    assert GrowingFiles().rows(path) == [{}, {"epoch": None}, {"epoch": 3, "residual": 0.25}]
