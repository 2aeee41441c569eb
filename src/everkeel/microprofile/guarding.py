"""One method of one class, ready to be called: its plan, its policies, and the way a call takes through them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, cast

from everkeel.events import Retrying
from everkeel.microprofile import maintenance, metrics
from everkeel.microprofile.assembly import Plan, parts_of
from everkeel.microprofile.calls import CALL, Call, Carried, CarriedOut, real, the_call
from everkeel.microprofile.driver import driver, in_a_worker, to_the_end
from everkeel.microprofile.exceptions import FaultToleranceException
from everkeel.microprofile.extras import CircuitBreakerName
from everkeel.microprofile.results import AsyncResult
from everkeel.policies.circuit_breaker.policy import CircuitBreaker
from everkeel.runtime.clock import DEFAULT
from everkeel.runtime.policy import AnyPolicy, Policy
from everkeel.runtime.weave import woven


class Guarded:
    """What a call of a guarded method goes through. One per bean class and method."""

    __slots__ = ("_fn", "_parts", "_through", "_waits", "metrics", "plan")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.metrics = metrics.registry.register(
            plan.tag,
            retry=plan.has("Retry"),
            timeout=plan.has("Timeout"),
            circuit_breaker=plan.has("CircuitBreaker"),
            bulkhead=plan.has("Bulkhead"),
            fallback=plan.has("Fallback"),
            rate_limit=plan.has("RateLimit"),
            asynchronous=plan.has("Asynchronous"),
        )
        self._parts = parts_of(plan, self.metrics)
        self._waits = plan.has("Bulkhead")
        again = self.policy("retry")
        if self._waits and again is not None:
            again.subscribe(_settle, Retrying)  # whoever waits for the bulkhead's decision need not wait for the next
        name = plan.records.get("CircuitBreakerName")
        if isinstance(name, CircuitBreakerName):
            maintenance.join(name.value, plan.tag, cast("CircuitBreaker", self.policy("circuit_breaker")))
        self._fn = plan.target.fn
        bodies = {"sync": self._fn, "coroutine": self._fn, "future": self._in_thread, "stage": self._to_the_end}
        self._through: Callable[..., Any] = woven(bodies[plan.kind], self._parts)
        """The body inside of its policies, as one function; woven anew when one of them changes."""

    def policy(self, policy_type: str) -> AnyPolicy | None:
        """The native policy of this type that does the work, where there is one."""
        found = (part for part in self._parts if isinstance(part, Policy) and part.type == policy_type)
        return next(found, None)

    def callable(self) -> Callable[..., Any]:
        """What the decorated method calls."""
        return {"sync": self.call, "coroutine": self.acall, "future": self.launch, "stage": self.launch}[self.plan.kind]

    # ------------------------------------------------------------------ the ways through the policies

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """A sync method: everything happens here."""
        try:
            return self._through(*args, **kwargs)
        except Carried as error:
            original = error.error
        raise original  # outside of the handler, so that nothing is chained onto it

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """A coroutine function."""
        try:
            return await self._through(*args, **kwargs)
        except Carried as error:
            original = error.error
        raise original

    async def _in_thread(self, *args: Any, **kwargs: Any) -> Any:
        return await in_a_worker(self.plan.tag, self._fn, args, kwargs)

    async def _to_the_end(self, *args: Any, **kwargs: Any) -> Any:
        begun = await in_a_worker(self.plan.tag, self._fn, args, kwargs, stage=True)
        return await to_the_end(_awaitable(begun, self.plan.tag))

    # ------------------------------------------------------------------ asynchronous calls

    def launch(self, *args: Any, **kwargs: Any) -> AsyncResult[Any]:
        """Begin, and return at once with what will hold the result."""
        call = Call(launched=True)
        execution = _Execution(call)
        result: AsyncResult[Any] = AsyncResult(execution.cancel)
        context = copy_context()
        context.run(CALL.set, call)
        main = self._deliver(result, call, args, kwargs)
        loop = _running_loop()
        if loop is not None and self.plan.kind == "stage":
            execution.began(loop, loop.create_task(main, context=context))
            return result
        if loop is None and self._waits:
            _begin_and_settle(main, context, execution, call)
        else:
            driver().start(main, context, execution.began)
        return result

    async def _deliver(
        self, result: AsyncResult[Any], call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Everything is counted and given back when the policies are done: only then may anybody see the result."""
        try:
            value = await self._through(*args, **kwargs)
            if self.plan.kind == "stage":
                result.succeed(value)
            else:
                await self._mirror(result, value)
        except asyncio.CancelledError:
            result.cancel()
        except (Carried, CarriedOut) as error:
            result.fail(error.error)
        except BaseException as error:
            result.fail(real(error))
        finally:
            call.settled()

    async def _mirror(self, result: AsyncResult[Any], inner: Any) -> None:
        """A method of future kind returned: its policies are done, and the outcome is what becomes of its future."""
        if hasattr(inner, "add_done_callback") and not asyncio.isfuture(inner) and hasattr(inner, "result"):
            if type(inner).result in _STOCK:
                result.follow(inner)
            else:  # an implementation of the user's own, which need not have callbacks that work
                result.take(await _settled(inner, self.plan.tag))
        elif hasattr(inner, "__await__"):
            result.succeed(await to_the_end(inner))
        else:
            raise _no_future(inner, self.plan.tag)


_STOCK = (AsyncResult.result,)


async def _settled(inner: Any, where: str) -> Any:
    """Wait in a worker until a future of the user's own is done."""

    def wait() -> None:
        if not inner.done():
            try:
                inner.result()
            except BaseException:
                pass  # it is asked again by whoever takes over its outcome

    await in_a_worker(where, wait, (), {})
    return inner


class _Execution:
    """Where a call runs, once that is known, so that it can be cancelled from anywhere."""

    __slots__ = ("_call", "_lock", "_loop", "_task", "_wanted")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._wanted = False

    def began(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        """It has a task."""
        with self._lock:
            self._loop, self._task = loop, task
            wanted = self._wanted
        if wanted:
            task.cancel()

    def cancel(self, interrupt: bool) -> None:
        """The caller has given up: no attempt begins from here on."""
        self._call.interrupts = interrupt
        with self._lock:
            self._wanted = True
            loop, task = self._loop, self._task
        if loop is None or task is None:
            return
        if loop is _running_loop():
            task.cancel()  # now: what has not begun yet is never begun
        else:
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                if not loop.is_closed():
                    raise


def _settle(event: Retrying) -> None:
    the_call().settled()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _begin_and_settle(main: Any, context: Context, execution: _Execution, call: Call) -> None:
    """Begin, and wait until the bulkhead has decided: a call it rejects returns with the rejection already there."""
    settled = threading.Event()
    call.on_settled = settled.set
    driver().start(main, context, execution.began)
    DEFAULT.wait(settled, None)


def _awaitable(begun: Any, where: str) -> Any:
    if hasattr(begun, "__await__"):
        return begun
    if hasattr(begun, "add_done_callback"):
        return asyncio.wrap_future(begun)
    raise _no_future(begun, where)


def _no_future(value: Any, where: str) -> FaultToleranceException:
    return FaultToleranceException(f"{where} is asynchronous and returned {value!r}, which is no future")
