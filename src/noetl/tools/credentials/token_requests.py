"""Requests a token of OAuth 2 over HTTP."""

import httpx
import msgspec

from noetl.model.errors import InvalidInput, Unavailable
from noetl.tools.egress.guard import EgressGuard, EgressRefused
from noetl.tools.http.bodies import ACCEPTED_ENCODINGS, BodyProblem, read_limited_body
from noetl.tools.http.transport import EgressTransport

TOKEN_REQUEST_TIMEOUT_S = 30.0
MAX_TOKEN_RESPONSE_BYTES = 1 << 20  # bytes of an answer


class TokenResponse(msgspec.Struct):
    access_token: str
    expires_in: float | None = None


async def request_token(guard: EgressGuard, url: str, form: dict[str, str]) -> TokenResponse:
    """Ask for a token.

    Raises InvalidInput if the server refuses, Unavailable if it does not answer.
    """
    headers = {"Accept": "application/json", "Accept-Encoding": ACCEPTED_ENCODINGS}
    try:
        async with (
            httpx.AsyncClient(
                transport=EgressTransport(guard), timeout=TOKEN_REQUEST_TIMEOUT_S, trust_env=False
            ) as client,
            client.stream("POST", url, data=form, headers=headers) as answer,
        ):
            content = await read_limited_body(answer, MAX_TOKEN_RESPONSE_BYTES)
    except EgressRefused as refused:
        raise InvalidInput(f"the address for tokens: {refused}") from None
    except BodyProblem as problem:
        raise InvalidInput(f"{url} gives no token: {problem}") from None
    except httpx.InvalidURL as error:
        raise InvalidInput(f"{url} is no address: {error}") from None
    except httpx.HTTPError as error:
        raise Unavailable(f"{url} does not answer: {type(error).__name__}") from None
    if answer.status_code in (408, 429) or answer.status_code >= 500:
        raise Unavailable(f"{url} answers {answer.status_code}")
    if not answer.is_success:
        raise InvalidInput(
            f"{url} gives no token: {answer.status_code} {_find_error_code(content)}".rstrip()
        )
    try:
        return msgspec.json.decode(content, type=TokenResponse, strict=False)
    except msgspec.DecodeError:
        raise InvalidInput(f"{url} answers, but with no access_token") from None


def _find_error_code(content: bytearray) -> str:
    """The error code of a response, such as `invalid_client`.

    The rest of the response is not shown, because it may repeat the secrets of the request.
    """
    try:
        code = str(msgspec.json.decode(content).get("error", ""))
    except (msgspec.DecodeError, AttributeError):
        return ""
    if len(code) < 50 and code.replace("_", "").isalnum():
        return code
    return ""
