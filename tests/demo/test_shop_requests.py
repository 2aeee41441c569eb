"""What the services of the shop are asked: nonsense gets a 400 that names the field, and changes nothing."""

from __future__ import annotations

import json

import httpx2
import pytest
from starlette.testclient import TestClient

from everkeel.demo.shop.books import Books
from everkeel.demo.shop.customers import Customers
from everkeel.demo.shop.neighbours import Inventory, Payments
from everkeel.demo.shop.orders import MOST_OPEN, Orders
from everkeel.demo.shop.requests import NUMBER
from everkeel.demo.shop.world import SERVICES, World
from everkeel.errors import RateLimitedError

ORDER = {"id": "1", "item": "lantern", "count": 1, "amount": 1200, "style": "orchestrated"}
pytestmark = pytest.mark.usefixtures("fresh_everkeel")


def ask(folder, service, path: str, body: str) -> tuple[int, str]:
    """As if it ran: a bad request must not get as far as the database, which is not there."""
    world = World(str(folder), ports=dict.fromkeys(SERVICES, 1))
    with TestClient(service(world).app(), raise_server_exceptions=True) as client:
        answer = client.post(path, content=body)
    return answer.status_code, answer.text


@pytest.mark.parametrize(
    ("service", "path", "body", "complaint"),
    [
        (Orders, "/orders", "nonsense", "the body must be JSON"),
        (Orders, "/orders", "[]", "the body must be a JSON object"),
        (Orders, "/orders", "{}", "id must be a text of 1 to 200 characters (it is missing)"),
        (Orders, "/orders", {**ORDER, "count": -1}, "count must be a whole number above 0 (got -1)"),
        (Orders, "/orders", {**ORDER, "count": True}, "count must be a whole number above 0 (got True)"),
        (
            Orders,
            "/orders",
            {**ORDER, "style": "loud"},
            "style must be one of orchestrated, choreographed (got 'loud')",
        ),
        (Inventory, "/stock", {"item": "lantern", "count": 0}, "count must be a whole number above 0 (got 0)"),
        (Inventory, "/reservations/1", {"item": ""}, "item must be a text of 1 to 200 characters (got '')"),
        (Payments, "/charges/1", {"amount": "1"}, "amount must be a whole number above 0 (got '1')"),
        (Payments, "/provider", {"mode": "purple"}, "mode must be one of fine, slow, down (got 'purple')"),
        (Payments, "/provider", {"broken": 1}, "broken must be true or false (got 1)"),
    ],
)
def test_a_request_that_makes_no_sense_is_told_so(tmp_path, service, path, body, complaint) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    assert ask(tmp_path, service, path, text) == (400, complaint)


@pytest.mark.parametrize("value", [None, True, 1.0, float("nan"), "1", [], {}, 0, -1, 2**31])
def test_nothing_but_a_whole_number_above_0_is_an_amount(value) -> None:
    assert not NUMBER[1](value)


def test_who_cannot_be_served_in_time_is_told_when_to_come_back(tmp_path, monkeypatch) -> None:
    async def many(*_) -> int:
        return MOST_OPEN

    monkeypatch.setattr(Books, "number", many)
    world = World(str(tmp_path), ports=dict.fromkeys(SERVICES, 1))
    with TestClient(Orders(world).app()) as client:
        answer = client.post("/orders", json=ORDER)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([202], "accepted"),
        ([503], "shed"),
        ([RateLimitedError("front")], "shed"),
        ([httpx2.ConnectError("away"), 202], "accepted"),
        ([httpx2.ReadError("lost"), 503, RateLimitedError("front"), 202], "accepted"),  # it may have been taken before
        ([httpx2.ConnectError("away")] * 5, "unreachable"),
    ],
)
def test_customers_know_whether_their_order_was_taken(virtual_time, answers, told) -> None:
    left = list(answers)

    class Client:
        async def send_request(self, *what, **order):
            answer = left.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return httpx2.Response(answer)

    customers = Customers("http://nowhere", tries=5)
    taken = virtual_time.run(customers._place(Client(), ORDER))
    assert taken == (told == "accepted")
    assert customers.told == {told: 1}
    assert list(customers.accepted) == (["1"] if taken else [])
    assert left == []
