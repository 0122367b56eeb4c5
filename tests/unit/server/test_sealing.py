"""What a sealed credential withstands, and what the key file does."""

import base64
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from noetl.model.ids import Tenant
from noetl.server.credentials.keys import KEY_FILE_NAME, KeyFile, KeyUnusable
from noetl.server.credentials.sealing import (
    CredentialIdentity,
    CredentialUnreadable,
    SealingKey,
    make_sealing_key,
    read_key_id,
    seal,
    unseal,
)

KEY, OTHER = SealingKey(b"k" * 32), SealingKey(b"o" * 32)
PLACE = CredentialIdentity(Tenant(1), "db", "postgres")
PLAIN = b'{"password":"canary-4711"}'


# ---- sealing -----------------------------------------------------------------------------------------------------------


def test_what_was_sealed_opens_and_shows_nothing() -> None:
    sealed = seal(KEY, PLACE, PLAIN)
    assert unseal(KEY, PLACE, sealed) == PLAIN
    assert b"canary" not in sealed
    assert read_key_id(sealed) == KEY.id != OTHER.id
    assert KEY.secret.hex() not in KEY.id
    assert "kkkk" not in repr(KEY)


def test_the_same_credential_is_sealed_with_another_data_key_each_time() -> None:
    one, two = seal(KEY, PLACE, PLAIN), seal(KEY, PLACE, PLAIN)
    tail = -len(PLAIN) - 16
    assert one[tail:] != two[tail:]


def test_no_changed_bit_is_overlooked() -> None:
    sealed = seal(KEY, PLACE, PLAIN)
    for at in range(len(sealed) * 8):
        changed = bytearray(sealed)
        changed[at // 8] ^= 1 << at % 8
        if read_key_id(bytes(changed)) != KEY.id:
            continue  # another key, or none: it is not tried at all
        with pytest.raises(CredentialUnreadable):
            unseal(KEY, PLACE, bytes(changed))


@pytest.mark.parametrize(
    "place",
    [
        CredentialIdentity(Tenant(2), "db", "postgres"),
        CredentialIdentity(Tenant(1), "dc", "postgres"),
        CredentialIdentity(Tenant(1), "db", "generic"),
        CredentialIdentity(Tenant(1), "db,postgres", ""),
    ],
)
def test_a_row_in_the_place_of_another_does_not_open(place: CredentialIdentity) -> None:
    with pytest.raises(CredentialUnreadable):
        unseal(KEY, place, seal(KEY, PLACE, PLAIN))


@pytest.mark.parametrize(
    "sealed", [b"", b"x", PLAIN, seal(KEY, PLACE, PLAIN)[:-1], seal(OTHER, PLACE, PLAIN)]
)
def test_what_this_key_has_not_sealed_does_not_open(sealed: bytes) -> None:
    with pytest.raises(CredentialUnreadable) as refused:
        unseal(KEY, PLACE, sealed)
    assert "noetl credential add db" in (refused.value.hint or "")


# ---- the key file ------------------------------------------------------------------------------------------------------


def test_the_key_file_is_made_when_it_is_needed_and_private_whatever_the_umask(
    tmp_path: Path,
) -> None:
    before = os.umask(0)
    try:
        file = KeyFile(tmp_path / "home")
        assert file.read_keys() == {}
        assert not file.path.exists()
        key = file.get_sealing_key()
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert [found.name for found in file.path.parent.iterdir()] == [KEY_FILE_NAME]
    assert file.get_sealing_key() == key == KeyFile(tmp_path / "home").get_sealing_key()


def test_of_many_processes_at_once_one_makes_the_key(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from noetl.server.credentials.keys import KeyFile
input()  # until all of them are here
print(KeyFile(Path(sys.argv[1])).get_sealing_key().id)
"""
    start = [sys.executable, "-c", code, str(tmp_path)]
    processes = [
        subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    made = {process.communicate()[0].strip() for process in processes}
    assert made == {KeyFile(tmp_path).get_sealing_key().id}
    assert [found.name for found in tmp_path.iterdir()] == [KEY_FILE_NAME]


def test_the_first_key_seals_and_every_key_opens(tmp_path: Path) -> None:
    file = KeyFile(tmp_path)
    old = file.get_sealing_key()
    new = make_sealing_key()
    file.path.write_bytes(base64.b64encode(new.secret) + b"\n\n" + file.path.read_bytes())
    assert file.get_sealing_key() == new
    assert list(file.read_keys()) == [new.id, old.id]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o777])
def test_a_key_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    file = KeyFile(tmp_path)
    file.get_sealing_key()
    file.path.chmod(mode)
    for ask in (file.read_keys, file.get_sealing_key):
        with pytest.raises(KeyUnusable, match=f"open to other users .mode 0{mode:o}") as refused:
            ask()
        assert f"chmod 600 {file.path}" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.write_bytes(b""), "empty"),
        (lambda path: path.write_bytes(b"not base64!\n"), "line 1 is not base64"),
        (
            lambda path: path.write_bytes(base64.b64encode(b"short") + b"\n"),
            "line 1 is not a key of 32 bytes",
        ),
        (lambda path: (path.unlink(), path.mkdir()), "directory"),
    ],
)
def test_a_broken_key_file_is_said_to_be_one_and_never_replaced(
    tmp_path: Path, spoil: Callable[[Path], object], why: str
) -> None:
    file = KeyFile(tmp_path)
    file.get_sealing_key()
    spoil(file.path)
    for ask in (file.read_keys, file.get_sealing_key):
        with pytest.raises(KeyUnusable, match=f"(?i){why}") as refused:
            ask()
        assert "not base64!" not in str(refused.value)


def test_a_home_that_cannot_hold_a_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KeyUnusable, match=KEY_FILE_NAME):
        KeyFile(tmp_path / "file").get_sealing_key()
