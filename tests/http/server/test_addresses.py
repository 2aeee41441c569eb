"""Whose request it is behind proxies: nothing that a client writes changes it."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everkeel import ConfigError, rate_limit
from everkeel.http import RateLimitMiddleware, by_address
from everkeel.http.server.addresses import TrustedProxies, household, parse_address

OURS = ["10.0.0.0/8", "fd00::/8"]
proxies = TrustedProxies(OURS)


def _is_ours(address: Any) -> bool:
    return any(address in ip_network(one) for one in OURS)


our_hops = st.one_of(
    st.integers(0, 2**24 - 1).map(lambda n: str(IPv4Address((10 << 24) + n))),
    st.integers(0, 2**120 - 1).map(lambda n: str(IPv6Address((0xFD << 120) + n))),
)
strangers = (
    st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))
    .filter(lambda one: not _is_ours(one))
    .filter(lambda one: getattr(one, "ipv4_mapped", None) is None)
    .map(str)
)
with_port = st.builds(
    lambda address, port: f"[{address}]:{port}" if ":" in address else f"{address}:{port}",
    strangers,
    st.integers(1, 65_535),
)
anything = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60)
written_by_the_client = st.one_of(anything, st.lists(st.one_of(our_hops, strangers, anything)).map(", ".join))


@given(peer=strangers, header=st.none() | written_by_the_client)
@settings(max_examples=200)
def test_a_stranger_is_itself_whatever_it_writes(peer: str, header: str | None) -> None:
    assert proxies.client(peer, header) == peer
    assert proxies.client(peer, header, forwarded=True) == peer


@given(peer=our_hops, client=strangers, hops=st.lists(our_hops, max_size=4), spoofed=written_by_the_client)
@settings(max_examples=200)
def test_behind_our_proxies_the_client_is_whom_they_saw_whatever_it_wrote_before(
    peer: str, client: str, hops: list[str], spoofed: str
) -> None:
    honest = ", ".join([client, *hops])
    assert proxies.client(peer, honest) == client
    assert proxies.client(peer, f"{spoofed}, {honest}") == client
    assert proxies.client(peer, f"{spoofed},{honest}") == client


@given(peer=our_hops, client=strangers, hops=st.lists(our_hops, max_size=3), spoofed=written_by_the_client)
@settings(max_examples=200)
def test_the_same_with_the_standard_header(peer: str, client: str, hops: list[str], spoofed: str) -> None:
    def element(address: str) -> str:
        return f'proto=https; for="[{address}]"' if ":" in address else f"for={address};by=10.0.0.1"

    honest = ", ".join(element(one) for one in (client, *hops))
    assert proxies.client(peer, f"{spoofed}, {honest}", forwarded=True) == client


@given(peer=our_hops, client=with_port)
@settings(max_examples=100)
def test_ports_are_not_part_of_an_address(peer: str, client: str) -> None:
    expected = parse_address(client)
    assert proxies.client(peer, client) == str(expected)


@given(peer=our_hops | strangers, header=written_by_the_client)
@settings(max_examples=200)
def test_the_answer_is_always_an_address(peer: str, header: str) -> None:
    found = proxies.client(peer, header)
    assert found is not None
    ip_address(found)


def test_when_all_are_ours_it_is_the_one_furthest_away() -> None:
    assert proxies.client("10.0.0.1", "10.0.0.3, 10.0.0.2") == "10.0.0.3"


def test_what_a_proxy_of_ours_wrote_and_makes_no_sense_ends_the_search() -> None:
    assert proxies.client("10.0.0.1", "203.0.113.9, unknown, 10.0.0.2") == "10.0.0.2"
    assert proxies.client("10.0.0.1", 'for=203.0.113.9, for="_hidden"', forwarded=True) == "10.0.0.1"
    assert proxies.client("10.0.0.1", 'for=203.0.113.9, for="a,b"', forwarded=True) == "10.0.0.1"


def test_an_address_in_the_clothes_of_ipv6_is_the_same_address() -> None:
    assert proxies.client("::ffff:10.0.0.1", "::ffff:203.0.113.9") == "203.0.113.9"


def test_a_unix_socket_is_trusted_only_by_name() -> None:
    assert TrustedProxies().client(None, "203.0.113.9") is None
    assert TrustedProxies(["unix"]).client(None, "203.0.113.9") == "203.0.113.9"


@pytest.mark.parametrize("wrong", ["*", "10.0.0.1/8", "proxy.example", ""])
def test_networks_that_are_none_and_everybody_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="must be addresses or networks"):
        TrustedProxies([wrong])


def test_neighbours_of_one_ipv6_network_share_a_limit() -> None:
    assert household("2001:db8:1:2:aaaa::1", 64) == household("2001:db8:1:2:bbbb::2", 64)
    assert household("2001:db8:1:2::1", 64) != household("2001:db8:1:3::1", 64)
    assert household("not an address" * 100, 64) == ("not an address" * 100)[:64]


def test_a_spoofed_header_does_not_get_around_the_limit_of_a_real_server(serve: Any, hello: Any) -> None:
    def limited(key: Any) -> RateLimitMiddleware:
        return RateLimitMiddleware(hello, rate_limit(2, per=60, key=key))

    async def statuses(app: Any, headers: list[list[tuple[str, str]]]) -> list[int]:
        async with serve(app) as service:
            return [(await service.get(headers=one)).status_code for one in headers]

    invented = [[("X-Forwarded-For", f"203.0.113.{n}")] for n in range(4)]
    # nobody is trusted: the header is nothing but words
    assert asyncio.run(statuses(limited(by_address()), invented)) == [200, 200, 429, 429]
    # the peer is our proxy, and appends whom it saw: what the client wrote stands to the left of that
    appended = [[("X-Forwarded-For", f"203.0.113.{n}, 198.51.100.1")] for n in range(4)]
    assert asyncio.run(statuses(limited(by_address(trusted=["127.0.0.1"])), appended)) == [200, 200, 429, 429]
    # the same as a second header line, which proxies do as well
    doubled = [[("X-Forwarded-For", f"203.0.113.{n}"), ("X-Forwarded-For", "198.51.100.1")] for n in range(4)]
    assert asyncio.run(statuses(limited(by_address(trusted=["127.0.0.1"])), doubled)) == [200, 200, 429, 429]
    # only the header that our proxies set is read
    other = [[("Forwarded", f"for=203.0.113.{n}"), ("X-Forwarded-For", "198.51.100.1")] for n in range(4)]
    assert asyncio.run(statuses(limited(by_address(trusted=["127.0.0.1"])), other)) == [200, 200, 429, 429]
    # and different clients behind our proxy do have limits of their own
    assert asyncio.run(statuses(limited(by_address(trusted=["127.0.0.1"])), invented)) == [200, 200, 200, 200]


def test_who_writes_a_megabyte_does_not_make_us_read_it() -> None:
    header = "6.6.6.6, " * 100_000 + "203.0.113.9"
    assert proxies.client("10.0.0.1", header) == "203.0.113.9"


def test_templates_prefer_the_exact_path_and_know_mounts() -> None:
    from everkeel.http.server.templates import Templates

    table = Templates({"/orders/{id}": 1, "GET /orders/new": 2, "/files/{rest:path}": 3, "/static/*": 4}, "test")
    found = {
        (method, path): entry and entry[1]
        for method, path in [
            ("GET", "/orders/7"),
            ("HEAD", "/orders/new"),
            ("POST", "/orders/new"),
            ("GET", "/orders/7/lines"),
            ("GET", "/files/a/b"),
            ("GET", "/static/"),
            ("GET", "/orders/"),
        ]
        for entry in [table.find(method, path)]
    }
    assert list(found.values()) == [1, 2, 1, None, 3, 4, None]
    assert table.of({"method": "GET", "path": "/api/orders/7", "root_path": "/api"}) == ("/orders/{id}", 1)
    assert table.of({"method": "GET", "path": "/apiorders/7", "root_path": "/api"}) is None
