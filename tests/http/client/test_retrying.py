"""When a request is made again, and when it is not: every client, against a real server."""

from __future__ import annotations

import pytest

from everkeel import CircuitOpenError, HTTPStatusError, RetryBudget


def test_a_status_that_may_pass_is_retried(agent, service):
    url = service.will("/busy", 503, 502)
    assert agent().get(url).status == 200
    assert [one.headers["x-request-attempt"] for one in service.at("/busy")] == ["1", "2", "3"]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_each_of_the_statuses_is_retried(agent, service, status):
    assert agent().get(service.will("/status", status)).status == 200


@pytest.mark.parametrize("status", [400, 401, 404, 409, 501])
def test_no_other_status_is(agent, service, status):
    assert agent().get(service.will("/status", status)).status == status
    assert len(service.seen) == 1


def test_the_last_response_is_returned_when_attempts_run_out(agent, service, reply):
    url = service.will("/down", 503, 503, reply(503, body=b"sorry"))
    answer = agent().get(url)
    assert (answer.status, answer.body) == (503, b"sorry")
    assert len(service.seen) == 3


def test_it_is_raised_when_asked_for_with_its_response(agent, service, reply):
    url = service.will("/down", *[reply(503, {"Retry-After": "0"}, b"sorry")] * 3)
    client = agent(name="payments", replace=True, on_status="raise")
    with pytest.raises(HTTPStatusError) as caught:
        client.get(url + "?card=4711")
    error = caught.value
    assert (error.status, error.retry_after, error.policy, error.method) == (503, 0.0, "payments", "GET")
    assert error.url == url, "a query may hold what logs must not"
    if hasattr(error.response, "status_code"):
        assert (error.response.status_code, error.response.content) == (503, b"sorry")
    else:
        assert (error.response.status, client.run(error.response.read())) == (503, b"sorry")
    assert client.connections() == 0


def test_a_post_is_not_retried(agent, service):
    assert agent().request("POST", service.will("/orders", 503), body=b"{}").status == 503
    assert len(service.seen) == 1


def test_a_post_with_an_idempotency_key_is(agent, service):
    url = service.will("/orders", 503)
    answer = agent().request("POST", url, body=b"one", headers={"Idempotency-Key": '"k-1"'})
    assert answer.status == 200
    assert [(one.headers["idempotency-key"], one.body) for one in service.seen] == [('"k-1"', b"one")] * 2


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_keys_are_made_when_asked_and_are_the_same_for_every_attempt(agent, service, method):
    client = agent(idempotency_keys=True)
    assert client.request(method, service.will("/orders", 503, 503), body=b"one").status == 200
    assert client.request(method, service.will("/orders"), body=b"two").status == 200
    keys = [one.headers["idempotency-key"] for one in service.seen]
    assert len(set(keys[:3])) == 1
    assert keys[3] != keys[0]
    assert keys[0].startswith('"')


def test_a_key_of_the_applications_own_is_kept(agent, service):
    client = agent(idempotency_keys=lambda: "ours")
    client.request("POST", service.will("/orders"), body=b"one", headers={"Idempotency-Key": '"theirs"'})
    assert service.seen[0].headers["idempotency-key"] == '"theirs"'


def test_a_get_gets_no_key(agent, service):
    agent(idempotency_keys=True).get(service.will("/orders"))
    assert "idempotency-key" not in service.seen[0].headers


def test_one_request_may_say_that_it_may_be_repeated(agent, service):
    assert agent().request("POST", service.will("/search", 503), body=b"q", idempotent=True).status == 200
    assert [one.body for one in service.seen] == [b"q", b"q"]


def test_one_request_may_have_a_key(agent, service):
    answer = agent().request("POST", service.will("/orders", 503), body=b"q", idempotency_key="order-7")
    assert answer.status == 200
    assert {one.headers["idempotency-key"] for one in service.seen} == {'"order-7"'}


def test_one_request_may_have_other_attempts(agent, service):
    client = agent()
    assert client.get(service.will("/once", 503), attempts=1).status == 503
    assert client.get(service.will("/five", 503, 503, 503, 503), attempts=5).status == 200
    assert client.get(service.will("/three", 503, 503, 503)).status == 503
    assert [len(service.at(path)) for path in ("/once", "/five", "/three")] == [1, 5, 3]


def test_one_request_may_be_asked_to_raise(agent, service):
    with pytest.raises(HTTPStatusError):
        agent(attempts=1).get(service.will("/down", 500), on_status="raise")


def test_a_wrong_setting_of_one_request_is_named(agent, service):
    with pytest.raises(ValueError, match=r"http request: .*attemps"):
        agent().get(service.will("/x"), attemps=1)
    assert service.seen == []


def test_a_predicate_may_want_a_retry_of_what_looks_well(agent, service, reply):
    def unfinished(request, outcome):
        return outcome.headers.get("x-state") == "pending" or None

    url = service.will("/job", reply(200, {"x-state": "pending"}), reply(200, {"x-state": "done"}))
    assert agent(retry_if=unfinished).get(url).headers["x-state"] == "done"
    assert len(service.seen) == 2


def test_a_predicate_may_refuse_one(agent, service):
    assert agent(retry_if=lambda request, outcome: False).get(service.will("/x", 503)).status == 503
    assert len(service.seen) == 1


def test_a_predicate_does_not_make_a_post_repeatable(agent, service):
    client = agent(retry_if=lambda request, outcome: True)
    assert client.request("POST", service.will("/x", 503), body=b"x").status == 503
    assert len(service.seen) == 1


def test_a_hook_may_change_the_request_before_a_retry(agent, service):
    told = []

    def refresh(request, attempt):
        told.append((attempt.number, attempt.error.status))
        request.headers["Authorization"] = "Bearer new"

    agent(before_retry=refresh, statuses={401}).get(service.will("/me", 401), headers={"Authorization": "Bearer old"})
    assert [one.headers["authorization"] for one in service.seen] == ["Bearer old", "Bearer new"]
    assert told == [(2, 401)]


def test_a_hook_may_be_a_coroutine_function_where_the_client_is_async(async_agent, service):
    async def refresh(request, attempt):
        request.headers["Authorization"] = "Bearer new"

    async_agent(before_retry=refresh).get(service.will("/me", 503))
    assert service.seen[1].headers["authorization"] == "Bearer new"


def test_a_hook_may_not_be_one_where_it_is_sync(sync_agent):
    async def refresh(request, attempt): ...

    with pytest.raises(ValueError, match="before_retry must be a plain function: this client is sync"):
        sync_agent(before_retry=refresh)


def test_a_retry_budget_is_on_by_default(agent, service):
    client = agent()
    assert client.part.retry.config.budget is not None


def test_a_spent_budget_ends_retrying(agent, service):
    client = agent(budget=RetryBudget(ratio=0, floor=0))
    assert client.get(service.will("/busy", 503)).status == 503
    assert len(service.seen) == 1


def test_a_breaker_opens_for_an_origin(agent, service):
    client = agent(attempts=1, circuit_breaker={"minimum_calls": 3, "failure_rate": 1.0})
    url = service.will("/down", *[500] * 3)
    for _ in range(3):
        assert client.get(url).status == 500
    with pytest.raises(CircuitOpenError):
        client.get(url)
    assert len(service.seen) == 3


def test_a_breaker_is_for_one_origin_alone(agent, service, nuisance):
    client = agent(attempts=1, circuit_breaker={"minimum_calls": 1, "failure_rate": 1.0})
    client.get(service.will("/down", 500))
    assert client.get(nuisance.says("/well", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")).status == 200


def test_too_many_requests_do_not_open_it(agent, service):
    client = agent(attempts=1, circuit_breaker={"minimum_calls": 1, "failure_rate": 0.01})
    for _ in range(3):
        assert client.get(service.will("/busy", 429)).status == 429


def test_it_may_be_off(agent):
    client = agent(circuit_breaker=False, rate_limit=False)
    assert [policy.type for policy in client.part.policies] == ["retry"]


def test_the_policies_are_named_after_the_client_and_in_order(agent):
    client = agent(name="payments", replace=True, concurrency_limit=True, hedge=True, attempt_timeout=5)
    order = ["retry", "circuit_breaker", "rate_limit", "concurrency_limit", "timeout", "hedge"]
    assert [(one.type, one.name) for one in client.part.policies] == [(kind, "payments") for kind in order]


def test_off_is_a_plain_client(agent, service):
    assert agent(mode="off").get(service.will("/x", 503)).status == 503
    assert len(service.seen) == 1
