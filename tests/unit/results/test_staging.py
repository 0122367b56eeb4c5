"""Payloads on their way: nothing is left behind, by a crash neither."""

import asyncio
import os
from hashlib import sha256
from pathlib import Path

import pytest

from noetl.model.errors import StoreUnavailable
from noetl.results.staging import MIN_FORGOTTEN_AGE_S, StagedPayload, Staging


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_is_written_is_counted_and_summed(tmp_path: Path, in_memory: bool) -> None:
    async def run() -> None:
        async with Staging(None if in_memory else tmp_path / "s").open_draft() as draft:
            draft.write(b"one ")
            draft.write(memoryview(b"two"))
            staged = draft.finish()
            assert (staged.size, staged.sha256) == (7, sha256(b"one two").hexdigest())
            assert b"".join(staged.read_parts(2)) == b"one two"
            assert staged.read(4, 3) == b"two"
            assert (staged.path is None) is in_memory

    asyncio.run(run())
    assert list(tmp_path.rglob("*-*")) == []


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    async def run() -> None:
        async with Staging(tmp_path).open_draft() as draft:
            draft.write(b"x")
            raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(run())
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_swept_and_what_a_living_one_writes_is_not(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with Staging(tmp_path).open_draft() as living:
            assert living.path is not None
            for name in ("1-0", living.path.name, "young"):
                (tmp_path / name).touch()
            for name in ("1-0", living.path.name):
                os.utime(
                    tmp_path / name,
                    (0, os.stat(tmp_path / "young").st_mtime - MIN_FORGOTTEN_AGE_S - 9),
                )
            async with Staging(tmp_path).open_draft() as other:
                assert other.path is not None
                assert set(os.listdir(tmp_path)) == {living.path.name, "young", other.path.name}

    asyncio.run(run())


def test_a_place_that_cannot_be_used_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def run() -> None:
        async with Staging(tmp_path / "file" / "s").open_draft():
            pass

    with pytest.raises(StoreUnavailable):
        asyncio.run(run())


def test_bytes_are_staged_as_they_are() -> None:
    staged = StagedPayload.from_bytes(b"abc")
    assert (staged.size, staged.path, list(staged.read_parts(2))) == (3, None, [b"ab", b"c"])
