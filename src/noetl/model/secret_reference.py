"""A credential that is declared by reference: where its value is kept, and never the value.

The server stores the reference. A worker resolves it with its own secret managers, just before use.
"""

from typing import Any

from msgspec import Struct, convert, to_builtins

from noetl.model.errors import InvalidInput

REFERENCE_FIELD = "$secret_reference"  # the only field of such a credential, on its way to a worker
REFERENCE_KINDS = frozenset(("vault", "file"))


class SecretReference(Struct, frozen=True):
    """`fields` has the fields of the credential, each with its name in the secret. Empty: all."""

    provider: str
    path: str
    fields: dict[str, str] = {}


def wrap_reference(reference: SecretReference) -> dict[str, Any]:
    return {REFERENCE_FIELD: to_builtins(reference)}


def find_reference(fields: dict[str, Any]) -> SecretReference | None:
    """The reference, if these are the fields of a credential that is one."""
    if REFERENCE_FIELD not in fields:
        return None
    return convert(fields[REFERENCE_FIELD], SecretReference)


def choose_fields(reference: SecretReference, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that the reference asks for. Raises InvalidInput if one is missing."""
    if not reference.fields:
        return fields
    missing = sorted(name for name in reference.fields.values() if name not in fields)
    if missing:
        raise InvalidInput(
            f"the secret {reference.path!r} of {reference.provider} has no field {', '.join(missing)}",
            hint=f"it has {', '.join(sorted(map(str, fields))) or 'none'}",
        )
    return {name: fields[its_name] for name, its_name in reference.fields.items()}
