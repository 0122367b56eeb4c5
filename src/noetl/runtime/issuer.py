"""Makes the issuer that signs users in from the settings. What talks to it is loaded only if there is one."""

import ssl
from importlib import import_module

from noetl.model.errors import InvalidInput
from noetl.model.identity import ROLES, Permission
from noetl.runtime.tls import make_outside_context
from noetl.server.oidc.port import Issuer, IssuerSettings
from noetl.settings import OidcSettings


def make_issuer_settings(oidc: OidcSettings) -> IssuerSettings | None:
    """None without an issuer. Raises `InvalidInput` if something is missing or cannot be."""
    if oidc.issuer is None:
        return None
    if oidc.client_id is None:
        raise InvalidInput(
            "NOETL_OIDC_ISSUER needs NOETL_OIDC_CLIENT_ID", hint="the issuer gives you an id"
        )
    if not oidc.roles:
        raise InvalidInput(
            "NOETL_OIDC_ISSUER needs NOETL_OIDC_ROLES: without it nobody has a role",
            hint="NOETL_OIDC_ROLES=data-team=author,*=viewer",
        )
    for role in oidc.roles.values():
        if Permission.READ not in ROLES.get(role, ()):
            raise InvalidInput(
                f"NOETL_OIDC_ROLES: a user cannot have the role {role!r}",
                hint="roles of users are viewer, operator, author, admin",
            )
    return IssuerSettings(
        issuer=oidc.issuer,
        client_id=oidc.client_id,
        client_secret=None if oidc.client_secret is None else oidc.client_secret.reveal(),
        scopes=oidc.scopes,
        roles_claim=oidc.roles_claim,
        roles=oidc.roles,
        label=oidc.label,
    )


def make_issuer(settings: IssuerSettings | None) -> Issuer | None:
    if settings is None:
        return None
    tls: ssl.SSLContext | None = make_outside_context(settings.issuer)
    issuer: Issuer = import_module("noetl.server.oidc.provider").IssuerClient(settings, tls)
    return issuer
