"""`everkeel policies|breaker|limit|config|events|serve` against a real server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from everkeel import circuit_breaker, rate_limit
from everkeel.cli import main
from everkeel.cli.remote import Remote, assignments, path_of


@pytest.fixture
def run(plane, serve, secrets, monkeypatch, capsys):
    """Runs a command with an admin's token; answers exit code, standard output and standard error."""
    with serve(plane) as url:
        monkeypatch.setenv("EVERKEEL_URL", url + "/everkeel")
        monkeypatch.setenv("EVERKEEL_TOKEN", secrets["admin"])

        def running(*words: str) -> tuple[int, str, str]:
            code = main(words)
            told = capsys.readouterr()
            return code, told.out, told.err

        running.url = url
        yield running


def test_policies_are_listed_filtered_and_shown(run, fetch, payments):
    payments.force_open()
    code, out, _ = run("policies")
    assert code == 0
    assert out.splitlines()[1:] == [
        "retry            fetch     enforce",
        "circuit_breaker  payments  enforce  open",
    ]
    assert "fetch" not in run("policies", "--state", "open")[1]
    assert [one["name"] for one in json.loads(run("policies", "--type", "retry", "--json")[1])["policies"]] == ["fetch"]
    assert run("policies", "--name", "nobody*")[:2] == (0, "no policies fit\n")
    code, out, _ = run("policies", "show", "retry", "fetch")
    assert re.search(r"attempts +3 +default", out)
    assert re.search(r"success +0", out)
    assert json.loads(run("policies", "show", "retry", "fetch", "--json")[1])["metrics"]["success"] == 0


def test_a_policy_is_switched_and_its_counters_reset(run, fetch):
    assert run("policies", "shadow", "retry", "fetch")[1] == "retry fetch: enforce -> shadow\n"
    assert fetch.mode == "shadow"
    assert run("policies", "disable", "retry", "fetch", "--json")[0] == 0
    assert fetch.mode == "off"
    assert run("policies", "enable", "retry", "fetch")[0] == 0
    fetch.call(int)
    assert run("policies", "reset", "retry", "fetch")[0] == 0
    assert json.loads(run("policies", "show", "retry", "fetch", "--json")[1])["metrics"]["success"] == 0


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("open", "open"),
        ("force-closed", "closed"),
        ("half-open", "half_open"),
        ("close", "closed"),
        ("reset", "closed"),
    ],
)
def test_a_circuit_is_set_by_hand(run, payments, word, state):
    code, out, _ = run("breaker", word, "payments")
    assert (code, out) == (0, f"circuit_breaker payments: closed -> {state}\n")
    assert payments.snapshot()["state"] == state


def test_a_circuit_of_one_key_is_set(run):
    tenants = circuit_breaker("tenants", key=lambda tenant: tenant)
    assert run("breaker", "open", "tenants", "--key", "acme")[1] == "circuit_breaker tenants [acme]: new -> open\n"
    assert tenants.snapshot()["states"]["open"] == 1
    assert re.search(r"acme +open", run("breaker", "show", "tenants")[1])
    assert "tenants" in run("breaker")[1]
    code, _, err = run("breaker", "reset", "tenants", "--key", "nobody")
    assert (code, err) == (1, "everkeel: circuit breaker 'tenants' has not seen the key 'nobody'\n")


def test_a_limit_is_shown_changed_and_drained(run):
    limit = rate_limit(100, "search")
    assert "search" in run("limit")[1]
    assert run("limit", "set", "search", "permits=50", "per=10s")[1] == "rate_limit search: permits=50, per=10.0\n"
    assert (limit.config.permits, limit.config.per) == (50, 10.0)
    assert run("limit", "drain", "search", "--seconds", "60")[0] == 0
    assert not limit.try_acquire()
    assert run("limit", "show", "search")[0] == 0


def test_settings_are_read_changed_audited_and_taken_back(run, fetch):
    version = json.loads(run("config", "get", "retry", "fetch", "--json")[1])["version"]
    assert version in run("config", "get", "retry", "fetch")[1]
    words = ("config", "set", "retry", "fetch", "attempts=5", "max_duration=500ms", "--if-match", version)
    assert run(*words)[:2] == (0, "retry fetch: attempts=5, max_duration=0.5\n")
    code, _, err = run(*words)
    assert (code, "no longer those you read" in err) == (1, True)
    assert re.search(
        r"1 +\S+ +admin +config +retry fetch +attempts=3, max_duration=null -> attempts=5", run("config", "audit")[1]
    )
    assert run("config", "rollback", "1")[:2] == (0, "retry fetch: attempts=3, max_duration=null\n")
    assert fetch.config.attempts == 3
    code, _, err = run("config", "set", "retry", "fetch", "attempts=0")
    assert (code, err) == (1, "everkeel: attempts must be at least 1, or null (got 0)\n")


def test_events_are_followed(run, payments, capsys):
    """The first event comes when the stream is known to listen: the policy is opened again and again until then."""
    done = threading.Event()

    def act() -> None:
        while not done.wait(0.01):
            payments.force_open()
            payments.reset()

    thread = threading.Thread(target=act)
    thread.start()
    try:
        code, out, _ = run("events", "--event", "circuit_opened", "--count", "2", "--json")
        assert code == 0
        assert [json.loads(line)["event"] for line in out.splitlines()] == ["circuit_opened"] * 2
        code, out, _ = run("events", "--count", "1")
        assert re.match(r"\S+Z circuit_\w+ circuit_breaker payments", out)
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("breaker", "open"), 2, "open needs NAME"),
        (("policies", "enable", "retry"), 2, "enable needs NAME"),
        (("limit", "set", "search"), 2, "say what to set: name=value"),
        (("config", "set", "retry", "fetch", "attempts"), 2, "settings are written name=value (got 'attempts')"),
        (("policies", "--url", "ftp://x"), 2, "--url must be http"),
        (("policies", "--url", "http://x:port"), 2, "--url has a port that is none"),
        (("policies", "--url", "http://127.0.0.1:1/"), 1, "cannot reach http://127.0.0.1:1/"),
        (("policies", "show", "retry", "nobody"), 1, "there is no retry named 'nobody'"),
        (("policies", "--token", "wrong"), 1, "these credentials are not known, or over"),
        (("policies", "--state", "x", "--mode", "on"), 1, "mode: must be one of enforce, shadow, off"),
    ],
)
def test_what_goes_wrong_is_one_line_and_an_exit_code(run, words, code, complaint):
    told = run(*words)
    assert told[0] == code
    assert told[2].startswith(f"everkeel: {complaint}")
    assert told[2].count("\n") == 1


def test_without_a_token_it_says_where_to_put_one(run, monkeypatch):
    monkeypatch.delenv("EVERKEEL_TOKEN")
    code, _, err = run("policies")
    assert (code, "wants a token: set EVERKEEL_TOKEN" in err) == (1, True)


def test_a_viewer_cannot_change_anything(run, payments, secrets):
    code, _, err = run("breaker", "open", "payments", "--token", secrets["viewer"])
    assert (code, err) == (1, "everkeel: this needs the role operator; 'viewer' has the role viewer\n")


def test_a_server_that_is_no_control_plane_is_recognised_and_no_redirect_followed(serve, run):
    async def elsewhere(scope, receive, send):
        if scope["type"] == "http":
            status, body = (302, b"") if scope["path"].endswith("health") else (200, b"<html>")
            headers = [(b"location", b"http://evil.example/")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    with serve(elsewhere) as url:
        assert "is no control plane" in run("policies", "--url", url)[2]
        with pytest.raises(Exception, match="is no control plane: it answered 302"):
            Remote(url, "secret", 5).get("/health")


def test_nothing_that_comes_from_outside_moves_the_cursor(run):
    tenants = circuit_breaker("tenants", key=lambda tenant: tenant)
    tenants.force_open(key="acme\x1b[2J\x9b1A")
    out = run("breaker", "show", "tenants")[1]
    assert "acme\\x1b[2J\\x9b1A" in out
    assert "\x1b" not in out


def test_colour_is_for_terminals(run, payments, monkeypatch):
    assert "\x1b" not in run("policies")[1]


@pytest.mark.parametrize("command", ["policies", "breaker", "limit", "events", "serve"])
def test_help_teaches_by_example(command, capsys):
    assert main([command, "--help"]) == 0
    assert f"examples:\n  everkeel {command}" in capsys.readouterr().out


def test_words_are_read_as_json_where_they_are_json():
    assert assignments(["a=1", "b=x=y", 'c=["d"]', "e=", "f=true"]) == {
        "a": 1,
        "b": "x=y",
        "c": ["d"],
        "e": "",
        "f": True,
    }
    assert path_of("config", "retry", "a/b c") == "/config/retry/a%2Fb%20c"


# ------------------------------------------------------------------ everkeel serve

MODULE = "from everkeel import circuit_breaker\npayments = circuit_breaker('payments')\n"


@pytest.mark.parametrize("port", ["99999", "-1", "http"])
def test_serve_says_which_ports_there_are(port, capsys):
    assert main(["serve", f"--port={port}"]) == 2
    assert f"must be a number from 0 to 65535 (got '{port}')" in capsys.readouterr().err


def test_serve_runs_alone_and_stops_at_once_though_a_stream_is_open(tmp_path, capsys, monkeypatch):
    (tmp_path / "shop.py").write_text(MODULE)
    (tmp_path / "everkeel.yaml").write_text(
        "circuit_breaker:\n  payments:\n    failure_rate: 0.8\n"
        "control:\n  tokens:\n    - {name: vic, role: viewer, token: a-token-in-the-file}\n"
    )
    command = [sys.executable, "-m", "everkeel.cli", "serve", "--import", "shop", "--port", "0", "--new-token"]
    process = subprocess.Popen(
        [*command, "--config", "everkeel.yaml"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, env={**os.environ}
    )
    try:
        text = ""
        while "running on" not in text:
            line = process.stderr.readline()
            assert line, text
            text += line
        monkeypatch.setenv("EVERKEEL_TOKEN", re.search(r"EVERKEEL_TOKEN=(\S+)", text)[1])
        monkeypatch.setenv("EVERKEEL_URL", re.search(r"running on (\S+)", text)[1])
        assert main(["breaker", "open", "payments"]) == 0
        assert main(["config", "get", "circuit_breaker", "payments", "--token", "a-token-in-the-file"]) == 0
        assert re.search(r"failure_rate +0.8 +everkeel.yaml:3", capsys.readouterr().out)
        stream = Remote(os.environ["EVERKEEL_URL"], os.environ["EVERKEEL_TOKEN"], 10).follow("/stream", {})
        assert next(stream)[0] == "snapshot"
        process.send_signal(signal.SIGTERM)
        assert [kind for kind, _ in stream][-1] == "bye"
        process.wait(10)
        assert "serve-" in process.stderr.read()  # the audit log is in the log
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
