"""The process-wide switch turns every policy into a plain call."""

from __future__ import annotations

import asyncio

import pytest

from everkeel import disable, enable, retry
from everkeel.compose import source, weave
from everkeel.runtime import switch
from everkeel.testing import Flaky

FAILS_TWICE = """
from everkeel import retry
from everkeel.testing import Flaky

fetch = Flaky(OSError, OSError, "answer")
try:
    print(retry(backoff=0)(lambda: fetch())())
except OSError:
    print("failed after", fetch.calls)
"""


def test_disabled_a_policy_only_calls(fresh_everkeel):
    fetch = Flaky(OSError)
    disable()
    with pytest.raises(OSError):
        retry(backoff=0).call(fetch)
    assert fetch.calls == 1


def test_enabled_again_it_works_as_before(fresh_everkeel):
    policy = retry(backoff=0)
    disable()
    enable()
    assert policy.call(Flaky(OSError, "answer")) == "answer"


def test_a_decorated_function_follows_the_switch(fresh_everkeel):
    fetch = Flaky(OSError)
    guarded = retry(backoff=0)(lambda: fetch())
    for calls, act in ((3, enable), (4, disable), (5, disable), (8, enable)):
        act()
        with pytest.raises(OSError):
            guarded()
        assert fetch.calls == calls


def test_disabled_nothing_of_the_policy_is_woven_in(fresh_everkeel):
    @retry(backoff=0)
    def fetch(url: str) -> str:
        return url

    disable()
    assert source(weave(fetch)) == "def fetch(url):\n    result = fn(url)\n    return result\n"


def test_disabled_nothing_is_counted(fresh_everkeel):
    policy = retry(backoff=0)
    disable()
    policy.call(len, "")
    assert policy.snapshot()["success"] == 0


def test_disabled_a_block_lets_everything_pass(gate):
    policy = gate("payments", limit=1)
    disable()
    with policy, policy, policy.entry():
        assert policy.snapshot()["inside"] == 0


def test_disabled_coroutine_functions_and_generators_only_run(fresh_everkeel):
    calls = []

    @retry(backoff=0)
    async def fetch() -> None:
        calls.append("async")
        raise OSError

    @retry(backoff=0)
    def feed():
        calls.append("generator")
        raise OSError
        yield

    disable()
    with pytest.raises(OSError):
        asyncio.run(fetch())
    with pytest.raises(OSError):
        list(feed())
    assert calls == ["async", "generator"]


def test_a_call_in_flight_keeps_what_it_began_with(fresh_everkeel):
    outcomes = iter([OSError, "answer"])

    @retry(backoff=0)
    def fetch():
        outcome = next(outcomes)
        if outcome is OSError:
            disable()
            raise OSError
        return outcome

    assert fetch() == "answer"
    assert not switch.on


@pytest.mark.parametrize("value", ["false", "False", "0", "no", "off", " OFF "])
def test_the_environment_can_start_a_process_disabled(in_a_new_process, value):
    assert in_a_new_process(FAILS_TWICE, EVERKEEL_ENABLED=value) == "failed after 1\n"


@pytest.mark.parametrize("value", ["true", "1", "yes", ""])
def test_anything_else_in_the_environment_leaves_it_enabled(in_a_new_process, value):
    assert in_a_new_process(FAILS_TWICE, EVERKEEL_ENABLED=value) == "answer\n"


def test_a_process_started_disabled_can_be_enabled(in_a_new_process):
    program = "from everkeel import enable; enable()\n" + FAILS_TWICE
    assert in_a_new_process(program, EVERKEEL_ENABLED="false") == "answer\n"
