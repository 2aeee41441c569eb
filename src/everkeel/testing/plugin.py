"""The pytest plugin: virtual time, a fresh Everkeel and recorded events, each for one test.

It is loaded wherever Everkeel is installed, so everything it needs is imported when a test asks for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import asyncio

    from everkeel.runtime.registry import Registry
    from everkeel.testing import EventRecorder, VirtualClock, VirtualLoop

_LOOP_FACTORY = pytest.StashKey["Callable[[], VirtualLoop]"]()
_CLOCK = pytest.StashKey["VirtualClock"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--everkeel-seed`: what chance begins with in virtual time."""
    group = parser.getgroup("everkeel")
    group.addoption("--everkeel-seed", type=int, default=0, help="seed of the fixture virtual_time (default: 0)")


def pytest_configure(config: pytest.Config) -> None:
    """The marker by which a test says how its virtual time begins."""
    config.addinivalue_line(
        "markers",
        "virtual_time(start=0.0, wall=..., seed=0, shuffle=False): how the fixture virtual_time begins; "
        "shuffle runs async tasks that are ready together in an order that depends on the seed",
    )


# ------------------------------------------------------------------ fixtures


@pytest.fixture
def virtual_time(request: pytest.FixtureRequest) -> Generator[VirtualClock]:
    """Time that jumps, for everything in this test that has no clock of its own: gives the `VirtualClock`.

    Async tests and fixtures run on an event loop of this clock, with pytest-asyncio, with anyio, or with neither.

        async def test_patience_costs_nothing(virtual_time):
            await asyncio.sleep(3600)
            assert virtual_time.monotonic() == 3600
    """
    from everkeel.runtime.clock import use_clock
    from everkeel.testing import VirtualClock, VirtualLoop

    marker = request.node.get_closest_marker("virtual_time")
    options: dict[str, Any] = {"seed": request.config.getoption("--everkeel-seed")}
    if marker is not None:
        options.update(marker.kwargs)
    shuffle = options.pop("shuffle", False)
    clock = VirtualClock(**options)
    request.node.stash[_CLOCK] = clock
    request.node.stash[_LOOP_FACTORY] = lambda: VirtualLoop(clock, shuffle=shuffle)
    _refuse_a_shared_loop(request)
    with ExitStack() as stack:
        stack.enter_context(use_clock(clock))
        if "anyio_backend" in request.fixturenames:
            _lend_anyio_a_loop(request, stack)
        yield clock


@pytest.fixture
def fresh_everkeel() -> Generator[Registry]:
    """An empty registry, and every policy as on its first day, for the time of this test: gives the registry.

    def test_the_name_is_free(fresh_everkeel):
        retry("payments")
    """
    from everkeel.testing.isolation import fresh_everkeel

    with fresh_everkeel() as registry:
        yield registry


@pytest.fixture
def record_events() -> Generator[EventRecorder]:
    """Every event of every policy during this test, in a list that fills itself.

    def test_it_says_that_it_tries_again(record_events, virtual_time):
        fetch()
        assert record_events.names() == ["Retrying", "RetrySucceeded", "Succeeded"]
    """
    from everkeel.testing.recorder import record_events

    with record_events() as recorder:
        yield recorder


# ------------------------------------------------------------------ async tests


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Have the virtual loop ready before the first async fixture of a test, and let pytest-asyncio run on it."""
    if fixturedef.scope != "function" or "virtual_time" not in request.fixturenames:
        return (yield)
    runner = fixturedef.argname == "_function_scoped_runner"
    if runner or inspect.iscoroutinefunction(fixturedef.func) or inspect.isasyncgenfunction(fixturedef.func):
        request.getfixturevalue("virtual_time")
    if not runner:
        return (yield)
    # pytest-asyncio has a hook to choose loops, but whoever implements it chooses them for every test of the project.
    # So the fixture by which it gets its runner is replaced instead, for this test only.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixturedef, "func", _virtual_runner(request.node.stash[_LOOP_FACTORY]))
        return (yield)


def _virtual_runner(loop_factory: Callable[[], VirtualLoop]) -> Callable[..., Generator[asyncio.Runner]]:
    def runner(**_: object) -> Generator[asyncio.Runner]:
        import asyncio

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            yield runner

    return runner


def _refuse_a_shared_loop(request: pytest.FixtureRequest) -> None:
    """pytest-asyncio can run many tests on one loop, which cannot have the time of one of them."""
    marker = request.node.get_closest_marker("asyncio")
    if marker is None or not request.config.pluginmanager.has_plugin("asyncio"):
        return
    scope = marker.kwargs.get("loop_scope") or request.config.getini("asyncio_default_test_loop_scope")
    if scope != "function":
        pytest.fail(
            f"virtual_time needs an event loop of its own, but this test shares one (loop_scope={scope!r}): "
            "mark it with @pytest.mark.asyncio(loop_scope='function')",
            pytrace=False,
        )


def _lend_anyio_a_loop(request: pytest.FixtureRequest, stack: ExitStack) -> None:
    """anyio keeps one runner while anybody uses it: be the first to, and it is ours."""
    from anyio.pytest_plugin import extract_backend_and_options, get_runner

    from everkeel.testing import VirtualLoop

    backend, options = extract_backend_and_options(request.getfixturevalue("anyio_backend"))
    if backend != "asyncio":
        pytest.skip(f"virtual_time drives asyncio, not {backend}")
    loop_factory = request.node.stash[_LOOP_FACTORY]
    runner: Any = stack.enter_context(get_runner(backend, {**options, "loop_factory": loop_factory}))
    loop = runner.get_loop()
    if not isinstance(loop, VirtualLoop) or loop.clock is not request.node.stash[_CLOCK]:
        pytest.fail(
            "virtual_time needs an event loop of its own, but an async fixture of a wider scope keeps anyio's in use: "
            "give that fixture the scope 'function', or leave virtual_time out",
            pytrace=False,
        )


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that asks for virtual time when no other plugin does."""
    clock = pyfuncitem.stash.get(_CLOCK, None)
    if clock is None or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: value for name, value in pyfuncitem.funcargs.items() if name in names}
    import asyncio

    with asyncio.Runner(loop_factory=pyfuncitem.stash[_LOOP_FACTORY]) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test says what it takes to see the same again."""
    report = yield
    clock = item.stash.get(_CLOCK, None)
    if report.failed and clock is not None:
        slept = f", {len(clock.sleeps)} sleeps: {clock.sleeps[:20]}" if clock.sleeps else ""
        report.sections.append(("virtual time", f"ended at {clock.monotonic():g} s, seed {clock.seed}{slept}"))
    return report
