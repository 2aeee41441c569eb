"""The session of a page: a cookie that only our own page can use, and not for long."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from http.cookies import SimpleCookie

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from everkeel.control.access import Principal, Role, Sessions, Token, Tokens
from everkeel.control.admission import cookie_name
from everkeel.errors import ConfigError

OURS = {"X-Everkeel-Request": "1"}
SECRET = "a-secret-of-some-length"


@pytest.fixture
def page(plane, client_of, secrets, fetch):
    client = client_of(plane, None)
    answer = client.post("/session", json={"token": secrets["admin"]})
    assert answer.json() == {"name": "admin", "role": "admin"}
    client.cookies.clear()
    cookie = SimpleCookie(answer.headers["set-cookie"])["everkeel_session"]
    client.headers["Cookie"] = f"everkeel_session={cookie.value}"
    client.morsel = cookie
    return client


def test_the_cookie_is_for_our_path_and_not_for_scripts_or_other_sites(page):
    cookie = page.morsel
    assert (cookie["samesite"], cookie["httponly"], cookie["path"]) == ("Strict", True, "/everkeel")
    assert int(cookie["max-age"]) == 8 * 3600
    assert not cookie["secure"]  # it came over http


def test_over_https_it_stays_on_https(plane, client_of, secrets):
    client = client_of(plane, None, base_url="https://testserver")
    assert "; Secure" in client.post("/session", json={"token": secrets["viewer"]}).headers["set-cookie"]


def test_the_cookie_reads(page):
    assert page.get("/policies").json()["total"] == 1


def test_a_change_by_cookie_needs_our_header(page):
    assert page.post("/control/retry/fetch/disable").status_code == 403
    assert page.post("/control/retry/fetch/disable", headers=OURS).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://testserver"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://behind.a.proxy"}, 200),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://testserver"}, 403),
    ],
)
def test_a_change_by_cookie_must_come_from_our_own_origin(page, headers, status):
    assert page.post("/control/retry/fetch/disable", headers={**OURS, **headers}).status_code == status


def test_a_bearer_token_needs_none_of_that(admin, fetch):
    answer = admin.post("/control/retry/fetch/disable", headers={"Origin": "http://tool.example"})
    assert answer.status_code == 200


def test_no_answer_lets_another_origin_in(admin):
    for method in ("GET", "OPTIONS"):
        headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "PUT"}
        answer = admin.request(method, "/health", headers=headers)
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_every_answer_has_a_policy_without_inline_script(admin):
    for path in ("/health", "/nothing", "/liveness"):
        policy = admin.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


def test_logging_out_ends_the_session_for_every_copy_of_the_cookie(page):
    assert page.delete("/session").status_code == 403  # nor can another site log somebody out
    answer = page.delete("/session", headers=OURS)
    assert answer.status_code == 204
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert page.get("/policies").status_code == 401


def test_a_session_ends_by_itself(virtual_time, make_plane, client_of, secrets):
    client = client_of(make_plane(session_length=60), None)
    cookie = client.post("/session", json={"token": secrets["viewer"]}).headers["set-cookie"].partition(";")[0]
    client.cookies.clear()
    assert client.get("/health", headers={"Cookie": cookie}).status_code == 200
    virtual_time.advance(61)
    assert client.get("/health", headers={"Cookie": cookie}).status_code == 401


def test_a_session_of_another_process_is_nothing_here(make_plane, client_of, secrets):
    cookie = client_of(make_plane(), None).post("/session", json={"token": secrets["admin"]}).headers["set-cookie"]
    answer = client_of(make_plane(), None).get("/health", headers={"Cookie": cookie.partition(";")[0]})
    assert answer.status_code == 401


def test_services_on_several_ports_of_a_host_have_a_session_each(make_plane, client_of, secrets):
    """A browser sends the cookies of a host to all of its ports."""
    pages = [client_of(make_plane(), None, base_url=f"http://127.0.0.1:{port}") for port in (8001, 8002)]
    sent = [one.post("/session", json={"token": secrets["admin"]}).headers["set-cookie"] for one in pages]
    assert [cookie.partition("=")[0] for cookie in sent] == ["everkeel_session_8001", "everkeel_session_8002"]
    both = {"Cookie": "; ".join(cookie.partition(";")[0] for cookie in sent)}
    assert [one.get("/policies", headers=both).status_code for one in pages] == [200, 200]
    assert pages[0].delete("/session", headers={**both, **OURS}).status_code < 300
    assert [one.get("/policies", headers=both).status_code for one in pages] == [401, 200]


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("shop.example", "everkeel_session"),
        ("[::1]", "everkeel_session"),
        ("[::1]:8001", "everkeel_session_8001"),
        ("shop.example:; Domain=evil", "everkeel_session"),
        ("shop.example:123456", "everkeel_session"),
    ],
)
def test_only_a_port_can_be_in_the_name_of_the_cookie(host, name):
    assert cookie_name(Request({"type": "http", "headers": [(b"host", host.encode())]})) == name


# ------------------------------------------------------------------ the core


def begun(role: str = "viewer") -> tuple[Sessions, Tokens, str]:
    token = Token("ann", role, SECRET)
    sessions, tokens = Sessions(60), Tokens([token])
    return sessions, tokens, sessions.begin(Principal("ann", Role.of(role)), token, 0)


def test_a_session_is_over_when_its_token_is_taken_away_or_replaced():
    sessions, tokens, cookie = begun()
    assert sessions.read(cookie, tokens, 59) == Principal("ann", Role.VIEWER)
    assert sessions.read(cookie, Tokens([]), 1) is None
    assert sessions.read(cookie, Tokens([Token("ann", "viewer", "another-secret-of-hers")]), 1) is None


def test_nobody_can_write_themselves_another_role():
    sessions, tokens, cookie = begun("viewer")
    payload, _, signature = cookie.partition(".")
    claims = json.loads(urlsafe_b64decode(payload))
    forged = urlsafe_b64encode(json.dumps({**claims, "role": "admin"}).encode()).decode()
    assert sessions.read(f"{forged}.{signature}", tokens, 1) is None


@given(st.one_of(st.text(), st.text(alphabet=st.characters(codec=None, categories=("Cs", "Lu")))))
def test_no_text_is_a_session_or_a_token_by_accident(text):
    sessions, tokens, _ = begun()
    assert sessions.read(text, tokens, 1) is None
    assert tokens.find(text) is None


def test_ending_sessions_without_end_keeps_memory_bounded_and_ends_them_all():
    sessions, tokens, kept = begun()
    sessions.MOST_ENDED = 3
    for _ in range(4):
        sessions.end(sessions.begin(Principal("ann", Role.VIEWER), None, 0), 1)
    assert len(sessions._ended) <= 3
    assert sessions.read(kept, tokens, 1) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ann", "viewer", "short"), "secret must have at least 16 characters"),
        (("ann", "root", SECRET), "role must be 'viewer', 'operator' or 'admin' (got 'root')"),
        (("", "viewer", SECRET), "name must be a non-empty string"),
        (("ann", "viewer"), "needs either the secret or its sha256"),
    ],
)
def test_a_token_that_is_no_good_says_why_without_showing_it(arguments, message):
    with pytest.raises(ConfigError) as caught:
        Token(*arguments)
    assert message in str(caught.value)
    assert "short" not in str(caught.value)


def test_a_token_may_be_given_by_its_digest_or_by_a_variable(monkeypatch):
    import hashlib

    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    monkeypatch.setenv("OPS_TOKEN", SECRET)
    for table in ({"sha256": digest}, {"token": SECRET}, {"token_env": "OPS_TOKEN"}):
        tokens = Tokens([{"name": "ops", "role": "operator", **table}])
        assert tokens.find(SECRET).name == "ops"
    for table in ({"sha256": "abc"}, {"token_env": "NOT_SET"}, {"secret": SECRET}):
        with pytest.raises(ConfigError):
            Tokens([{"name": "ops", "role": "operator", **table}])


def test_every_token_is_compared_whichever_fits(monkeypatch):

    from everkeel.control import access

    compared = []
    monkeypatch.setattr(access.hmac, "compare_digest", lambda a, b: compared.append(a) or a == b)
    tokens = Tokens([Token(name, "viewer", name * 16) for name in "abc"])
    for secret in ("a" * 16, "c" * 16, "x" * 16):
        compared.clear()
        tokens.find(secret)
        assert len(compared) == 3
