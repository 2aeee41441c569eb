"""`guard(...)`: several policies in the order that is almost always right, on functions and on classes."""

from __future__ import annotations

import asyncio
import inspect
import itertools

import pytest

import everkeel
import everkeel.compose.guards
from everkeel import (
    BulkheadFullError,
    ConfigError,
    TimeoutExceededError,
    bulkhead,
    bulkhead_pool,
    circuit_breaker,
    fallback,
    guard,
    policies_of,
    retry,
    timeout,
)
from everkeel.testing import Flaky

pytestmark = pytest.mark.usefixtures("clock")

ORDER = ["fallback", "retry", "circuit_breaker", "timeout", "bulkhead"]
SHORT = {"fallback": "no quote", "retry": 3, "circuit_breaker": 0.5, "timeout": 2, "bulkhead": 10}


def types(fn) -> list[str]:
    return [policy.type for policy in policies_of(fn)]


# ------------------------------------------------------------------ functions


@pytest.mark.parametrize("words", list(itertools.permutations(ORDER))[::7])
def test_the_order_is_the_same_whatever_the_order_of_the_keywords(words):
    @guard(**{word: SHORT[word] for word in words})
    def quote() -> str:
        return "ten"

    assert types(quote) == ORDER


def test_its_keywords_are_in_the_order_in_which_a_call_meets_them():
    words = list(inspect.signature(guard).parameters)
    assert [word for word in words if word in ORDER] == ORDER
    assert words == [word for word, _, _ in everkeel.compose.guards.ORDER]


def test_numbers_are_shorthands():
    @guard(**SHORT)
    def quote() -> str:
        return "ten"

    configs = {policy.type: policy.config for policy in policies_of(quote)}
    assert configs["retry"].attempts == 3
    assert configs["timeout"].seconds == 2.0
    assert configs["circuit_breaker"].failure_rate == 0.5
    assert configs["bulkhead"].limit == 10


def test_true_takes_the_defaults():
    @guard(retry=True, circuit_breaker=True)
    def quote() -> str:
        return "ten"

    again, breaker = policies_of(quote)
    assert repr(again.config) == repr(retry().config)
    assert repr(breaker.config) == repr(circuit_breaker().config)


def test_false_is_none_of_it():
    @guard(retry=3, timeout=False, circuit_breaker=False)
    def quote() -> str:
        return "ten"

    assert types(quote) == ["retry"]


@pytest.mark.parametrize("value", ["no quote", None, 0, False, True])
def test_a_fallback_that_is_no_policy_is_the_alternative_itself(value):
    call = guard(fallback=value)(Flaky(ConnectionError))
    assert call() is value


def test_a_fallback_may_be_a_function():
    call = guard(fallback=lambda item: f"{item}: ask again")(Flaky(ConnectionError))
    assert call("tea") == "tea: ask again"


def test_policies_may_be_shared():
    breaker = circuit_breaker("payments", minimum_calls=1)
    first, second = guard(circuit_breaker=breaker)(Flaky(ConnectionError)), guard(circuit_breaker=breaker)(Flaky("a"))
    with pytest.raises(ConnectionError):
        first()
    with pytest.raises(everkeel.CircuitOpenError):
        second()


def test_shorthands_are_new_policies_for_each_function():
    both = guard(bulkhead=1)

    @both
    def outer() -> str:
        return inner()

    @both
    def inner() -> str:
        return "answer"

    assert outer() == "answer"
    assert policies_of(outer) != policies_of(inner)


def test_call_and_acall_share_one_set_of_policies(clock):
    policies = guard(bulkhead=1)

    async def nested() -> None:
        with pytest.raises(BulkheadFullError):
            policies.call(Flaky("never"))

    assert policies.call(Flaky("answer"), "arg") == "answer"
    clock.run(policies.acall(nested))


def test_a_coroutine_function_stays_one_and_is_guarded(clock):
    @guard(timeout=1)
    async def quote() -> None:
        await asyncio.sleep(5)

    assert inspect.iscoroutinefunction(quote)
    with pytest.raises(TimeoutExceededError):
        clock.run(quote())


def test_policies_a_function_has_already_take_their_place_in_the_order():
    @guard(timeout=2, fallback="no quote")
    @bulkhead(1)
    @retry(attempts=2)
    def quote() -> str:
        return "ten"

    assert types(quote) == ["fallback", "retry", "timeout", "bulkhead"]


def test_a_functions_own_policy_wins():
    @guard(retry=5, timeout=2)
    @retry(attempts=2)
    def quote() -> str:
        return "ten"

    assert types(quote) == ["retry", "timeout"]
    assert policies_of(quote)[0].config.attempts == 2


def test_a_pool_may_stand_for_the_bulkhead():
    @guard(bulkhead=bulkhead_pool(1, "reports"), retry=2)
    def quote() -> str:
        return "ten"

    assert quote() == "ten"


def test_it_says_what_it_does():
    assert str(guard(timeout=2, retry=retry("again"))) == "retry 'again' > timeout"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "guard: needs at least one policy, such as retry=3 or timeout=2"),
        ({"retry": 0}, "guard: retry must be at least 1, or None (no bound but time) (got 0)"),
        (
            {"retry": "often"},
            "guard: retry must be a whole number of at least 1, or None (no bound but time) (got 'often')",
        ),
        ({"timeout": 0}, "guard: timeout must be more than 0 seconds (got 0)"),
        ({"timeout": True}, "guard: timeout must be seconds as a number, or a timedelta (got True)"),
        ({"timeout": None}, "guard: timeout must be seconds as a number, or a timedelta (got None)"),
        (
            {"circuit_breaker": 50},
            "guard: circuit_breaker must be a share above 0 and up to 1, or None (no rule by share) (got 50)",
        ),
        ({"bulkhead": 0}, "guard: bulkhead must be at least 1 (got 0)"),
        ({"bulkhead": "few"}, "guard: bulkhead must be a whole number of at least 1 (got 'few')"),
    ],
)
def test_a_wrong_value_names_guard_and_the_parameter_when_it_is_written(given, message):
    with pytest.raises(ConfigError) as raised:
        guard(**given)
    assert str(raised.value) == message


def test_a_policy_of_another_type_is_refused():
    with pytest.raises(ConfigError) as raised:
        guard(retry=bulkhead(1, "places"))
    assert str(raised.value) == "guard: retry must be a retry policy (got <bulkhead 'places'>)"


def test_what_cannot_be_called_cannot_be_guarded():
    with pytest.raises(ConfigError) as raised:
        guard(retry=3)("a string")
    assert str(raised.value) == "guard: cannot guard 'a string': it is not callable"


def test_an_unknown_policy_is_a_type_error():
    with pytest.raises(TypeError):
        guard(retries=3)


# ------------------------------------------------------------------ classes


def test_public_methods_are_guarded_and_nothing_else():
    @guard(retry=2)
    class Client:
        limit = 10
        nested = dict

        def fetch(self) -> None: ...

        async def afetch(self) -> None: ...

        def rows(self):
            yield 1

        @staticmethod
        def parse() -> None: ...

        @classmethod
        def make(cls) -> None: ...

        def _private(self) -> None: ...

        def __call__(self) -> None: ...

        @property
        def name(self) -> str:
            return "client"

    guarded = [name for name in vars(Client) if policies_of(inspect.getattr_static(Client, name))]
    assert guarded == ["fetch", "afetch", "rows", "parse", "make"]
    assert (Client.limit, Client.nested, Client().name) == (10, dict, "client")


def test_everything_stays_of_its_type():
    class Client:
        def fetch(self) -> None: ...

        async def afetch(self) -> None: ...

        def rows(self):
            yield 1

        async def arows(self):
            yield 1

        @staticmethod
        def parse(text: str) -> str:
            return text

        @classmethod
        def make(cls) -> Client:
            return cls()

    assert guard(retry=2)(Client) is Client
    assert isinstance(Client.make(), Client)
    assert Client.parse("text") == Client().parse("text") == "text"
    kinds = {name: type(member) for name, member in vars(Client).items() if not name.startswith("_")}
    assert kinds["parse"] is staticmethod
    assert kinds["make"] is classmethod
    assert inspect.iscoroutinefunction(Client.afetch)
    assert inspect.isgeneratorfunction(Client.rows)
    assert inspect.isasyncgenfunction(Client.arows)
    assert str(inspect.signature(Client.parse)) == "(text: 'str') -> 'str'"


def test_each_method_has_policies_of_its_own_where_a_shorthand_was_given():
    shared = circuit_breaker("payments")

    @guard(retry=2, circuit_breaker=shared)
    class Client:
        def fetch(self) -> None: ...

        def store(self) -> None: ...

    assert policies_of(Client.fetch)[0] is not policies_of(Client.store)[0]
    assert policies_of(Client.fetch)[1] is policies_of(Client.store)[1] is shared


def test_a_methods_own_policy_wins_over_the_classs():
    @guard(retry=5, timeout=2)
    class Client:
        @retry(attempts=2)
        def fetch(self) -> None: ...

        def store(self) -> None: ...

    assert policies_of(Client.fetch)[0].config.attempts == 2
    assert types(Client.fetch) == types(Client.store) == ["retry", "timeout"]


@pytest.mark.parametrize("decorated", [staticmethod, classmethod])
def test_the_own_policy_of_a_static_or_class_method_wins_too(decorated):
    class Client:
        fetch = retry(attempts=2)(decorated(lambda *args: "answer"))

    guard(retry=5)(Client)
    (policy,) = policies_of(Client.fetch)
    assert policy.config.attempts == 2
    assert Client.fetch() == "answer"


def test_methods_really_are_guarded_sync_and_async_and_streams(clock):
    @guard(retry=retry("again", attempts=2, backoff=0), fallback=fallback("nothing", name="else"))
    class Client:
        def __init__(self) -> None:
            self.calls = 0

        def fetch(self) -> str:
            return self._answer()

        async def afetch(self) -> str:
            return self._answer()

        def rows(self):
            yield self._answer()

        async def arows(self):
            yield self._answer()

        def fail(self) -> str:
            raise ConnectionError

        def _answer(self) -> str:
            self.calls += 1
            if self.calls == 1:
                raise ConnectionError
            return "answer"

    async def first(items) -> str:
        async for item in items:
            return item
        raise AssertionError

    assert Client().fetch() == "answer"
    assert clock.run(Client().afetch()) == "answer"
    assert list(Client().rows()) == ["answer"]
    assert clock.run(first(Client().arows())) == "answer"
    assert Client().fail() == "nothing"


def count_attempts(*classes, error=ConnectionError):
    """How often the innermost `fetch` of the last class is called when it fails."""
    instance = classes[-1]()
    instance.calls = 0
    with pytest.raises(error):
        instance.fetch()
    return instance.calls


def make_base():
    class Base:
        calls: int

        def fetch(self) -> None:
            self.calls += 1
            raise ConnectionError

    return Base


def override(base):
    class Override(base):
        def fetch(self) -> None:
            super().fetch()

    return Override


def thrice(cls):
    return guard(retry=retry(attempts=3, backoff=0))(cls)


def test_super_is_not_guarded_twice():
    base = thrice(make_base())
    assert count_attempts(base, thrice(override(base))) == 3


def test_super_is_not_guarded_twice_over_three_levels():
    base = thrice(make_base())
    middle = thrice(override(base))
    assert count_attempts(thrice(override(middle))) == 3


def test_a_base_alone_guards_what_its_subclasses_call_through_super():
    base = thrice(make_base())
    assert count_attempts(override(base)) == 3
    assert count_attempts(override(override(base))) == 3


def test_a_subclass_alone_guards_its_own_override():
    assert count_attempts(thrice(override(make_base()))) == 3


def test_super_is_not_guarded_twice_below_an_override_that_is_not_guarded():
    # the class of the instance is not guarded, but two of those above it are
    base = thrice(make_base())
    assert count_attempts(override(thrice(override(base)))) == 3


def test_super_is_not_guarded_twice_across_a_class_that_is_not_guarded():
    base = thrice(make_base())
    assert count_attempts(thrice(override(override(base)))) == 3


def test_inherited_methods_are_guarded_as_they_were():
    base = thrice(make_base())

    class Child(base):
        pass

    assert count_attempts(thrice(Child)) == 3


def test_the_base_itself_stays_guarded_beside_a_guarded_subclass():
    base = thrice(make_base())
    thrice(override(base))
    assert count_attempts(base) == 3


def test_super_is_not_guarded_twice_under_another_name():
    # what a method is called in its class counts, not what the function was called
    class Base:
        calls = 0
        fetch = lambda self: self._fail()  # noqa: E731

        def _fail(self) -> None:
            self.calls += 1
            raise ConnectionError

    assert count_attempts(thrice(override(thrice(Base)))) == 3


def test_an_alias_of_an_overridden_method_stays_guarded():
    class Base:
        calls = 0

        def fetch(self) -> None:
            self.calls += 1
            raise ConnectionError

        alias = fetch

    child = thrice(override(thrice(Base)))()
    with pytest.raises(ConnectionError):
        child.alias()
    assert child.calls == 3


def test_super_of_a_class_method_is_not_guarded_twice():
    class Base:
        calls = 0

        @classmethod
        def fetch(cls) -> None:
            Base.calls += 1
            raise ConnectionError

    thrice(Base)

    class Child(Base):
        @classmethod
        def fetch(cls) -> None:
            super().fetch()

    thrice(Child)
    with pytest.raises(ConnectionError):
        Child.fetch()
    assert Base.calls == 3
    Base.calls = 0
    with pytest.raises(ConnectionError):
        Base.fetch()
    assert Base.calls == 3


def test_super_is_not_guarded_twice_in_a_method_of_any_arguments():
    class Base:
        calls = 0

        def fetch(*args, **kwargs) -> None:
            args[0].calls += 1
            raise ConnectionError

    assert count_attempts(thrice(override(thrice(Base)))) == 3


def test_super_is_not_guarded_twice_async_and_in_generators(clock):
    class Base:
        calls = 0

        async def afetch(self) -> None:
            self.calls += 1
            raise ConnectionError

        def rows(self):
            self.calls += 1
            raise ConnectionError
            yield

        async def arows(self):
            self.calls += 1
            raise ConnectionError
            yield

    thrice(Base)

    class Child(Base):
        async def afetch(self) -> None:
            await super().afetch()

        def rows(self):
            yield from super().rows()

        async def arows(self):
            async for row in super().arows():
                yield row

    thrice(Child)

    async def consume(items) -> None:
        async for _ in items:
            pass

    child = Child()
    with pytest.raises(ConnectionError):
        clock.run(child.afetch())
    assert child.calls == 3
    with pytest.raises(ConnectionError):
        list(child.rows())
    assert child.calls == 6
    with pytest.raises(ConnectionError):
        clock.run(consume(child.arows()))
    assert child.calls == 9


def test_a_class_guarded_twice_has_the_policies_of_both_once():
    @guard(retry=retry(attempts=3, backoff=0))
    @guard(retry=retry(attempts=5, backoff=0), timeout=2)
    class Client:
        def fetch(self) -> None: ...

    assert types(Client.fetch) == ["retry", "timeout"]
    assert policies_of(Client.fetch)[0].config.attempts == 5


def test_a_change_reaches_guarded_methods():
    places = bulkhead(1, "places")

    @guard(bulkhead=places)
    class Client:
        def fetch(self) -> str:
            return "answer"

    with places:
        with pytest.raises(BulkheadFullError):
            Client().fetch()
        places.mode = "off"
        assert Client().fetch() == "answer"


def test_everything_is_a_plain_call_while_disabled():
    @guard(bulkhead=bulkhead(1, "places"), timeout=timeout(1, "limit", runs="inline"))
    class Client:
        def fetch(self, deeper: bool) -> str:
            return self.fetch(False) if deeper else "answer"

    with pytest.raises(BulkheadFullError):
        Client().fetch(True)
    everkeel.disable()
    assert Client().fetch(True) == "answer"
    everkeel.enable()
