"""Files: never outside the root, whole or not at all, one row without the rest."""

import asyncio
import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.model.errors import BadReference, Conflict, CorruptLog, NotFound, StoreUnavailable
from noetl.model.ids import ExecutionId, RefId
from noetl.model.reference import Address, Reference, make_address
from noetl.results.tiers.files import FileTier
from noetl.results.tiers.large import LargeStore
from tests.examples import count_examples
from tests.stores import in_files

PLACE = make_address("7", "result", "step", "key")
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where syncing is quick
ROWS = [{"n": n, "text": "x" * 90} for n in range(30_000)]


def put(store: LargeStore, value: Any, where: Address = PLACE) -> Reference:
    return asyncio.run(store.put(where, value))


def resolve(store: LargeStore, reference: Reference) -> Any:
    return asyncio.run(store.resolve(reference))


def rows(store: LargeStore, reference: Reference, start: int, stop: int) -> list[Any]:
    return asyncio.run(store.read_rows(reference, start, stop))


def everything(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


@pytest.fixture
def store(tmp_path: Path) -> LargeStore:
    return in_files(tmp_path / "results")


# ---- places ------------------------------------------------------------------------------------------------------------------

nasty = st.sampled_from(
    [
        "..",
        ".",
        "",
        "/",
        "a/b",
        "../../8/result/step/key",
        "/etc",
        "\x00",
        "a\x00",
        "~",
        ".key",
        "-",
        "é",
        "a\n",
    ]
)
parts = (
    nasty | st.text(max_size=6) | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,8}", fullmatch=True)
)
kinds = st.sampled_from(["result", "collection", "input"]) | parts


@settings(max_examples=count_examples(80), deadline=None)
@given(st.sampled_from(["7", "8", "07", "9" * 19]) | parts, kinds, parts, parts)
def test_whatever_an_address_says_it_stays_in_its_execution(
    execution: str, kind: str, step: str, key: str
) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        root = Path(folder) / "results"
        store = in_files(root)
        put(store, "mine", make_address("8", "result", "step", "key"))
        forged = Address(ExecutionId(execution), kind, step, key)
        try:
            reference = put(store, "other", forged)
        except BadReference:
            assert everything(Path(folder)) == {"results/8/result/step/key"}
            with pytest.raises(BadReference):
                resolve(store, Reference(ref_id=RefId(""), type="disk", uri=str(forged)))
            return
        except Conflict:
            assert str(forged) == "noetl://execution/8/result/step/key"
            return
        assert everything(Path(folder)) == {
            "results/8/result/step/key",
            f"results/{execution}/{kind}/{step}/{key}",
        }
        assert resolve(store, reference) == "other"


@pytest.mark.parametrize("depth", range(4))
def test_links_are_not_followed(store: LargeStore, tmp_path: Path, depth: int) -> None:
    reference = put(store, "value")
    path = tmp_path / "results"
    for name in ("7", "result", "step", "key")[: depth + 1]:
        path /= name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    for act in (
        lambda: resolve(store, reference),
        lambda: rows(store, reference, 0, 1),
        lambda: put(store, "value"),
    ):
        with pytest.raises(BadReference):
            act()


def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "results").symlink_to(tmp_path / "disk")
    store = in_files(tmp_path / "results")
    assert resolve(store, put(store, 1)) == 1


def test_what_is_not_a_file_is_not_read(store: LargeStore, tmp_path: Path) -> None:
    reference = put(store, "value")
    path = tmp_path / "results/7/result/step/key"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BadReference):
        resolve(store, reference)


def test_files_are_private(store: LargeStore, tmp_path: Path) -> None:
    put(store, "value")
    for path in (tmp_path / "results").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


def test_without_a_root_everything_is_gone(store: LargeStore, tmp_path: Path) -> None:
    reference = put(store, "value")
    shutil.rmtree(tmp_path / "results")
    with pytest.raises(NotFound):
        resolve(store, reference)


def test_a_root_that_is_not_ours_is_waited_for_and_not_made(tmp_path: Path) -> None:
    files = FileTier(tmp_path / "mount", ours=False)
    store = LargeStore(files, files.staging)
    reference = Reference(ref_id=RefId(""), type="disk", uri=str(PLACE))
    for act in (
        lambda: put(store, "value"),
        lambda: resolve(store, reference),
        lambda: asyncio.run(list_objects(files)),
    ):
        with pytest.raises(StoreUnavailable, match="not there"):
            act()
    assert everything(tmp_path) == set()
    (tmp_path / "mount").mkdir()
    assert resolve(store, put(store, "value")) == "value"
    shutil.rmtree(tmp_path / "mount")
    with pytest.raises(StoreUnavailable, match="not there"):
        resolve(store, reference)


async def list_objects(files: FileTier) -> list[Any]:
    return [each async for each in files.list_objects()]


def test_every_file_is_listed_when_there_are_more_than_one_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("noetl.results.tiers.files._LIST_PAGE_FILES", 2)
    store = in_files(tmp_path)
    places = {make_address("7", "result", "step", f"key{number}") for number in range(7)}
    for place in places:
        put(store, "value", place)
    found = asyncio.run(list_objects(FileTier(tmp_path)))
    assert {stored.address for stored in found} == places


# ---- crashes and damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["fdatasync", "rename", "fsync"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failed_put_says_so_leaves_nothing_and_may_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    store = in_files(tmp_path)
    put(store, "before", make_address("7", "result", "step", "other"))

    def fail(*args: Any, **more: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(
            "noetl.results.tiers.files._sync" if call == "fdatasync" else f"os.{call}", fail
        )
        with pytest.raises(
            StoreUnavailable, match="space" if number == errno.ENOSPC else "Input/output"
        ):
            put(store, ROWS)
    assert not [name for name in everything(tmp_path) if "/." in name]
    assert resolve(store, put(store, ROWS)) == ROWS


def test_what_a_crash_left_half_written_is_in_nobodys_way(
    store: LargeStore, tmp_path: Path
) -> None:
    put(store, "value", make_address("7", "result", "step", "other"))
    folder = tmp_path / "results/7/result/step"
    for number in range(5):
        (folder / f".key.{os.getpid()}-{number}").write_bytes(b"half")
    (folder / "key").write_bytes(b"torn by the file system")
    with pytest.raises(CorruptLog):
        resolve(store, Reference(ref_id=RefId(""), type="disk", uri=str(PLACE)))
    assert resolve(store, put(store, "value")) == "value"


def test_two_who_put_the_same_at_once_both_succeed(store: LargeStore) -> None:
    async def both() -> list[Reference]:
        return await asyncio.gather(*(store.put(PLACE, ROWS) for _ in range(4)))

    first, *others = asyncio.run(both())
    assert all(other == first for other in others)


def test_damage_is_found_where_it_is_read(store: LargeStore, tmp_path: Path) -> None:
    reference = put(store, ROWS)
    path = tmp_path / "results/7/result/step/key"
    data = bytearray(path.read_bytes())
    middle = data.index(b'"n":15000')
    data[middle + 4 : middle + 9] = b"15001"
    path.write_bytes(data)
    with pytest.raises(CorruptLog):
        resolve(store, reference)
    with pytest.raises(CorruptLog):
        rows(store, reference, 15_000, 15_001)
    assert rows(store, reference, 100, 103) == ROWS[100:103]


@pytest.mark.parametrize("cut", [1, 60, 100, 100_000])
def test_a_file_that_is_too_short_is_corrupt(store: LargeStore, tmp_path: Path, cut: int) -> None:
    reference = put(store, ROWS)
    path = tmp_path / "results/7/result/step/key"
    os.truncate(path, path.stat().st_size - cut)
    for act in (lambda: resolve(store, reference), lambda: rows(store, reference, 0, 1)):
        with pytest.raises(CorruptLog):
            act()


def test_a_damaged_index_is_noticed(store: LargeStore, tmp_path: Path) -> None:
    reference = put(store, ROWS)
    path = tmp_path / "results/7/result/step/key"
    data = bytearray(path.read_bytes())
    assert reference.bytes is not None
    data[reference.bytes + 25] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptLog):
        rows(store, reference, 0, 1)
    assert resolve(store, reference) == ROWS


# ---- rows ----------------------------------------------------------------------------------------------------------------------


def test_one_row_costs_one_block(store: LargeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = put(store, ROWS)
    assert reference.bytes is not None
    assert reference.bytes > 3_000_000
    read: list[int] = []
    pread = os.pread

    def count_read(descriptor: int, size: int, offset: int) -> bytes:
        read.append(size)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", count_read)
    for index in (0, 12_345, len(ROWS) - 1):
        read.clear()
        assert rows(store, reference, index, index + 1) == [ROWS[index]]
        assert sum(read) < 200_000


@settings(max_examples=count_examples(20), deadline=None)
@given(st.lists(st.integers(0, 40_000), min_size=1, max_size=30), st.data())
def test_any_rows_of_any_list(sizes: list[int], data: st.DataObject) -> None:
    value = [{"n": number, "text": "x" * size} for number, size in enumerate(sizes)]
    start, stop = (data.draw(st.integers(-2, len(sizes) + 2)) for _ in range(2))
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        store = in_files(Path(folder))
        assert rows(store, put(store, value), start, stop) == value[max(start, 0) : max(stop, 0)]
