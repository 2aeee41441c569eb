"""What an operator does in an incident, and what health and readiness say about it."""

from __future__ import annotations

import pytest

from everkeel import (
    CircuitOpenError,
    RateLimitedError,
    bulkhead,
    cache,
    chaos,
    circuit_breaker,
    disable,
    enable_chaos,
    fail_fast,
    feature_toggle,
    rate_limit,
    retry,
)


@pytest.mark.parametrize(("word", "mode"), [("enable", "enforce"), ("disable", "off"), ("shadow", "shadow")])
def test_every_policy_can_act_watch_or_be_off(admin, fetch, word, mode):
    fetch.mode = "shadow" if mode != "shadow" else "off"
    answer = admin.post(f"/control/retry/fetch/{word}").json()
    assert (answer["mode"], fetch.mode) == (mode, mode)
    assert answer["changed"]["after"] == {"mode": mode}
    admin.post("/audit/1/rollback")
    assert fetch.mode != mode


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("force_open", "open"),
        ("force_closed", "closed"),
        ("close", "closed"),
        ("reset", "closed"),
        ("half_open", "half_open"),
    ],
)
def test_a_circuit_is_set_by_hand(admin, payments, word, state):
    payments.half_open() if state != "half_open" else payments.force_open()
    answer = admin.post(f"/control/circuit_breaker/payments/{word}").json()
    assert (answer["state"], payments.snapshot()["state"]) == (state, state)


def test_a_circuit_forced_closed_stays_so_and_one_that_was_closed_judges_again(admin, payments):
    def fail():
        raise OSError

    for word, after in (("force_closed", "closed"), ("close", "open")):
        admin.post(f"/control/circuit_breaker/payments/{word}")
        for _ in range(20):
            with pytest.raises((OSError, CircuitOpenError)):
                payments.call(fail)
        assert payments.snapshot()["state"] == after


def test_one_key_is_set_and_the_others_are_left_alone(admin):
    tenants = circuit_breaker("tenants", key=lambda tenant: tenant)
    for tenant in ("ann", 42):
        tenants.call(lambda tenant: tenant, tenant)
    answer = admin.post("/control/circuit_breaker/tenants/force_open", json={"key": "42"})  # of a command line
    assert answer.json()["changed"]["after"] == {"key": "42", "state": "open"}
    with pytest.raises(CircuitOpenError):
        tenants.call(lambda tenant: tenant, 42)
    assert tenants.call(lambda tenant: tenant, "ann") == "ann"
    assert admin.get("/policies/circuit_breaker/tenants").json()["shut_keys"] == {"42": "open"}
    assert admin.post("/control/circuit_breaker/tenants/reset", json={"key": 42}).status_code == 200
    assert tenants.call(lambda tenant: tenant, 42) == 42


def test_a_key_that_was_never_seen_can_be_shut_in_advance_but_not_reset(admin):
    tenants = circuit_breaker("tenants", key=lambda tenant: tenant)
    assert admin.post("/control/circuit_breaker/tenants/reset", json={"key": "eve"}).status_code == 404
    assert admin.post("/control/circuit_breaker/tenants/force_open", json={"key": "eve"}).status_code == 200
    with pytest.raises(CircuitOpenError):
        tenants.call(lambda tenant: tenant, "eve")


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("tenants", None, 400),
        ("payments", {"key": "ann"}, 400),
        ("payments", {"kye": "ann"}, 400),
        ("payments", {"key": ["ann"]}, 400),
        ("nobody", None, 404),
    ],
)
def test_whose_circuit_it_is_must_be_said_exactly_where_it_matters(admin, payments, name, body, status):
    tenants = circuit_breaker("tenants", key=lambda tenant: tenant)
    answer = admin.post(f"/control/circuit_breaker/{name}/force_open", json=body)
    assert answer.status_code == status
    assert payments.snapshot()["state"] == "closed"
    assert tenants.snapshot()["states"]["open"] == 0


def test_a_circuit_that_is_held_open_is_not_changed(admin, payments):
    with payments.isolate():
        answer = admin.post("/control/circuit_breaker/payments/reset")
        assert (answer.status_code, answer.json()["detail"]) == (
            409,
            "circuit breaker 'payments' is isolated by 1; it changes when the last releases it",
        )


def test_other_policies_can_be_handled_too(admin, virtual_time):
    enable_chaos()
    limit, gate = rate_limit(5, "search"), fail_fast("ledger")
    toggle, answers, faults = feature_toggle("beta"), cache(60, "rates"), chaos("storm", error=OSError)
    assert admin.post("/control/rate_limit/search/drain", json={"seconds": 30}).status_code == 200
    with pytest.raises(RateLimitedError) as caught:
        limit.acquire()
    assert caught.value.retry_after == pytest.approx(30, abs=1)
    admin.post("/control/fail_fast/ledger/force_open", json={"reason": "the disk is full"})
    assert gate.snapshot()["reason"] == "the disk is full"
    admin.post("/control/fail_fast/ledger/reset")
    assert gate.snapshot()["state"] == "closed"
    admin.post("/control/feature_toggle/beta/turn_off")
    assert not toggle.is_enabled()
    answers.call(int, "7")
    assert admin.post("/control/cache/rates/clear").status_code == 200
    assert answers.snapshot()["size"] == 0
    assert faults.inactive_because is None
    assert admin.post("/control/chaos/storm/stop").status_code == 200
    assert faults.inactive_because is not None
    assert admin.post("/control/chaos/storm/resume").status_code == 200
    assert faults.inactive_because is None


def test_a_limit_with_keys_is_drained_for_one_of_them(admin, virtual_time):
    limit = rate_limit(5, "search", key=lambda user: user)
    assert admin.post("/control/rate_limit/search/drain", json={"seconds": 5}).status_code == 400
    assert admin.post("/control/rate_limit/search/drain", json={"seconds": 5, "key": "ann"}).status_code == 200
    assert (limit.try_acquire(key="ann"), limit.try_acquire(key="bob")) == (False, True)


def test_a_key_that_no_encoding_can_write_is_no_trouble(admin):
    tenants = circuit_breaker("tenants", key=lambda tenant: tenant)
    body = b'{"key": "\\ud800"}'
    path, headers = "/control/circuit_breaker/tenants/force_open", {"content-type": "application/json"}
    assert admin.post(path, content=body, headers=headers).status_code == 200
    assert admin.get("/policies/circuit_breaker/tenants").json()["shut_keys"] == {"\ud800": "open"}
    assert tenants.snapshot()["states"]["open"] == 1


# ------------------------------------------------------------------ lists


def test_policies_are_listed_filtered_and_paged(admin, fetch, payments):
    payments.force_open()
    fetch.mode = "shadow"

    def names(**query):
        answer = admin.get("/policies", params=query).json()
        return answer["total"], [one["name"] for one in answer["policies"]]

    assert names() == (2, ["fetch", "payments"])
    assert names(type="retry") == (1, ["fetch"])
    assert names(name="pay*") == (1, ["payments"])
    assert names(state="open") == (1, ["payments"])
    assert names(mode="shadow") == (1, ["fetch"])
    assert names(limit=1, offset=1) == (2, ["payments"])


@pytest.mark.parametrize(
    "query", [{"typ": "retry"}, {"mode": "on"}, {"limit": "0"}, {"limit": "x"}, {"offset": "-1"}, {"limit": "1e3"}]
)
def test_a_filter_with_a_typing_error_is_refused_and_does_not_list_everything(admin, query):
    answer = admin.get("/policies", params=query)
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["parameter"] == next(iter(query))


def test_one_policy_is_shown_whole(admin, fetch):
    answer = admin.get("/policies/retry/fetch").json()
    assert (answer["type"], answer["name"], answer["mode"], answer["keyed"]) == ("retry", "fetch", "enforce", False)
    assert answer["settings"]["attempts"] == 3


# ------------------------------------------------------------------ health


def test_health_counts_the_active_policies(admin, fetch, payments):
    fetch.mode = "off"
    payments.force_open()
    answer = admin.get("/health").json()
    assert (answer["policies"], answer["active_policies"], answer["status"]) == (2, 1, "up")
    assert answer["modes"] == {"enforce": 1, "shadow": 0, "off": 1}
    assert answer["open"] == ["circuit_breaker/payments"]
    disable()
    answer = admin.get("/health").json()
    assert (answer["status"], answer["active_policies"]) == ("disabled", 0)


def test_an_open_circuit_makes_nobody_unready_unless_told_so(admin, payments):
    payments.force_open()
    assert admin.get("/readiness").json() == {"status": "ready", "reasons": []}


def test_a_policy_that_counts_for_readiness_makes_it_unready_while_it_is_open(make_plane, client_of, payments):
    client = client_of(make_plane(readiness=["circuit_breaker/pay*", "fail_fast/*"]))
    gate = fail_fast("ledger")
    assert client.get("/readiness").status_code == 200
    payments.force_open()
    gate.force_open()
    answer = client.get("/readiness")
    assert answer.status_code == 503
    assert answer.json()["reasons"] == ["circuit breaker 'payments' is open", "fail fast 'ledger' is open"]
    payments.mode = gate.mode = "shadow"  # they let everybody pass
    assert client.get("/readiness").status_code == 200


def test_with_keys_it_is_unready_only_when_nobody_gets_through(make_plane, client_of):
    client = client_of(make_plane(readiness=["circuit_breaker/*"]))
    tenants = circuit_breaker("tenants", key=str)
    assert client.get("/readiness").status_code == 200
    tenants.force_open(key="a")
    tenants.reset(key="b")
    assert client.get("/readiness").status_code == 200
    tenants.force_open(key="b")
    assert client.get("/readiness").status_code == 503


def test_the_application_may_judge_readiness_and_may_fail_at_it(make_plane, client_of, caplog):
    places = bulkhead(1, "places")
    retry_ = retry("fetch")

    def full(policy):
        if policy is retry_:
            raise KeyError("running")
        return policy.snapshot()["running"] >= policy.config.limit

    client = client_of(make_plane(readiness=full))
    with places:
        assert client.get("/readiness").json()["reasons"] == ["bulkhead 'places' is not ready"]
    assert client.get("/readiness").status_code == 200
    assert "could not tell whether it makes the service unready" in caplog.text


def test_public_readiness_answers_everybody_but_explains_itself_only_to_those_who_may_read(
    make_plane, client_of, payments
):
    plane = make_plane(readiness=["circuit_breaker/*"], public_readiness=True)
    payments.force_open()
    assert client_of(plane, None).get("/readiness").json() == {"status": "not_ready"}
    assert client_of(plane, "viewer").get("/readiness").json()["reasons"] == ["circuit breaker 'payments' is open"]


# ------------------------------------------------------------------ switches


def test_without_control_nothing_can_be_changed(make_plane, client_of, fetch):
    client = client_of(make_plane(enable_control=False))
    assert client.post("/control/retry/fetch/disable").status_code == 404
    assert client.put("/config/retry/fetch", json={"attempts": 5}).status_code == 405
    assert client.get("/config/retry/fetch").status_code == 200
    document = client.get("/openapi.json").json()
    changing = {(path, method) for path, item in document["paths"].items() for method in item if method != "get"}
    assert changing == {("/session", "post"), ("/session", "delete")}


def test_without_metrics_there_are_no_numbers(make_plane, client_of, fetch):
    client = client_of(make_plane(enable_metrics=False))
    for path in ("/metrics", "/metrics/retry/fetch", "/snapshot", "/stream"):
        assert client.get(path).status_code == 404
    assert client.get("/health").status_code == 200
