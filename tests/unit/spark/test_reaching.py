"""Servers of others that do not answer."""

import socket
from uuid import uuid4

import pytest

from noetl.model.errors import InvalidInput
from noetl.spark.client.server_version import read_server_version
from noetl.spark.profiles import SparkUnavailable, hide_token


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(SparkUnavailable, match="does not answer"):
            read_server_version(f"sc://127.0.0.1:{taken.getsockname()[1]}", str(uuid4()))


@pytest.mark.parametrize(
    "url", ["sc://host:port", "sc://host:99999", "sc://host/;token=secret=", "sc://host/;secret"]
)
def test_what_is_no_address_is_said_without_its_token(url: str) -> None:
    with pytest.raises(InvalidInput, match="not an address") as refused:
        read_server_version(url, str(uuid4()))
    assert "secret" not in f"{refused.value}{hide_token(url)}"
