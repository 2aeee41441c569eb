"""Whose request it is, when proxies stand in between. Pure: told the peer and the header, answers an address.

Anybody can write an `X-Forwarded-For`. What can be believed of it is what *our own* proxies added, and they add at the
end: so it is read from the right, hop by hop, only as long as the hop that vouches for the next one is trusted. The
first address that is not one of our proxies is the client, whatever stands to the left of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

from everkeel.errors import ConfigError

Address: TypeAlias = IPv4Address | IPv6Address

UNIX = "unix"
"""In a list of trusted proxies: whoever is connected by a Unix socket, and so has no address."""

_WITH_PORT = re.compile(r"([0-9.]+):[0-9]{1,5}", re.ASCII)
_IN_BRACKETS = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?", re.ASCII)
_FORWARDED_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*(?:"([^"]*)"|([^";,\s]*))', re.IGNORECASE)
_QUOTED = re.compile(r'"[^"]*"')
_LONGEST = 64  # more than any address with a port


class TrustedProxies:
    """The networks whose word about others is believed.

    >>> proxies = TrustedProxies(["10.0.0.0/8"])
    >>> proxies.client("10.0.0.7", "6.6.6.6, 203.0.113.9")
    '203.0.113.9'
    >>> proxies.client("203.0.113.9", "10.0.0.1")
    '203.0.113.9'
    """

    __slots__ = ("_networks", "_trusts", "_unix")

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        networks: list[IPv4Network | IPv6Network] = []
        wanted = [trusted] if isinstance(trusted, str) else list(trusted)
        for one in wanted:
            if one == UNIX:
                continue
            try:
                networks.append(ip_network(one))
            except ValueError:
                raise ConfigError(
                    "trusted proxies",
                    None,
                    "must be addresses or networks such as '10.0.0.0/8', or 'unix'; to trust everybody is to believe "
                    "whatever a client writes",
                    repr(one),
                ) from None
        self._networks, self._unix = tuple(networks), UNIX in wanted
        self._trusts: Callable[[str], bool] = lru_cache(maxsize=4096)(self._look_up)

    def trusts(self, address: str | None) -> bool:
        """Is this one of our own proxies? None: it has no address."""
        if address is None:
            return self._unix
        return bool(self._networks) and self._trusts(address)

    def _look_up(self, address: str) -> bool:
        parsed = parse_address(address)
        return parsed is not None and any(parsed in network for network in self._networks)

    def client(self, peer: str | None, hops: str | None, *, forwarded: bool = False) -> str | None:
        """The client's address; None where nobody knows it. `forwarded`: the header is a `Forwarded` of RFC 7239."""
        if not self.trusts(peer):
            return peer
        client = peer
        for hop in _from_the_right(hops or "", forwarded=forwarded):
            address = parse_address(hop)
            if address is None:
                break  # a proxy of ours wrote it and it makes no sense: nobody further away can be vouched for
            client = str(address)
            if not self.trusts(client):
                break
        return client


def parse_address(text: str) -> Address | None:
    """An address, with or without a port or brackets; None for anything else.

    >>> parse_address("[2001:db8::1]:443"), parse_address("::ffff:192.0.2.7"), parse_address("unknown")
    (IPv6Address('2001:db8::1'), IPv4Address('192.0.2.7'), None)
    """
    text = text.strip(" \t")
    if len(text) > _LONGEST:
        return None
    if found := _WITH_PORT.fullmatch(text) or _IN_BRACKETS.fullmatch(text):
        text = found[1]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


@lru_cache(maxsize=8192)
def household(address: str, ipv6_prefix: int) -> str:
    """Who shares a limit: an IPv4 address by itself, an IPv6 one with its network.

    Every IPv6 customer has 2**64 addresses and more: a limit for each of them would be none.

    >>> household("2001:db8:1:2:3:4:5:6", 64), household("192.0.2.7", 64)
    ('2001:db8:1:2::/64', '192.0.2.7')
    """
    parsed = parse_address(address)
    if parsed is None:
        return address[:_LONGEST]
    if isinstance(parsed, IPv4Address):
        return str(parsed)
    return str(IPv6Network((int(parsed) >> (128 - ipv6_prefix) << (128 - ipv6_prefix), ipv6_prefix)))


def _from_the_right(hops: str, *, forwarded: bool) -> Iterator[str]:
    """The hops, nearest first, cut off lazily: who sends a long header does not make us read it."""
    end = len(hops)
    while end >= 0:
        comma = hops.rfind(",", 0, end)
        part = hops[comma + 1 : end]
        end = comma if comma >= 0 else -1
        if not forwarded:
            yield part
            continue
        if _QUOTED.sub("", part).count('"'):
            return  # a comma within quotes: no address has one, so nothing from here on can be read
        found = _FORWARDED_FOR.search(part)
        yield "" if found is None else found[1] or found[2] or ""
