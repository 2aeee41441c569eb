"""Pipelines that configuration defines and code asks for by name, before or after the file is loaded."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Iterator
from types import CoroutineType
from typing import Any, ParamSpec, TypeVar, cast

from everkeel.compose.chain import Pipeline
from everkeel.config import process
from everkeel.config.layers import Layer, about, values
from everkeel.config.names import NotYetError, ProcessNames
from everkeel.config.problems import did_you_mean
from everkeel.config.steps import Step
from everkeel.config.types import policy_class, settings_class
from everkeel.errors import ConfigError
from everkeel.runtime import switch
from everkeel.runtime.policy import AnyPolicy, refuse_coroutine
from everkeel.runtime.registry import registry
from everkeel.runtime.settings import Settings
from everkeel.runtime.state import State, fold
from everkeel.runtime.weave import F, Weaving, woven

P = ParamSpec("P")
T = TypeVar("T")


class ConfiguredPipeline:
    """A pipeline by name: what it consists of is what configuration says now. Make one with `config.pipeline(name)`.

    Until configuration defines it, it is the `default` that code gave; without one, a call is a `ConfigError`, because
    a call that is silently unguarded is the worse surprise.
    """

    def __init__(self, name: str, default: Pipeline | None) -> None:
        self.name, self.default = name, default
        self._made: tuple[AnyPolicy, ...] | None = None
        self._functions: weakref.WeakSet[Weaving] = weakref.WeakSet()

    @property
    def policies(self) -> tuple[AnyPolicy, ...]:
        """What a call meets now, outermost first."""
        if self._made is not None:
            return self._made
        if self.default is not None:
            return self.default.policies
        raise ConfigError(
            f"pipeline {self.name!r}", None, "is not defined: no configuration that has it is loaded", None
        )

    @property
    def defined(self) -> bool:
        """Does configuration define it?"""
        return self._made is not None

    def __call__(self, fn: F) -> F:
        """Decorate a function, method, coroutine function or generator function. Its type stays exactly as it is."""
        if self._made is not None or self.default is not None:
            self.may_guard(fn, self.policies)
        return woven(fn, (self,))

    def may_guard(self, fn: Callable[..., Any], policies: tuple[AnyPolicy, ...]) -> None:
        """Raise where these policies cannot guard this function."""
        from everkeel.runtime.signature import kind_of

        bare = getattr(fn, "__func__", fn)
        for policy in policies:
            policy.may_guard(kind_of(bare))
            policy.may_guard_function(bare)

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `fn(*args, **kwargs)` under all of them."""
        result = fold(self.layers(), "sync", fn)(*args, **kwargs)
        if type(result) is CoroutineType:
            refuse_coroutine(f"pipeline {self.name!r}", result)
        return cast("T", result)

    async def acall(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Await `fn(*args, **kwargs)` under all of them."""
        return cast("T", await fold(self.layers(), "async", fn)(*args, **kwargs))

    def __iter__(self) -> Iterator[AnyPolicy]:
        return iter(self.policies)

    def __len__(self) -> int:
        return len(self.policies)

    def __repr__(self) -> str:
        inside = str(Pipeline(*self.policies)) if self._made is not None or self.default is not None else "not defined"
        return f"<pipeline {self.name!r}: {inside}>"

    # ------------------------------------------------------------------ what the weaver asks

    def layers(self) -> list[State]:
        """The states a call passes through now, outermost first."""
        if not switch.on and self._made is None and self.default is None:
            return []  # with Everkeel switched off, nothing needs to be defined
        return [layer for policy in self.policies for layer in policy.layers()]

    def woven_into(self, weaving: Weaving) -> None:
        """Remember a function, and let the policies do so too."""
        self._functions.add(weaving)
        if self._made is not None or self.default is not None:
            for policy in self.policies:
                policy.woven_into(weaving)

    # ------------------------------------------------------------------ what configuration does

    def functions(self) -> list[Weaving]:
        """The functions it decorates."""
        return list(self._functions)

    def become(self, policies: tuple[AnyPolicy, ...] | None) -> None:
        """Consist of these from the next call on; calls under way end as they began."""
        self._made = policies
        for weaving in list(self._functions):
            for policy in policies or ():
                policy.woven_into(weaving)
            weaving.refresh()


class Plan:
    """What loading would make of the pipelines that code asked for: everything is tried before anything is changed."""

    def __init__(self) -> None:
        self.consist: list[tuple[ConfiguredPipeline, tuple[AnyPolicy, ...] | None]] = []
        self.code: dict[AnyPolicy, Settings] = {}
        self._new: dict[tuple[str, str], AnyPolicy] = {}

    def add(self, handle: ConfiguredPipeline, steps: list[Step] | None, layers: list[Layer], known: list[str]) -> None:
        """Work out one pipeline; ConfigError where it cannot be."""
        if steps is None:
            if handle.default is None:
                hint = did_you_mean(handle.name, known)
                raise ConfigError(
                    f"pipeline {handle.name!r}", None, f"is asked for by code, but not defined{hint}", None
                )
            self.consist.append((handle, None))
            return
        policies = tuple(self._policy(step, layers) for step in steps)
        for weaving in handle.functions():
            handle.may_guard(weaving.fn, policies)
        self.consist.append((handle, policies))

    def _policy(self, step: Step, layers: list[Layer]) -> AnyPolicy:
        identity = (step.policy_type, step.name)
        there = self._new.get(identity) or registry.get(*identity)
        if there is not None and step.shared:
            return there  # what the step says about it is a section like any other
        config = config_of(step, layers)
        if there is not None:
            self.code[there] = config
            return there
        rest: dict[str, Any] = {} if step.max_keys is None else {"max_keys": step.max_keys}
        if step.key is not None:
            rest["key"] = ProcessNames().function(step.key)
        try:
            # Without its name yet: under that it would bind to the configuration still in force.
            made = policy_class(step.policy_type)(None, config, **rest)
        except TypeError:
            what = "cannot be made by a file: make it in code, and give the step its name"
            raise ConfigError(step.policy_type, None, what, None) from None
        self._new[identity] = made
        return made

    def carry_out(self) -> None:
        """The configuration is in force: let the new policies join, and the pipelines be what they shall be."""
        for (_, name), policy in self._new.items():
            policy.name = name
            registry.add(policy, name)
            policy.bind()
        for handle, policies in self.consist:
            handle.become(policies)


def config_of(step: Step, layers: list[Layer]) -> Settings:
    """What a step's policy is made with: what the step and everything stronger say; ConfigError where that is wrong."""
    given = values(layers, step.policy_type, step.name)
    return settings_class(step.policy_type).make(step.name, given)


def is_known(step: Step, layers: list[Layer]) -> bool:
    """Is there anything in it that only code yet to be imported can tell?"""
    try:
        for entry in about(layers, step.policy_type, step.name).values():
            entry.read(ProcessNames())
    except NotYetError:
        return False
    return True


def pipeline(name: str, *, default: Pipeline | None = None) -> ConfiguredPipeline:
    """The pipeline that configuration defines under this name; a decorator, also before the file is loaded.

    What is asked for by the same name is the same pipeline, with the same breakers and limits. `default` guards calls
    where configuration defines none; without it, a loaded configuration that does not define it is a `ConfigError`.

    >>> from everkeel import config
    >>> checkout = config.pipeline("docs.checkout")
    >>> @checkout
    ... def pay() -> str:
    ...     raise ConnectionError
    >>> steps = [{"fallback": "later"}, {"retry": {"attempts": 2, "backoff": 0}}]
    >>> loaded = config.load({"pipelines": {"docs.checkout": steps}}, env={})
    >>> pay()
    'later'
    """
    with process.lock:
        handle = process.pipelines.get(name)
        if handle is None:
            handle = ConfiguredPipeline(name, default)
            if process.current is not None:
                contents = process.current.contents
                plan = Plan()
                if name in contents.pipelines or process.current.loaded:
                    plan.add(handle, contents.pipelines.get(name), contents.layers, list(contents.pipelines))
                    plan.carry_out()
            process.pipelines[name] = handle
        elif default is not None and handle.default is None:
            handle.default = default
            for weaving in handle.functions():
                handle.woven_into(weaving)
                weaving.refresh()
    return handle


def _refresh_functions() -> None:
    """Everkeel was switched on or off: a pipeline that is not defined has no policies that would pass that on."""
    for handle in list(process.pipelines.values()):
        for weaving in handle.functions():
            weaving.refresh()


switch.on_change.append(_refresh_functions)
