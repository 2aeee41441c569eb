"""An adapter for `requests` sessions that retries, waits and gives up as it should.

    import requests
    from everkeel.http.requests import ResilientAdapter

    session = requests.Session()
    session.mount("https://", ResilientAdapter(name="payments"))

Everything that `ClientSettings` lists may be set; `request_options` changes it for the requests in a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from everkeel.http.client.config import ClientSettings, RequestSettings, configure, request_options
from everkeel.http.client.engine import Engine
from everkeel.http.client.policies import HasPolicies
from everkeel.runtime.clock import Clock
from everkeel.telemetry.extras import missing

try:
    import requests
    from requests.adapters import BaseAdapter, HTTPAdapter
except ImportError:  # pragma: no cover - in environments without it
    raise missing("everkeel.http.requests", "requests", "requests") from None

from everkeel.http.client.requests_dialect import SECONDS, RequestsDialect, within

__all__ = ["ClientSettings", "RequestSettings", "ResilientAdapter", "request_options"]


class ResilientAdapter(HasPolicies, BaseAdapter):
    """An adapter around another one, `requests.adapters.HTTPAdapter()` by default.

    When attempts run out on a status, the last response is returned, as without it. `requests` itself has no timeouts
    unless each call gives one: set `attempt_timeout` and `max_duration` here, and every call has them.

    >>> import requests
    >>> from everkeel.http.requests import ResilientAdapter
    >>> session = requests.Session()
    >>> session.mount("https://", ResilientAdapter(attempt_timeout=5, max_duration=30))
    """

    def __init__(
        self,
        adapter: BaseAdapter | None = None,
        *,
        name: str | None = None,
        clock: Clock | None = None,
        replace: bool = False,
        **settings: Unpack[ClientSettings],
    ) -> None:
        super().__init__()
        self._adapter = HTTPAdapter() if adapter is None else adapter
        config, dialect = configure(name, settings), RequestsDialect()
        self._engine = Engine(name, config, dialect, is_async=False, clock=clock, replace=replace)

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Send one request, as often as it takes."""

        def send(copy: requests.PreparedRequest) -> requests.Response:
            bound = within(timeout, getattr(copy, SECONDS, None))
            setattr(copy, SECONDS, bound)
            return self._adapter.send(copy, stream=stream, timeout=bound, verify=verify, cert=cert, proxies=proxies)

        response: requests.Response = self._engine.send(request, send, streamed=stream)
        response.request = request
        return response

    def close(self) -> None:
        """Close the adapter inside."""
        self._adapter.close()
