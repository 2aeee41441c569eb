"""Spans: one for the call, one for each attempt of a retry, and what policies decided as events on them.

While calls are traced, every policy has a `CallSpan` around its layers, and a retry an `AttemptSpan` inside of them.
Several policies around one function make one call: the outermost has the span, and those inside know by the frame in
the context that it is theirs. Nothing of this exists while calls are not traced.

A generator's span lasts until it ends, but is the current one only until its first item is there: after that the code
of its consumer runs in between, in the same context.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import ContextVar, Token
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from everkeel.errors import RejectedError
from everkeel.runtime.outcome import NO_RESULT, Verdict
from everkeel.runtime.state import CallKind, State
from everkeel.runtime.stream import abegin, begin, resume
from everkeel.runtime.weave import Rest
from everkeel.telemetry.extras import missing
from everkeel.telemetry.fields import event_name, plain, values_of
from everkeel.telemetry.names import POLICY_NAME, POLICY_TYPE, identity

try:
    from opentelemetry import context, trace
    from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode, Tracer
except ImportError as error:  # pragma: no cover - the tests have it; one runs without it in a process of its own
    raise missing("everkeel.telemetry.opentelemetry", "opentelemetry-api", "opentelemetry") from error

if TYPE_CHECKING:
    from everkeel.events import Event
    from everkeel.runtime.policy import AnyPolicy


class Tries:
    """The attempts of one call of one retry so far."""

    __slots__ = ("count", "delay", "last")

    def __init__(self) -> None:
        self.count = 0
        self.delay = 0.0
        self.last: SpanContext | None = None


class Frame(NamedTuple):
    """Where in a traced call this context is."""

    name: str
    """What the call's span is called."""
    inside: tuple[CallSpan, ...]
    """Layers of the same call that are still to come: they have no span of their own. None are left in user code."""
    tries: Tries


FRAME: ContextVar[Frame | None] = ContextVar("everkeel.span_frame", default=None)


class Opened:
    """A span that has begun, and the frame in which it is current. `span` is None where the call has one already."""

    __slots__ = ("_attached", "_frame", "_token", "span")

    def __init__(self, span: Span | None, frame: Frame | None) -> None:
        self.span, self._frame = span, frame
        self._attached: Token[context.Context] | None = None
        self._token: Token[Frame | None] | None = None

    def enter(self) -> None:
        """Be the current one."""
        if self._frame is not None:
            self._token = FRAME.set(self._frame)
        if self.span is not None:
            self._attached = context.attach(trace.set_span_in_context(self.span))

    def leave(self) -> None:
        """Be it no more."""
        if self._attached is not None:
            context.detach(self._attached)
        if self._token is not None:
            try:
                FRAME.reset(self._token)
            except ValueError:  # a block that ends in another context than it began in: that one has no frame of ours
                pass


class SpanLayer(State):
    """A layer that is a span for as long as what is inside of it takes."""

    __slots__ = ("policy", "tracer")
    word = "span"
    policy: AnyPolicy

    def __init__(self, policy: AnyPolicy, tracer: Tracer) -> None:
        self.policy, self.tracer = policy, tracer

    def open(self, fn: Callable[..., Any] | None) -> Opened:
        """Begin a span around `fn`, or around a block."""
        raise NotImplementedError  # pragma: no cover

    def outcome(self, error: BaseException | None, result: Any) -> str:
        """How it ended, in a word."""
        if error is None:
            return "success"
        if not isinstance(error, Exception):
            return "cancelled"
        if isinstance(error, RejectedError):
            return "rejected"
        return "failure" if self.policy.judge(error) is Verdict.FAILURE else "ignored"

    def close(self, opened: Opened, error: BaseException | None, result: Any = NO_RESULT) -> None:
        """End the span, and say how."""
        span = opened.span
        if span is None:
            return
        if span.is_recording():
            outcome = self.outcome(error, result)
            span.set_attribute("everkeel.outcome", outcome)
            if isinstance(error, Exception):
                span.record_exception(error)
            if outcome in ("failure", "rejected"):
                span.set_status(Status(StatusCode.ERROR, None if error is None else f"{type(error).__name__}: {error}"))
        span.end()

    # ------------------------------------------------------------------ calls

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        opened = self.open(fn)
        opened.enter()
        try:
            result = fn(*args, **kwargs)
        except BaseException as error:
            opened.leave()
            self.close(opened, error)
            raise
        opened.leave()
        self.close(opened, None, result)
        return result

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        opened = self.open(fn)
        opened.enter()
        try:
            result = await fn(*args, **kwargs)
        except BaseException as error:
            opened.leave()
            self.close(opened, error)
            raise
        opened.leave()
        self.close(opened, None, result)
        return result

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        opened = self.open(fn)
        try:
            opened.enter()
            try:
                begun = begin(fn, args, kwargs)
            finally:
                opened.leave()
            result = begun.first if begun.items is None else (yield from resume(*begun))
        except BaseException as error:
            self.close(opened, error)
            raise
        self.close(opened, None)
        return result

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        opened = self.open(fn)
        try:
            opened.enter()
            try:
                begun = await abegin(fn, args, kwargs)
            finally:
                opened.leave()
            if begun.items is not None:
                try:
                    yield begun.first
                    async for item in begun.items:
                        yield item
                finally:
                    await begun.items.aclose()
        except BaseException as error:
            self.close(opened, error)
            raise
        self.close(opened, None)

    def fragment(self, kind: CallKind) -> str | None:
        return None  # a seam: it must see what is inside

    # ------------------------------------------------------------------ blocks

    def enter(self) -> Opened:
        opened = self.open(None)
        opened.enter()
        return opened

    def done(self, permit: Opened, result: Any) -> None:
        permit.leave()
        self.close(permit, None, result)

    def failed(self, permit: Opened, error: BaseException) -> None:
        permit.leave()
        self.close(permit, error)

    dropped = failed


class CallSpan(SpanLayer):
    """The span of a call, for the outermost policy of it."""

    __slots__ = ()

    def open(self, fn: Callable[..., Any] | None) -> Opened:
        around = FRAME.get()
        if around is not None and around.inside and around.inside[0] is self:
            return Opened(None, Frame(around.name, around.inside[1:], Tries()))
        name, inside = (self.policy.label, ()) if fn is None else _look_inside(fn)
        span = self.tracer.start_span(name, attributes=identity(self.policy.name, self.policy.type))
        return Opened(span, Frame(name, inside, Tries()))


class AttemptSpan(SpanLayer):
    """The span of one attempt, linked to the attempt before it."""

    __slots__ = ()

    def open(self, fn: Callable[..., Any] | None) -> Opened:
        frame = FRAME.get()
        tries = Tries() if frame is None else frame.tries
        tries.count += 1
        total = self.policy.config.attempts
        attributes: dict[str, str | int | float | bool] = {
            POLICY_NAME: self.policy.name or "",
            POLICY_TYPE: self.policy.type,
            "retry.attempt": tries.count,
            "retry.last": total is not None and tries.count >= total,
        }
        if tries.count > 1:
            attributes["retry.delay"] = tries.delay
        span = self.tracer.start_span(
            f"{self.policy.label if frame is None else frame.name} attempt",
            attributes=attributes,
            links=None if tries.last is None else [Link(tries.last)],
        )
        tries.last = span.get_span_context()
        return Opened(span, None)

    def outcome(self, error: BaseException | None, result: Any) -> str:
        rules = self.policy.config
        if error is None and rules.on_result is not None and result is not NO_RESULT:
            return "success" if rules.classifier.of_result(result) is Verdict.SUCCESS else "failure"
        return super().outcome(error, result)


def traced(tracer: Tracer, policy: AnyPolicy, layers: tuple[State, ...]) -> tuple[State, ...]:
    """The layers of a policy while calls are traced; the same spans as before, so that their woven names are too."""
    known = {type(layer): layer for layer in policy.layers() if isinstance(layer, SpanLayer) and layer.tracer is tracer}
    inner = (known.get(AttemptSpan) or AttemptSpan(policy, tracer),) if policy.state in _retries(layers) else ()
    return (known.get(CallSpan) or CallSpan(policy, tracer), *layers, *inner)


def _retries(layers: tuple[State, ...]) -> list[State]:
    return [layer for layer in layers if layer.word == "retry"]


def add_decision(event: Event) -> None:
    """Put what a policy decided on the span it decided it in."""
    frame = FRAME.get()
    if frame is None:
        return  # not in a call: a change by hand, a timer
    from everkeel.events import Retrying

    if isinstance(event, Retrying):
        frame.tries.delay = event.delay
    span = trace.get_current_span()
    if span.is_recording():
        attributes: dict[str, Any] = dict(identity(event.policy, event.policy_type))
        for name, value in values_of(event).items():
            attributes |= {f"everkeel.{key}": one for key, one in plain(name, value).items() if one is not None}
        span.add_event(f"everkeel.{event_name(type(event))}", attributes)


def _look_inside(fn: Callable[..., Any]) -> tuple[str, tuple[CallSpan, ...]]:
    """The name of the user's function, at the bottom of what the layers made of it, and the call spans on the way."""
    found: list[State] = []
    while True:
        if isinstance(fn, Rest):
            found += fn.inside()
            fn = fn.fn
        elif isinstance(fn, partial) and isinstance(getattr(fn.func, "__self__", None), State):
            found.append(fn.func.__self__)  # type: ignore[attr-defined]  # a method, as the line before has seen
            fn = fn.args[0]
        else:
            break
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return str(name), tuple(layer for layer in found if isinstance(layer, CallSpan))
