"""Stores the tokens of a home in its database, so that its servers accept them."""

import asyncio
from pathlib import Path

from noetl.accounts.port import HOME_CREATOR, TokenFields, TokenStore
from noetl.model.ids import DEFAULT_TENANT
from noetl.runtime.token_files import (
    LOCAL_ROLES,
    LocalRole,
    make_token_file,
    read_token_file,
    remove_token_file,
)
from noetl.server.accounts.service import make_new_token


async def store_local_tokens(home: Path, tokens: TokenStore) -> None:
    """Make the token files of the home if they are missing, and store their sums.

    A token that was revoked is replaced: a user who can read the home has the database as well.
    """
    for role in LOCAL_ROLES:
        text = await asyncio.to_thread(_read_or_make, home, role)
        if not await _store_token(tokens, role, text):
            await asyncio.to_thread(remove_token_file, home, role)
            text = await asyncio.to_thread(make_token_file, home, role)
            await _store_token(tokens, role, text)


def _read_or_make(home: Path, role: LocalRole) -> str:
    return read_token_file(home, role) or make_token_file(home, role)


async def _store_token(tokens: TokenStore, role: LocalRole, text: str) -> bool:
    """Store the sum of the token if it is missing. False if the token is not valid any more."""
    fields = TokenFields(
        kind="api",
        tenant=DEFAULT_TENANT,
        name=f"local {role}",
        roles=(role,),
        created_by=HOME_CREATOR,
    )
    stored = await tokens.add_token(make_new_token(text, fields))
    return stored.is_valid
