"""Folders of commands: held while they live, swept when nobody holds them, read without what a straggler left."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from noetl.spark.client import frame_files as writing
from noetl.spark.step import folders

DIES = """
import os, signal
from pathlib import Path
from noetl.spark.step import folders
with folders.make_temporary_folder(Path({parent!r})) as folder:
    (folder / "input.parquet").write_text("rows")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_leaves_is_swept_and_what_lives_is_not(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", DIES.format(parent=str(tmp_path))], check=False)
    assert killed.returncode < 0
    (left,) = tmp_path.iterdir()
    assert folders.sweep_folders(tmp_path) == 0  # it may be one that its maker is about to lock
    with folders.make_temporary_folder(tmp_path) as folder:
        for each in (left, folder):
            os.utime(each, (0, 0))
        assert folders.sweep_folders(tmp_path) == 1
        assert list(tmp_path.iterdir()) == [folder]
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_a_task_that_was_not_committed_is_in_no_manifest(tmp_path: Path) -> None:
    late = tmp_path / "_temporary" / "0" / "_temporary" / "attempt_7"
    for folder in (tmp_path / "__noetl_day=1", late):
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"x": [1]}), folder / "part-00000-a.parquet")
    (found,) = writing._describe_files(tmp_path)
    assert Path(found.path).parent == tmp_path / "__noetl_day=1"
