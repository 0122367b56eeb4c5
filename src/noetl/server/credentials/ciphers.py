"""AES-256-GCM: a random nonce, then the encrypted bytes."""

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES = 12  # bytes


def encrypt(secret: bytes, plain: bytes, about: bytes) -> bytes:
    """Encrypt the bytes, and authenticate them together with `about`."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(secret).encrypt(nonce, plain, about)


def decrypt(secret: bytes, data: bytes, about: bytes) -> bytes:
    """The plain bytes. Raises ValueError if they, or `about`, are not those that were encrypted."""
    try:
        return AESGCM(secret).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], about)
    except InvalidTag as error:
        raise ValueError("these are not the bytes that were encrypted") from error
