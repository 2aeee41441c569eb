"""A response as it is kept for whoever sends the same request again. Pure: text in JSON, nothing is unpickled."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass

from everkeel.http.server.asgi import Headers

_NOT_KEPT = frozenset(
    # of one connection, of one moment, or (cookies) of one session: none of them belongs to the next answer
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade "
    b"date server set-cookie content-length x-backpressure ratelimit ratelimit-policy ratelimit-limit "
    b"ratelimit-remaining ratelimit-reset".split()
)


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A status, headers and a body; no body where it was too long to be kept.

    >>> KeptResponse.read(KeptResponse(201, [(b"content-type", b"text/plain")], b"created").written()).body
    b'created'
    """

    status: int
    headers: Headers
    body: bytes | None

    def written(self) -> bytes:
        """As a store keeps it."""
        headers = [
            [name.decode("latin-1"), value.decode("latin-1")]
            for name, value in self.headers
            if name.lower() not in _NOT_KEPT
        ]
        body = None if self.body is None else b64encode(self.body).decode("ascii")
        return json.dumps({"status": self.status, "headers": headers, "body": body}).encode()

    @staticmethod
    def read(kept: bytes | None) -> KeptResponse | None:
        """What a store has kept; None where it is nothing that was written here."""
        try:
            found = json.loads(kept or b"")
            headers = [(str(name).encode("latin-1"), str(value).encode("latin-1")) for name, value in found["headers"]]
            body = None if found["body"] is None else b64decode(found["body"], validate=True)
            return KeptResponse(int(found["status"]), headers, body)
        except (ValueError, TypeError, KeyError):
            return None
