"""One function of a function and its policies: what it keeps of the original, and what it never leaves behind."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import linecache
import logging
import operator
import pickle
import sys
import threading
import traceback
import typing
import weakref
from collections.abc import Callable
from types import FunctionType

import pytest

from everkeel import ConfigError, fallback, pipeline, policies_of, retry
from everkeel.compose import source, weave
from everkeel.runtime.signature import kind_of
from everkeel.runtime.weave import Source, Weaving
from everkeel.testing import Flaky, virtual_time

retried = retry("tests.weave", backoff=0)


@retried
def at_module_level(x: int, *, y: str = "y") -> tuple[int, str]:
    """A docstring."""
    return x, y


@pytest.fixture
def policies(fresh_everkeel):
    """A pipeline whose fragments have many words of their own."""
    return pipeline(fallback("other", name="fallback", on=LookupError), retry("retry", backoff=0))


# ------------------------------------------------------------------ the exact signature


def positional_only(a, b=2, /):
    return a, b


def keyword_only(*, a, b=2):
    return a, b


def every_kind(a, b=2, /, c=3, *rest, d, e=5, **more):
    return a, b, c, rest, d, e, more


def star_then_keyword(*args, key):
    return args, key


def positional_only_then_keyword(a, /, *, b):
    return a, b


def annotated(a: int, b: list[str] | None = None) -> dict[str, int]:
    return {}


def no_parameters():
    return "answer"


SIGNATURES = [
    (positional_only, (1,), {}),
    (positional_only, (1, 3), {}),
    (keyword_only, (), {"a": 1}),
    (keyword_only, (), {"b": 3, "a": 1}),
    (every_kind, (1,), {"d": 4}),
    (every_kind, (1, 2, 3, 4, 5), {"d": 4, "e": 6, "f": 7}),
    (star_then_keyword, (1, 2), {"key": 3}),
    (positional_only_then_keyword, (1,), {"b": 2}),
    (annotated, (1,), {}),
    (no_parameters, (), {}),
]


@pytest.mark.parametrize(("fn", "args", "kwargs"), SIGNATURES)
def test_arguments_arrive_as_they_were_given(policies, fn, args, kwargs):
    assert policies(fn)(*args, **kwargs) == fn(*args, **kwargs)


@pytest.mark.parametrize("fn", list(dict.fromkeys(fn for fn, _, _ in SIGNATURES)))
def test_the_signature_is_the_same_before_and_after_weaving(policies, fn):
    guarded = policies(fn)
    assert inspect.signature(guarded) == inspect.signature(fn)
    weave(guarded)
    assert inspect.signature(guarded) == inspect.signature(fn)
    assert inspect.signature(guarded, follow_wrapped=False).parameters.keys() == inspect.signature(fn).parameters.keys()


@pytest.mark.parametrize(
    ("fn", "args", "kwargs"),
    [
        (positional_only, (), {"a": 1}),
        (positional_only, (1, 2, 3), {}),
        (keyword_only, (1,), {}),
        (keyword_only, (), {}),
        (every_kind, (1,), {}),
        (annotated, (1,), {"c": 3}),
    ],
)
def test_wrong_arguments_are_a_type_error_and_no_attempt(policies, fn, args, kwargs):
    guarded = weave(policies(fn))
    with pytest.raises(TypeError):
        guarded(*args, **kwargs)
    assert policies.policies[1].snapshot()["retries"] == 0


def test_named_arguments_are_passed_on_only_where_there_are_any(policies):
    def fetch(*args, **kwargs):
        return args, kwargs

    guarded = weave(policies(fetch))
    assert [guarded(1), guarded(a=2), guarded()] == [((1,), {}), ((), {"a": 2}), ((), {})]
    assert "fn(*args)" in source(guarded)
    assert "fn(**more)" in source(policies(lambda **more: more))
    assert "fn()" in source(policies(lambda **more: more))


def test_defaults_are_the_very_objects(policies):
    default, other = object(), []

    @policies
    def fetch(a=default, *, b=other):
        return a, b

    assert fetch()[0] is default
    assert fetch()[1] is other
    assert fetch.__defaults__ == (default,)
    assert fetch.__kwdefaults__ == {"b": other}


WORDS = [
    "result", "run", "retry", "error", "fn", "tick", "ok", "sleep", "ambient", "fallback", "INNER", "ARGS", "RESULT",
    "REST", "FIRST", "AWAIT", "permit", "state", "tap", "Exception", "BaseException", "next", "self", "args", "kwargs",
    "__weaving__", "__layers__", "result_2", "None_", "print",
]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("kind", ["positional", "keyword", "star", "double star"])
def test_a_parameter_may_be_called_like_one_of_the_weavers_words(policies, word, kind):
    text = {"positional": word, "keyword": f"*, {word}", "star": f"*{word}", "double star": f"**{word}"}[kind]
    space: dict[str, typing.Any] = {}
    exec(f"def fetch({text}):\n    if failures: raise failures.pop()\n    return {word}", space)
    fetch = space["fetch"]
    given = {"positional": ((7,), {}), "keyword": ((), {word: 7}), "star": ((7,), {}), "double star": ((), {"a": 7})}
    args, kwargs = given[kind]
    space["failures"] = []
    expected = fetch(*args, **kwargs)
    space["failures"] = [OSError(), OSError()]
    assert policies(fetch)(*args, **kwargs) == expected


def test_many_such_parameters_at_once_in_a_coroutine_function(policies):
    failures = [OSError()]

    @policies
    async def fetch(run, result, error, retry, ok, tick, fn, sleep, ambient, REST=1, *, RESULT, ARGS, INNER):  # noqa: N803
        if failures:
            raise failures.pop()
        return run, result, error, retry, ok, tick, fn, sleep, ambient, REST, RESULT, ARGS, INNER

    assert asyncio.run(fetch(*range(9), RESULT=10, ARGS=11, INNER=12)) == (*range(9), 1, 10, 11, 12)


def test_a_global_of_the_users_module_is_not_in_the_way(policies):
    space: dict[str, typing.Any] = {"run": "mine", "retry": "mine", "tick": "mine"}
    exec("def fetch():\n    return run, retry, tick", space)
    assert policies(space["fetch"])() == ("mine",) * 3


# ------------------------------------------------------------------ what it keeps


def test_name_doc_module_and_annotations_are_kept():
    assert at_module_level.__name__ == at_module_level.__qualname__ == "at_module_level"
    assert at_module_level.__doc__ == "A docstring."
    assert at_module_level.__module__ == __name__
    assert typing.get_type_hints(at_module_level) == {"x": int, "y": str, "return": tuple[int, str]}
    assert at_module_level.__globals__["__name__"] == __name__


def test_the_original_is_reachable():
    original = at_module_level.__wrapped__
    assert type(original) is FunctionType
    assert original is not at_module_level
    assert original(1) == at_module_level(1)


def test_attributes_of_the_original_are_kept(policies):
    def fetch() -> None: ...

    fetch.route = "/orders"
    assert policies(fetch).route == "/orders"


def test_it_is_pickled_by_name():
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level


def test_getsource_shows_the_users_function():
    assert "return x, y" in inspect.getsource(at_module_level)


@pytest.mark.parametrize("called", [False, True])
def test_it_stays_what_kind_of_function_it_is(policies, called):
    async def coroutine() -> str:
        return "answer"

    def generator():
        yield "answer"

    async def async_generator():
        yield "answer"

    async def run():
        return await guarded[0](), list(guarded[1]()), [item async for item in guarded[2]()]

    guarded = [policies(fn) for fn in (coroutine, generator, async_generator)]
    if called:
        assert asyncio.run(run()) == ("answer", ["answer"], ["answer"])
    assert inspect.iscoroutinefunction(guarded[0])
    assert inspect.isgeneratorfunction(guarded[1])
    assert inspect.isasyncgenfunction(guarded[2])
    assert [kind_of(fn) for fn in guarded] == ["async", "generator", "async generator"]


def test_an_annotation_or_wrapper_that_lies_about_its_parameters_does_not_confuse_it(policies):
    @functools.wraps(annotated)
    def passes_on(*args, **kwargs):
        return args, kwargs

    guarded = policies(passes_on)
    assert guarded(1, 2, 3, c=4) == ((1, 2, 3), {"c": 4})
    assert inspect.signature(guarded) == inspect.signature(annotated)


def test_functools_wraps_around_a_woven_function_is_not_taken_for_it(policies):
    guarded = policies(no_parameters)

    @functools.wraps(guarded)
    def around():
        return "around " + guarded()

    assert policies_of(around) == ()
    assert retry(backoff=0)(around)() == "around answer"


# ------------------------------------------------------------------ methods


class Base:
    def greet(self) -> str:
        return "base"


class Client(Base):
    prefix = "client"

    @retried
    def method(self, x: int) -> tuple[str, int]:
        return self.prefix, x

    @classmethod
    @retried
    def class_method(cls, x: int) -> tuple[str, int]:
        return cls.prefix, x

    @retried
    @classmethod
    def outside_a_class_method(cls, x: int) -> tuple[str, int]:
        return cls.prefix, x

    @staticmethod
    @retried
    def static_method(x: int) -> int:
        return x

    @retried
    @staticmethod
    def outside_a_static_method(x: int) -> int:
        return x

    @property
    @retried
    def a_property(self) -> str:
        return self.prefix

    @retried
    def greet(self) -> str:
        return super().greet() + " " + self.prefix

    @retried
    async def amethod(self, x: int) -> tuple[str, int]:
        return self.prefix, x

    @retried
    def __call__(self, x: int) -> tuple[str, int]:
        return self.prefix, x


def test_methods_of_every_kind():
    client = Client()
    assert client.method(1) == ("client", 1)
    assert Client.method(client, 1) == ("client", 1)
    assert client.class_method(2) == Client.class_method(2) == ("client", 2)
    assert client.outside_a_class_method(2) == Client.outside_a_class_method(2) == ("client", 2)
    assert client.static_method(3) == Client.static_method(3) == 3
    assert client.outside_a_static_method(3) == Client.outside_a_static_method(3) == 3
    assert client.a_property == "client"
    assert client.greet() == "base client"
    assert asyncio.run(client.amethod(4)) == ("client", 4)
    assert client(5) == ("client", 5)


def test_the_policies_of_a_method_are_found_on_class_and_instance():
    assert policies_of(Client.method) == policies_of(Client().method) == (retried,)
    assert policies_of(Client.class_method) == policies_of(Client.static_method) == (retried,)
    assert policies_of(Client().outside_a_class_method) == (retried,)


def test_a_subclass_may_override_and_call_the_guarded_one():
    class Special(Client):
        prefix = "special"

        def method(self, x: int) -> tuple[str, int]:
            return super().method(x + 1)

    assert Special().method(1) == ("special", 2)


def test_a_bound_method_can_be_guarded_also_one_that_is_already(policies):
    client = Client()
    assert policies(Base().greet)() == "base"
    assert policies(client.method)(1) == ("client", 1)
    assert policies(Client.class_method)(1) == ("client", 1)
    assert policies([3, 1, 2].index)(1) == 1


@pytest.mark.parametrize("thing", [Client, int])
def test_a_class_cannot_be_guarded_and_is_told_what_can(policies, thing):
    with pytest.raises(
        ConfigError, match=f"pipeline: cannot guard the class {thing.__qualname__}: decorate its methods"
    ):
        policies(thing)


def test_a_property_cannot_be_guarded_and_is_told_what_can(policies):
    with pytest.raises(ConfigError, match="pipeline: cannot guard a property: decorate the function inside it"):
        policies(property(lambda self: 1))


@pytest.mark.parametrize("thing", [3, "fetch", None])
def test_what_cannot_be_called_cannot_be_guarded(thing, fresh_everkeel):
    with pytest.raises(ConfigError, match=r"^retry 'fetch': cannot guard .*: it is not callable$"):
        retry("fetch")(thing)


# ------------------------------------------------------------------ other callables


class Adder:
    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, x: int) -> int:
        return self.by + x


class AsyncAdder(Adder):
    async def __call__(self, x: int) -> int:
        return self.by + x


def test_callable_objects(policies):
    assert policies(Adder(3))(4) == 7
    guarded = policies(AsyncAdder(3))
    assert inspect.iscoroutinefunction(guarded)
    assert asyncio.run(guarded(4)) == 7


def test_partials(policies):
    async def add(a: int, b: int) -> int:
        return a + b

    assert policies(functools.partial(positional_only, 1))(2) == (1, 2)
    guarded = policies(functools.partial(functools.partial(add, 1), b=5))
    assert inspect.iscoroutinefunction(guarded)
    assert asyncio.run(guarded()) == 6


def test_lambdas(policies):
    guarded = policies(lambda x, *, y=2: (x, y))
    assert guarded(1, y=3) == (1, 3)
    assert guarded.__name__ == "<lambda>"
    assert source(guarded).startswith("def call(x, *, y=None):")


@pytest.mark.parametrize(("fn", "args", "expected"), [(len, ("abc",), 3), (operator.add, (1, 2), 3), (max, (1, 2), 2)])
def test_builtins(policies, fn, args, expected):
    assert policies(fn)(*args) == expected


def test_a_function_with_a_name_that_is_none(policies):
    fetch = FunctionType(no_parameters.__code__, {}, "class")
    assert policies(fetch)() == "answer"


def test_a_function_with_a_closure(policies):
    secret = "answer"
    assert policies(lambda: secret)() == secret


# ------------------------------------------------------------------ one frame


def depth() -> int:
    return len(inspect.stack(0))


def test_stacked_decorators_become_one_frame(fresh_everkeel):
    one = retry("one")(depth)
    three = retry("three")(retry("two")(one))
    for guarded in (one, three):
        guarded()
    assert three() == one() == depth() + 1


def test_stacked_decorators_are_outermost_first(fresh_everkeel):
    outer, inner = retry("outer"), retry("inner")
    assert policies_of(outer(inner(no_parameters))) == (outer, inner)


def test_decorating_again_leaves_the_first_as_it_was(fresh_everkeel):
    inner = retry("inner", attempts=2, backoff=0)
    fetch = Flaky(OSError)
    once = inner(lambda: fetch())
    twice = retry("outer", attempts=2, backoff=0)(once)
    with pytest.raises(OSError):
        once()
    assert fetch.calls == 2
    with pytest.raises(OSError):
        twice()
    assert fetch.calls == 2 + 4


def test_a_traceback_shows_the_woven_line_once_per_decorated_function(fresh_everkeel):
    @retry("outer", attempts=1)
    @retry("inner", attempts=1)
    def fetch() -> None:
        raise OSError("refused")

    with pytest.raises(OSError) as raised:
        fetch()
    with pytest.raises(OSError) as raised:  # the second time, without the stub that wove it
        fetch()
    frames = [frame for frame in traceback.extract_tb(raised.value.__traceback__) if "<everkeel" in frame.filename]
    assert [(frame.name, frame.line) for frame in frames] == [("fetch", "result = fn()")]


def test_the_woven_source_survives_a_check_of_the_cache(policies):
    guarded = weave(policies(no_parameters))
    linecache.checkcache()
    assert "".join(linecache.getlines(guarded.__code__.co_filename)) == source(guarded)


# ------------------------------------------------------------------ when


def test_decorating_does_not_weave_and_the_first_call_does(policies):
    guarded = policies(annotated)
    assert not guarded.__code__.co_filename.startswith("<everkeel")
    guarded(1)
    assert guarded.__code__.co_filename.startswith("<everkeel annotated #")


def test_weave_does_it_at_once_and_hands_the_function_back(policies):
    guarded = policies(annotated)
    assert weave(guarded) is guarded
    assert guarded.__code__.co_filename.startswith("<everkeel annotated #")


def test_weave_leaves_alone_what_is_not_decorated():
    assert weave(annotated) is annotated
    assert source(annotated) == ""


def test_weaving_twice_changes_nothing(policies):
    guarded = policies(annotated)
    weave(guarded)
    code = guarded.__code__
    weave(guarded)
    assert guarded.__code__ is code


def test_generators_are_never_woven(policies):
    @policies
    def feed():
        yield 1

    assert source(weave(feed)) == ""
    assert list(feed()) == [1]


def test_functions_do_not_share_their_code(policies):
    def fetch() -> None: ...

    one, two = weave(policies(fetch)), weave(policies(fetch))
    assert one.__code__ is not two.__code__


def test_a_change_puts_the_stub_back_and_the_next_call_weaves_again(fresh_everkeel):
    policy = retry("fetch", backoff=0)
    guarded = policy(no_parameters)
    guarded()
    woven = guarded.__code__
    policy.mode = "shadow"
    stub = guarded.__code__
    assert not stub.co_filename.startswith("<everkeel")
    guarded()
    assert guarded.__code__ not in (woven, stub)


def test_changes_back_and_forth_do_not_fill_the_namespace(fresh_everkeel):
    policy = retry("fetch", backoff=0)
    guarded = policy(no_parameters)

    def names_after_a_round() -> set[str]:
        for mode in ("shadow", "off", "enforce"):
            policy.mode = mode
            guarded()
        with policy.subscribe(print, object):
            pass
        return set(guarded.__globals__)

    first = names_after_a_round()
    for _ in range(5):
        assert names_after_a_round() == first


def test_a_bound_method_taken_before_a_change_follows_it(fresh_everkeel):
    policy, fetch = retry("fetch", attempts=2, backoff=0), Flaky(OSError)

    class Caller:
        @policy
        def call(self) -> object:
            return fetch()

    call = Caller().call
    policy.mode = "off"
    with pytest.raises(OSError):
        call()
    assert fetch.calls == 1


def test_a_coroutine_made_before_a_change_runs_as_it_began(fresh_everkeel):
    policy, fetch = retry("fetch", attempts=2, backoff=0), Flaky(OSError, "answer").async_()

    @policy
    async def call() -> object:
        return await fetch()

    async def main() -> object:
        weave(call)
        begun = call()
        policy.mode = "off"
        return await begun

    assert asyncio.run(main()) == "answer"


def test_code_is_swapped_under_load_and_no_call_notices(gate):
    policy = gate("load", limit=1000)
    started, failures = threading.Barrier(5), []

    @policy
    def work(x: int) -> int:
        return x

    def call() -> None:
        started.wait()
        try:
            for n in range(2_000):
                assert work(n) == n
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        started.wait()
        for _ in range(50):
            for mode in ("shadow", "off", "enforce"):
                policy.mode = mode
            with policy.subscribe(lambda event: None):
                policy.reconfigure(limit=policy.config.limit + 1)
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    assert policy.snapshot()["inside"] >= 0


# ------------------------------------------------------------------ what it leaves behind


def test_a_woven_function_is_freed_without_the_collector(fresh_everkeel):
    policy = retry("fetch", backoff=0)

    def decorate() -> tuple[weakref.ref[Callable[..., object]], str]:
        def fetch() -> str:
            return "answer"

        guarded = policy(fetch)
        guarded()
        return weakref.ref(guarded), guarded.__code__.co_filename

    gc.collect()
    gc.disable()
    try:
        weakly, file = decorate()
        assert weakly() is None
        assert file not in linecache.cache
    finally:
        gc.enable()


def test_a_code_that_was_replaced_leaves_the_line_cache(fresh_everkeel):
    policy = retry("fetch", backoff=0)
    guarded = policy(no_parameters)
    guarded()
    file = guarded.__code__.co_filename
    policy.mode = "shadow"
    gc.collect()
    assert file not in linecache.cache


def test_a_policy_does_not_keep_its_functions(fresh_everkeel):
    policy = retry("fetch", backoff=0)
    weakly = weakref.ref(policy(lambda: None))
    gc.collect()
    assert weakly() is None


def test_a_function_keeps_its_policies(fresh_everkeel):
    def decorate():
        policy = retry("fetch", backoff=0)
        return weakref.ref(policy), policy(no_parameters)

    weakly, guarded = decorate()
    gc.collect()
    assert weakly() is policies_of(guarded)[0]


def test_a_coroutine_outlives_the_last_reference_to_its_function(policies):
    async def fetch() -> str:
        return "answer"

    for _ in range(2):
        begun = policies(fetch)()
        gc.collect()
        assert asyncio.run(begun) == "answer"


def test_an_argument_is_not_kept_alive_after_the_call(policies):
    class Big: ...

    guarded, big = policies(lambda big: None), Big()
    weakly = weakref.ref(big)
    guarded(big)
    guarded(big)
    del big
    assert weakly() is None


# ------------------------------------------------------------------ fragments


def with_fragment(gate, text):
    """A gate whose state lends this fragment."""
    policy = gate("fragment")
    original = type(policy.state)

    class Lends(original):  # type: ignore[misc, valid-type]
        __slots__ = ()

        def fragment(self, kind):
            return text

    policy.state.__class__ = Lends
    return policy


def test_a_fragment_surrounds_the_call(gate):
    policy = with_fragment(gate, "before = gate.inside\nINNER\nRESULT = (before, RESULT)")
    assert policy(lambda x: x + 1)(1) == (0, 2)


def test_a_misspelt_name_in_a_fragment_is_found_when_weaving(gate):
    policy = with_fragment(gate, "permit = gate.enter()\nINNER\ngate.done(permt, RESULT)")
    with pytest.raises(NameError, match="fragment of no_parameters: permt is neither given nor assigned"):
        Source(no_parameters, policy.layers(), {}).compile()


def test_what_cannot_be_woven_takes_the_plain_path_and_says_so(gate, caplog):
    policy = with_fragment(gate, "permit = gate.enter()\nINNER\ngate.done(permt, RESULT)")
    guarded = policy(no_parameters)
    with caplog.at_level(logging.DEBUG, "everkeel"):
        assert [guarded(), guarded()] == ["answer", "answer"]
    assert policy.snapshot()["success"] == 2
    assert caplog.text.count("no_parameters takes the plain path: fragment of no_parameters: permt") == 1
    assert source(guarded) == ""


def test_a_coroutine_function_that_cannot_be_woven_takes_the_plain_path_too(gate):
    policy = with_fragment(gate, "this is not Python\nINNER")

    @policy
    async def fetch() -> str:
        return "answer"

    assert asyncio.run(fetch()) == "answer"
    assert policy.snapshot()["success"] == 1


def test_a_fragment_may_call_what_is_inside_as_a_function(gate):
    policy = with_fragment(gate, "RESULT = REST(ARGS)\nRESULT = (RESULT, REST(ARGS))")
    fetch = Flaky(OSError, "one", "two")
    guarded = pipeline(policy, retry("inside", backoff=0))(lambda: fetch())
    assert guarded() == ("one", "two")


def test_a_state_without_a_fragment_is_a_seam(gate):
    policy = with_fragment(gate, None)
    guarded = pipeline(policy, retry("inside", backoff=0))(lambda x: x)
    assert guarded(3) == 3
    assert "result = gate.call(REST, x)" in source(guarded)
    assert policy.snapshot()["success"] == 1


def test_what_is_inside_a_seam_follows_the_clock(gate, fresh_everkeel):
    fetch = Flaky("first", OSError, "second")
    guarded = pipeline(with_fragment(gate, None), retry("inside", backoff=60, jitter=None))(lambda: fetch())
    assert guarded() == "first"
    with virtual_time() as clock:
        assert guarded() == "second"
    assert clock.sleeps == [60.0]


def test_what_is_inside_a_seam_follows_its_policies(gate):
    inside, fetch = retry("inside", backoff=0), Flaky("pending", "pending", "answer")
    guarded = pipeline(with_fragment(gate, None), inside)(lambda: fetch())
    assert guarded() == "pending"
    inside.reconfigure(on_result=lambda result: result == "pending")
    assert guarded() == "answer"


def test_a_method_in_capitals_is_the_twin_for_coroutine_functions(gate):
    async def fetch() -> None: ...

    policy = gate("payments")
    assert "await gate.aenter()" in source(policy(fetch))
    assert "gate.enter()" in source(policy(no_parameters))


def test_two_layers_with_the_same_word_are_kept_apart(gate):
    outer, inner = gate("outer"), gate("inner")
    guarded = pipeline(outer, inner)(no_parameters)
    guarded()
    assert (outer.snapshot()["success"], inner.snapshot()["success"]) == (1, 1)
    assert "gate_2.enter()" in source(guarded)


def test_the_default_fragment_is_the_permit_protocol(gate):
    policy = gate("payments")

    def fetch(error: BaseException | None) -> str:
        if error is not None:
            raise error
        return "answer"

    guarded = policy(fetch)
    guarded(None)
    for error in (OSError(), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            guarded(error)
    assert policy.state.endings == ["done", "failed", "dropped"]
    assert policy.state.inside == 0


def test_a_weaving_without_its_function_answers_none():
    weaving = Weaving(no_parameters, ())
    assert weaving.function() is None
