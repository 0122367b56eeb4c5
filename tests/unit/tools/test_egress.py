"""The egress guard: what addresses are, what is allowed, and where NoETL itself listens. Nothing here connects."""

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.model.errors import InvalidInput
from noetl.tools.egress.addresses import (
    REFUSED_NETWORKS,
    describe_private,
    describe_refused,
    is_on_this_machine,
)
from noetl.tools.egress.guard import EgressGuard, EgressRefused
from noetl.tools.egress.rules import EgressRules, parse_allowed_target
from tests.examples import count_examples

PUBLIC = ("93.184.216.34", "8.8.8.8", "1.1.1.1", "2606:4700::1111", "2a00:1450:4001::200e")
PRIVATE = (
    "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "100.127.255.255",
    "127.0.0.1", "127.255.255.254", "192.0.0.8", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.9", "240.0.0.1",
    "::1", "fc00::1", "fd12:3456::1", "fec0::1", "2001:db8::1", "64:ff9b:1::1",
)  # fmt: skip
REFUSED = (
    "169.254.0.0", "169.254.169.254", "169.254.170.2", "169.254.255.255", "fe80::1", "febf::1", "fd00:ec2::254",
    "fd00:ec2::23", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "0.0.0.0", "0.1.2.3", "::",
    "224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1", "255.255.255.255",
)  # fmt: skip


def spell_in_ipv6(address: IPv4Address) -> list[IPv6Address]:
    """Every IPv6 address that has the IPv4 address in it."""
    number = int(address)
    prefixes = (0, 0xFFFF << 32, 0xFFFF << 48, 0x64_FF9B << 96, 0x64_FF9B_0001 << 80)
    high, low = number >> 16, number & 0xFFFF
    numbers = [prefix | number for prefix in prefixes]
    numbers += [
        0x2002 << 112 | number << 80 | 1,  # 6to4
        0x2001_0000 << 96 | number << 64,  # Teredo, its server
        0x2001_0000 << 96 | 0x0808_0808 << 64 | number ^ 0xFFFF_FFFF,  # Teredo, its client
        0x2606_4700 << 96 | 0x5EFE << 32 | number,  # ISATAP
        0x2606_4700 << 96 | 0x0200_5EFE << 32 | number,
        0x64_FF9B_0001 << 80 | high << 64 | low << 40,  # NAT64 with a prefix of 48 bits
    ]
    return [IPv6Address(each) for each in numbers if each > 1]


def spell_as_text(address: IPv4Address) -> list[str]:
    """Spellings that resolvers understand, from the number to single parts in other bases."""
    number, parts = int(address), address.packed
    a, b, c, d = parts
    return [
        str(number), hex(number), f"0{number:o}", f"0X{number:X}", f"{hex(number)}",
        ".".join(map(hex, parts)), ".".join(f"0{part:o}" for part in parts), ".".join(f"000{part:o}" for part in parts),
        f"{a}.{b}.{c << 8 | d}", f"{a}.{b << 16 | c << 8 | d}", f"{hex(a)}.{b}.0{c:o}.{d}", f"{a}.{hex(b)}.{c << 8 | d}",
    ]  # fmt: skip


def refused(host: str, port: int = 80, guard: EgressGuard | None = None, **more: Any) -> str | None:
    """Why the guard refuses it; None if it does not."""
    try:
        asyncio.run((guard or EgressGuard()).find_addresses(host, port, **more))
    except EgressRefused as error:
        return error.reason
    return None


# ---- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_public(text: str) -> None:
    address = ip_address(text)
    assert (describe_refused(address), describe_private(address)) == (None, None)


@pytest.mark.parametrize("text", PRIVATE)
def test_private_addresses_are_private(text: str) -> None:
    address = ip_address(text)
    assert describe_private(address) is not None
    if text != "64:ff9b:1::1":  # which has 0.0.0.1 in it
        assert describe_refused(address) is None


@pytest.mark.parametrize("text", REFUSED)
def test_some_addresses_are_always_refused(text: str) -> None:
    assert describe_refused(ip_address(text)) is not None
    guard = EgressGuard(EgressRules(allow=(text, "0.0.0.0/0", "::/0"), allows_private=True))
    assert "which no setting allows" in (refused(text, guard=guard) or "")


FORBIDDEN_IPV4 = st.one_of(
    [
        st.ip_addresses(v=4, network=network)
        for network, _ in REFUSED_NETWORKS
        if network.version == 4
    ]
)
FEW = settings(max_examples=count_examples(20))
PRIVATE_IPV4 = st.one_of(
    [
        st.ip_addresses(v=4, network=network)
        for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8")
    ]
)


@FEW
@given(FORBIDDEN_IPV4)
def test_every_spelling_of_a_refused_address_is_refused(address: IPv4Address) -> None:
    for spelled in spell_in_ipv6(address):
        assert describe_refused(spelled) is not None, spelled
        zoned = IPv6Address(f"{spelled}%lo")
        assert describe_refused(zoned) is not None, zoned
    for text in spell_as_text(address):
        assert refused(text) is not None, text


@FEW
@given(PRIVATE_IPV4)
def test_every_spelling_of_a_private_address_is_refused_in_pools(address: IPv4Address) -> None:
    for spelled in spell_in_ipv6(address):
        assert refused(str(spelled)) is not None, spelled
    for text in (str(address), *spell_as_text(address)):
        assert refused(text) is not None, text


@FEW
@given(st.ip_addresses(v=4, network="8.0.0.0/8"))
def test_a_public_address_stays_public_when_it_is_mapped(address: IPv4Address) -> None:
    assert refused(f"::ffff:{address}") is None
    for text in spell_as_text(address):
        assert refused(text) is None


@FEW
@given(st.ip_addresses())
def test_every_address_has_an_answer(address: IPv4Address | IPv6Address) -> None:
    assert describe_refused(address) is None or isinstance(describe_refused(address), str)
    assert refused(str(address), guard=EgressGuard(EgressRules(allows_private=True))) == (
        None
        if describe_refused(address) is None
        else f"it is {describe_refused(address)}, which no setting allows"
    )


def test_addresses_of_this_machine_are_known() -> None:
    for text in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert is_on_this_machine(ip_address(text))
    assert not is_on_this_machine(ip_address("8.8.8.8"))


# ---- what is allowed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allow", "host", "port", "is_allowed"),
    [
        ("127.0.0.1", "127.0.0.1", 80, True),
        ("127.0.0.1", "127.0.0.2", 80, False),
        ("127.0.0.1:8080", "127.0.0.1", 8080, True),
        ("127.0.0.1:8080", "127.0.0.1", 80, False),
        ("127.0.0.1", "::ffff:127.0.0.1", 80, True),
        ("127.0.0.1", "::127.0.0.1", 80, False),
        ("127.0.0.1", "0x7f000001", 80, True),
        ("127.0.0.1", "::1", 80, False),
        ("::1", "::1", 80, True),
        ("[::1]:81", "::1", 81, True),
        ("[::1]:81", "::1", 80, False),
        ("10.0.0.0/8", "10.9.8.7", 80, True),
        ("10.0.0.0/8:443", "10.9.8.7", 443, True),
        ("10.0.0.0/8:443", "10.9.8.7", 80, False),
        ("10.0.0.0/8", "11.0.0.1", 80, True),
        ("10.0.0.0/8", "192.168.0.1", 80, False),
        ("fd12::/16", "fd12::7", 80, True),
        ("[fd12::]/16:81", "fd12::7", 81, True),
        ("fd12::/16", "fd13::7", 80, False),
        ("localhost", "localhost", 80, True),
        ("localhost", "LOCALHOST", 80, True),
        ("LocalHost.", "localhost", 80, True),
        ("localhost:81", "localhost", 80, False),
        ("localhost", "127.0.0.1", 80, False),
        ("0.0.0.0/0", "127.0.0.1", 80, True),
        ("0.0.0.0/0", "64:ff9b::127.0.0.1", 80, False),
    ],
)  # fmt: skip
def test_a_pool_reaches_private_addresses_that_are_named(
    allow: str, host: str, port: int, is_allowed: bool
) -> None:
    reason = refused(host, port, EgressGuard(EgressRules(allow=(allow,))))
    assert (reason is None) == is_allowed
    if reason is not None:
        assert "NOETL_HTTP_ALLOW" in reason


@pytest.mark.parametrize(
    "text",
    ["", "a b", "http://x", "10.0.0.1/8", "10.0.0.0/33", "x:0", "x:70000", "x:y", "[::1", "1.2.3", "12", "*", "ü.de"],
)  # fmt: skip
def test_an_entry_that_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="NOETL_HTTP_ALLOW"):
        parse_allowed_target(text)


def test_databases_may_be_private_and_never_link_local() -> None:
    guard = EgressGuard()
    assert asyncio.run(guard.find_database_addresses("10.0.0.1", 5432)) == ["10.0.0.1"]
    for host in ("169.254.169.254", "0xa9fea9fe", "::ffff:169.254.169.254", "fd00:ec2::254"):
        with pytest.raises(EgressRefused):
            asyncio.run(guard.find_database_addresses(host, 5432))


@pytest.mark.parametrize("host", ["x" * 64, "a..b", ".", "x" * 300, "no.such.host.invalid"])
def test_a_host_that_cannot_be_resolved_is_an_error_of_the_network(host: str) -> None:
    with pytest.raises(OSError):
        asyncio.run(EgressGuard().find_addresses(host, 80))


# ---- the API of NoETL --------------------------------------------------------------------------------------------------

OWN_API = "the API of NoETL itself"
LOOPBACK_SPELLINGS = (
    "127.0.0.1", "127.1", "127.0.1", "127.0.0.2", "127.255.255.254", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1",
    "017700000001", "localhost", "LOCALHOST", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1", "0:0:0:0:0:0:0:1",
)  # fmt: skip


def local_guard(*servers: str) -> EgressGuard:
    return EgressGuard(EgressRules(allows_private=True, servers=servers))


@pytest.mark.parametrize("host", LOOPBACK_SPELLINGS)
@pytest.mark.parametrize("server", ["http://127.0.0.1:8082", "http://localhost:8082/"])
def test_the_own_api_needs_a_token_however_it_is_spelled(host: str, server: str) -> None:
    guard = local_guard(server)
    assert OWN_API in (refused(host, 8082, guard) or "")
    assert refused(host, 8083, guard) is None, "another port is another server"


def test_a_token_opens_the_own_api_by_its_own_names_only() -> None:
    guard = local_guard("http://localhost:8082")
    for host in ("localhost", "127.0.0.1", "::1"):
        assert refused(host, 8082, guard, has_token=True) is None
    this_machine = socket.gethostname()
    assert OWN_API in (refused(this_machine, 8082, guard, has_token=True) or OWN_API)


def test_allowing_loopback_does_not_allow_the_own_api() -> None:
    rules = EgressRules(allow=("127.0.0.0/8", "::1"), servers=("http://127.0.0.1:8082",))
    guard = EgressGuard(rules)
    assert refused("127.0.0.1", 8081, guard) is None
    assert OWN_API in (refused("127.0.0.1", 8082, guard) or "")


def test_a_server_elsewhere_is_known_by_its_addresses() -> None:
    guard = local_guard("https://93.184.216.34", "http://10.1.1.1:8082")
    assert OWN_API in (refused("93.184.216.34", 443, guard) or "")
    assert OWN_API in (refused("::ffff:93.184.216.34", 443, guard) or "")
    assert OWN_API in (refused("0x0a010101", 8082, guard) or "")
    assert refused("93.184.216.34", 80, guard) is None
    assert refused("127.0.0.1", 8082, guard) is None


def test_servers_that_start_later_are_known() -> None:
    running: list[str] = []
    guard = EgressGuard(EgressRules(allows_private=True), lambda: running)
    assert refused("127.0.0.1", 8082, guard) is None
    running.append("http://127.0.0.1:8082")
    assert OWN_API in (refused("localhost", 8082, guard) or "")
    assert guard.rules.servers == ("http://127.0.0.1:8082",)
