"""Spellings of addresses that are not for playbooks, in a network namespace with a canary: nobody reaches it."""

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from tests.integration.tools.spellings import (
    CONFUSING_URLS,
    list_api_urls,
    list_metadata_urls,
    list_private_urls,
)
from tests.processes import environment
from tests.stack import ROOT

MODES = ("pool", "local")
# Ends of a call that made no connection to a host that is refused: it was refused, or is no host or URL at all.
UNREACHED = {"EGRESS_REFUSED", "HTTP_CONNECTION", "HTTP_URL", "HTTP_REQUEST"}
# These hosts are public, however much they look like another one.
PUBLIC_URLS = [url for url in CONFUSING_URLS if "@public.test/" in url or "/../" in url]


def make_namespace_command() -> list[str]:
    """The command that runs another one in namespaces of its own. Users other than root need user namespaces."""
    mapped = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *mapped, "--net", "--mount"]


@cache
def explore() -> dict[str, Any]:
    namespace = make_namespace_command()
    able = subprocess.run(
        [*namespace, "ip", "link", "set", "lo", "up"], capture_output=True, text=True, check=False
    )
    if able.returncode != 0:
        pytest.skip(f"no network namespace can be made here: {able.stderr.strip()}")
    done = subprocess.run(
        [*namespace, sys.executable, "-m", "tests.integration.tools.canary"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_canary_sees_who_has_no_guard() -> None:
    assert set(explore()["unguarded"]) == {"169.254.169.254:80", "fd00:ec2::254:80", "127.0.0.1:80"}


def test_there_are_many_spellings() -> None:
    assert len(set(list_metadata_urls())) >= 150
    assert len({*list_metadata_urls(), *list_private_urls(), *list_api_urls()}) >= 230


def test_a_public_host_is_reached() -> None:
    assert explore()["public"] == "reached"


@pytest.mark.parametrize("mode", MODES)
def test_no_spelling_reaches_link_local_and_metadata_addresses(mode: str) -> None:
    found = explore()[mode]["metadata"]
    assert found["reached"] == {}
    # In a redirect, what has no host is a path of the same server.
    reached = {name for name, end in found["ended"].items() if end not in UNREACHED}
    assert {name for name in reached if not name.startswith("30")} <= set(PUBLIC_URLS)


@pytest.mark.parametrize("mode", MODES)
def test_a_plain_refusal_says_that_it_is_one(mode: str) -> None:
    ended = explore()[mode]["metadata"]["ended"]
    for host in (
        "169.254.169.254",
        "2852039166",
        "[::ffff:169.254.169.254]",
        "metadata.test",
        "both.test",
    ):
        for redirect in ("", "302 ", "307 ", "302 302 "):
            assert ended[f"{redirect}http://{host}/latest"] == "EGRESS_REFUSED"


def test_a_pool_does_not_reach_private_addresses() -> None:
    found = explore()["pool"]["private"]
    assert found["reached"] == {}
    assert set(found["ended"].values()) == {"EGRESS_REFUSED"}


def test_a_local_worker_reaches_private_addresses() -> None:
    found = explore()["local"]["private"]["ended"]
    assert found["http://127.0.0.1/"] == found["http://private.test/"] == "reached"
    assert found["http://halfprivate.test/"] == found["http://[fd12::7]/"] == "reached"


@pytest.mark.parametrize("mode", MODES)
def test_no_spelling_reaches_the_own_api_without_a_token(mode: str) -> None:
    found = explore()[mode]["api"]
    assert found["reached"] == {}
    assert set(found["ended"].values()) == {"EGRESS_REFUSED"}


@pytest.mark.parametrize("mode", MODES)
def test_a_token_goes_to_the_own_api_only_where_the_playbook_names_it(mode: str) -> None:
    reached = set(explore()[mode]["api with token"]["reached"])
    assert not any(url.startswith("30") for url in reached), "a redirect takes no token along"
    names = ("sneaky.test", "loopback.test", "private.test", "public.test", "127.1:", "0x")
    assert not any(name in url for url in reached for name in names)
    assert ("http://127.0.0.1:8082/api/worker/credentials/apitoken" in reached) == (mode == "local")


@pytest.mark.parametrize("mode", MODES)
def test_a_name_that_changes_its_address_gains_nothing(mode: str) -> None:
    found = explore()[mode]["changing"]
    assert found["reached"] == []
    for name in ("flip.test", "flip6.test"):
        assert found["ended"][f"{name} reached"] > 0
        assert found["ended"][f"{name} EGRESS_REFUSED"] > 0
    assert found["ended"]["flipapi.test EGRESS_REFUSED"] > 0


@pytest.mark.parametrize("mode", MODES)
def test_other_tools_do_not_reach_metadata_addresses(mode: str) -> None:
    found = explore()[mode]["others"]
    assert found["reached"] == []
    refusals = {name: set(ends) for name, ends in found["ended"].items()}
    assert refusals == {
        "postgres host": {"EGRESS_REFUSED"},
        "postgres hostaddr": {"EGRESS_REFUSED"},
        "postgres hosts": {"EGRESS_REFUSED"},
        "nats": {"EGRESS_REFUSED"},
        "nats ws": {"NATS_UNAVAILABLE"},
        "object": {"EGRESS_REFUSED"},
        "object tls": {"EGRESS_REFUSED"},
        "object metadata": {"EGRESS_REFUSED"},
        "object proxy": {"SINK_TARGET"},
        "oauth2": {"InvalidInput"},
    }


def test_a_kept_connection_is_resolved_once() -> None:
    """Fifty calls are one lookup, which asks for both families."""
    assert explore()["lookups"] == 2
