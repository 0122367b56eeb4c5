import inspect

from noetl.model import errors
from noetl.model.errors import InvalidInput, NoetlError, NotFound, Unavailable

TREE = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, NoetlError)
]


def test_every_error_has_a_stable_code_of_its_own() -> None:
    codes = [error.code for error in TREE]
    assert len(set(codes)) == len(codes)
    assert sorted(codes) == [
        "BAD_REFERENCE", "CONFLICT", "CORRUPT_LOG", "ERROR", "FENCED", "INVALID_INPUT", "NOT_AUTHENTICATED", "NOT_FOUND",
        "NOT_PERMITTED", "OUTCOME_UNKNOWN",
        "QUOTA_EXCEEDED", "RESULT_EXPIRED", "SERVER_UNREACHED", "STALE_ATTEMPT", "STORE_UNAVAILABLE", "TOO_MANY_REQUESTS",
        "UNAVAILABLE",
    ]  # fmt: skip


def test_the_tree_in_the_docstring_names_every_error() -> None:
    assert all(error.__name__ in (errors.__doc__ or "") for error in TREE)


def test_facts_are_attributes_and_a_hint_says_what_to_do() -> None:
    error = NotFound("no step 'x'", hint="one of a, b", step="x")
    assert str(error) == "no step 'x'"
    assert error.hint == "one of a, b"
    assert error.step == "x"  # type: ignore[attr-defined]
    assert isinstance(error, InvalidInput)
    assert not isinstance(error, Unavailable)


def test_an_error_without_words_still_says_something() -> None:
    assert str(NotFound()) != ""
