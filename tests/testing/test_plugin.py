"""The pytest plugin, as a project that has Everkeel installed sees it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

STRICT = """
[pytest]
filterwarnings = error
strict = true
asyncio_default_fixture_loop_scope = function
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makefile(".ini", pytest=STRICT)
    return pytester


def outcomes(project: pytest.Pytester, test: str, *arguments: str) -> dict[str, int]:
    project.makepyfile(test)
    return project.runpytest("-p", "no:randomly", "-p", "no:cacheprovider", *arguments).parseoutcomes()


# ------------------------------------------------------------------ virtual time in sync tests


def test_a_sync_test_gets_a_clock_that_jumps(project: pytest.Pytester) -> None:
    test = """
    from everkeel import sleep
    from everkeel.runtime.clock import DEFAULT

    def test_virtual(virtual_time):
        sleep(3600)
        assert virtual_time.monotonic() == 3600 == DEFAULT.monotonic()

    def test_real():
        assert DEFAULT.monotonic() != 3600
    """
    assert outcomes(project, test) == {"passed": 2}


def test_the_marker_says_how_virtual_time_begins(project: pytest.Pytester) -> None:
    test = """
    import pytest

    @pytest.mark.virtual_time(start=100, wall=0, seed=7)
    def test_begin(virtual_time):
        assert (virtual_time.monotonic(), virtual_time.time(), virtual_time.seed) == (100, 0, 7)
    """
    assert outcomes(project, test) == {"passed": 1}


def test_the_command_line_chooses_the_seed(project: pytest.Pytester) -> None:
    test = """
    def test_seed(virtual_time):
        assert virtual_time.seed == 7
    """
    assert outcomes(project, test, "--everkeel-seed=7") == {"passed": 1}


def test_a_failed_test_reports_seed_and_sleeps(project: pytest.Pytester) -> None:
    project.makepyfile("""
    def test_failing(virtual_time):
        virtual_time.sleep(1.5)
        assert False
    """)
    project.runpytest("--everkeel-seed=3").stdout.fnmatch_lines(["*ended at 1.5 s, seed 3, 1 sleeps: [[]1.5[]]*"])


# ------------------------------------------------------------------ virtual time in async tests

ASYNC_TEST = """
    import asyncio, pytest
    from everkeel.runtime.clock import DEFAULT

    {mark}
    async def test_virtual(virtual_time):
        await asyncio.sleep(3600)
        await DEFAULT.asleep(60)
        assert virtual_time.monotonic() == 3660 == asyncio.get_running_loop().time() == DEFAULT.monotonic()

    {mark}
    @pytest.mark.parametrize("seconds", [1, 2])
    async def test_parametrized(seconds, virtual_time):
        await asyncio.sleep(seconds)
        assert virtual_time.monotonic() == seconds

    class TestMethods:
        {mark}
        async def test_method(self, virtual_time):
            await asyncio.sleep(5)
            assert virtual_time.monotonic() == 5

    @pytest.mark.usefixtures("virtual_time")
    {mark}
    async def test_used():
        await asyncio.sleep(3600)
        assert DEFAULT.monotonic() == 3600
"""

PLUGINS = {
    "neither": ("", ("-p", "no:asyncio", "-p", "no:anyio")),
    "both, but not asked": ("", ()),
    "pytest-asyncio": ("@pytest.mark.asyncio", ()),
    "pytest-asyncio in auto mode": ("", ("--asyncio-mode=auto",)),
    "anyio": ("@pytest.mark.anyio", ()),
    "anyio in auto mode": ("", ("-p", "no:asyncio", "--anyio-mode=auto")),
}
ONLY_ASYNCIO = """
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""


@pytest.mark.parametrize("plugin", PLUGINS)
def test_an_async_test_runs_on_a_virtual_loop_of_the_same_clock(project: pytest.Pytester, plugin: str) -> None:
    mark, arguments = PLUGINS[plugin]
    project.makeconftest(ONLY_ASYNCIO)
    if "no:asyncio" in arguments:
        project.makefile(".ini", pytest="[pytest]\nfilterwarnings = error")
    assert outcomes(project, ASYNC_TEST.format(mark=mark), *arguments) == {"passed": 5}


@pytest.mark.parametrize(
    ("fixture", "mark"), [("pytest_asyncio.fixture", "asyncio"), ("pytest.fixture", "anyio")], ids=["asyncio", "anyio"]
)
def test_async_fixtures_share_the_loop_in_whatever_order_they_are_asked_for(
    project: pytest.Pytester, fixture: str, mark: str
) -> None:
    project.makeconftest(ONLY_ASYNCIO)
    test = f"""
    import asyncio, pytest, pytest_asyncio

    @{fixture}
    async def ready():
        await asyncio.sleep(10)
        yield asyncio.get_running_loop()
        await asyncio.sleep(10)

    @pytest.mark.{mark}
    async def test_before(ready, virtual_time):
        assert virtual_time.monotonic() == 10
        assert ready is asyncio.get_running_loop()

    @pytest.mark.{mark}
    async def test_after(virtual_time, ready):
        assert virtual_time.monotonic() == 10
        assert ready is asyncio.get_running_loop()
    """
    assert outcomes(project, test) == {"passed": 2}


@pytest.mark.parametrize("mark", ["asyncio", "anyio"])
def test_a_test_beside_it_keeps_real_time(project: pytest.Pytester, mark: str) -> None:
    project.makeconftest(ONLY_ASYNCIO)
    test = f"""
    import asyncio, pytest
    from everkeel.testing import VirtualLoop

    @pytest.mark.{mark}
    async def test_virtual(virtual_time):
        assert isinstance(asyncio.get_running_loop(), VirtualLoop)

    @pytest.mark.{mark}
    async def test_real():
        assert not isinstance(asyncio.get_running_loop(), VirtualLoop)

    @pytest.mark.{mark}
    async def test_virtual_again(virtual_time):
        assert isinstance(asyncio.get_running_loop(), VirtualLoop)
    """
    assert outcomes(project, test) == {"passed": 3}


def test_a_loop_that_tests_share_is_refused_with_pytest_asyncio(project: pytest.Pytester) -> None:
    project.makepyfile("""
    import pytest

    @pytest.mark.asyncio(loop_scope="module")
    async def test_shared(virtual_time): ...
    """)
    result = project.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["virtual_time needs an event loop of its own, but this test shares one*"])


def test_a_loop_that_tests_share_is_refused_with_anyio(project: pytest.Pytester) -> None:
    project.makepyfile("""
    import pytest

    @pytest.fixture(scope="module")
    def anyio_backend():
        return "asyncio"

    @pytest.fixture(scope="module")
    async def server():
        yield "server"

    @pytest.mark.anyio
    async def test_shared(server, virtual_time): ...
    """)
    result = project.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["virtual_time needs an event loop of its own, but an async fixture of a wider scope*"])


def test_another_backend_of_anyio_is_skipped(project: pytest.Pytester) -> None:
    test = """
    import pytest

    @pytest.fixture
    def anyio_backend():
        return "trio"

    @pytest.mark.anyio
    async def test_on_trio(virtual_time): ...
    """
    assert outcomes(project, test) == {"skipped": 1}


def test_a_deadlock_fails_the_test_instead_of_hanging_it(project: pytest.Pytester) -> None:
    project.makepyfile("""
    import asyncio, pytest

    @pytest.mark.virtual_time(patience=0.05)
    @pytest.mark.asyncio
    async def test_stuck(virtual_time):
        await asyncio.Event().wait()

    @pytest.mark.virtual_time(patience=0.05)
    async def test_stuck_without_a_plugin(virtual_time):
        await asyncio.Event().wait()
    """)
    result = project.runpytest()
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*deadlock in virtual time: 1 task waits for something that can never happen:*"])


def test_the_marker_shuffles_tasks(project: pytest.Pytester) -> None:
    test = """
    import asyncio, pytest

    @pytest.mark.virtual_time(shuffle=True, seed=1)
    async def test_order(virtual_time):
        order = []

        async def act(number):
            order.append(number)

        await asyncio.gather(*map(act, range(10)))
        assert order != sorted(order)
    """
    assert outcomes(project, test) == {"passed": 1}


def test_an_async_test_without_virtual_time_is_left_to_others(project: pytest.Pytester) -> None:
    assert outcomes(project, "async def test_nobodys(): ...") == {"failed": 1}


# ------------------------------------------------------------------ the other fixtures


def test_fresh_everkeel_forgets_policies_and_what_they_learned(project: pytest.Pytester) -> None:
    test = """
    from everkeel import registry, retry

    policy = retry("mine", backoff=0)
    policy.call(int)

    def test_fresh(fresh_everkeel):
        assert list(fresh_everkeel) == []
        assert policy.snapshot()["success"] == 0
        retry("mine")

    def test_as_before():
        assert list(registry) == [policy]
    """
    project.makepyfile(test)
    result = project.runpytest_subprocess("-p", "no:randomly")  # a registry without our own policies in it
    result.assert_outcomes(passed=2)


def test_record_events_hears_every_policy_during_the_test(project: pytest.Pytester) -> None:
    test = """
    from everkeel import retry
    from everkeel.events import Retrying
    from everkeel.testing import Flaky
    from everkeel.runtime import events

    def test_recorded(record_events, virtual_time):
        retry().call(Flaky(OSError, "answer"))
        assert record_events.names() == ["Retrying", "RetrySucceeded", "Succeeded"]
        assert len(record_events.of(Retrying)) == 1

    def test_nobody_listens_any_more():
        assert events.everywhere == ()
    """
    assert outcomes(project, test) == {"passed": 2}


def test_the_plugin_is_cheap_to_import() -> None:
    code = "import sys, pytest, everkeel.testing.plugin; print('asyncio' in sys.modules, 'random' in sys.modules)"
    alone = subprocess.run(  # another process: this one has imported everything already
        [sys.executable, "-c", "import sys, pytest; print('asyncio' in sys.modules, 'random' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout == alone.stdout
