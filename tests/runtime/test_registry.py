"""Names: taken once, found again, held weakly."""

from __future__ import annotations

import gc
import weakref

import pytest

from everkeel import ConfigError, events, policies_of, retry
from everkeel.runtime.registry import Registry


def test_a_named_policy_is_found_by_type_and_name(gate, fresh_everkeel):
    payments = gate("payments")
    assert fresh_everkeel.get("gate", "payments") is payments
    assert fresh_everkeel.get("retry", "payments") is None


def test_a_second_policy_of_the_same_type_and_name_is_refused(gate):
    first = gate("payments")
    with pytest.raises(ConfigError) as raised:
        gate("payments")
    assert str(raised.value) == (
        "gate 'payments': a policy of this type and name exists already; choose another name, or pass replace=True"
    )
    assert first.name == "payments"


def test_policies_of_two_types_may_share_a_name(gate, fresh_everkeel):
    both = [gate("payments"), retry("payments")]
    assert list(fresh_everkeel) == both


def test_replace_takes_the_name(gate, fresh_everkeel):
    old = gate("payments")
    new = gate("payments", replace=True)
    assert fresh_everkeel.get("gate", "payments") is new
    assert old.call(len, "works on") == 8


def test_the_end_of_the_one_replaced_leaves_the_new_one_listed(gate, fresh_everkeel):
    old = gate("payments")
    new = gate("payments", replace=True)
    del old
    gc.collect()
    assert fresh_everkeel.get("gate", "payments") is new


def test_the_registry_keeps_nobody_alive(gate, fresh_everkeel):
    weakly = weakref.ref(gate("payments"))
    gc.collect()
    assert weakly() is None
    assert len(fresh_everkeel) == 0


def test_the_name_of_a_policy_that_is_gone_is_free(gate):
    gate("payments")
    gate("payments")


def test_a_policy_without_a_name_is_not_listed(gate, fresh_everkeel):
    unnamed = gate()
    assert list(fresh_everkeel) == []
    assert unnamed.name is None


def test_a_policy_without_a_name_takes_that_of_the_function_it_decorates(gate, fresh_everkeel):
    policy = gate()

    @policy
    def charge() -> None: ...

    name = f"{__name__}.test_a_policy_without_a_name_takes_that_of_the_function_it_decorates.<locals>.charge"
    assert policy.name == name
    assert fresh_everkeel.get("gate", name) is policy
    assert policies_of(charge) == (policy,)


def test_it_keeps_the_name_of_the_first_function(gate):
    policy = gate()
    first = policy(len)
    second = policy(sorted)
    assert policy.name == "builtins.len"
    assert policies_of(first) == policies_of(second)


def test_an_adopted_name_that_is_taken_gets_a_number(gate):
    policies = [gate(), gate(), gate()]
    decorated = [policy(len) for policy in policies]
    assert [policy.name for policy in policies] == ["builtins.len", "builtins.len#2", "builtins.len#3"]
    assert len(decorated) == 3


def test_a_callable_object_lends_the_name_of_its_class(gate):
    class Charger:
        def __call__(self) -> None: ...

    policy = gate()
    policy(Charger())
    assert policy.name is not None
    assert policy.name.endswith("<locals>.Charger")


@pytest.mark.parametrize("name", ["", 3, b"payments"])
def test_a_name_is_a_non_empty_string(gate, name):
    with pytest.raises(ConfigError, match="gate: name must be a non-empty string"):
        gate(name)


def test_forgotten_parentheses_are_noticed(gate):
    with pytest.raises(ConfigError, match=r"gate: is used with parentheses: @gate\(\)"):
        gate(len)


def test_a_policy_that_is_removed_works_on_unlisted(gate, fresh_everkeel):
    policy = gate("payments")
    assert fresh_everkeel.remove("gate", "payments")
    assert not fresh_everkeel.remove("gate", "payments")
    assert list(fresh_everkeel) == []
    assert policy.call(len, "abc") == 3


def test_the_registry_tells_who_comes_and_goes(gate, fresh_everkeel, record_events):
    first = gate("payments")
    second = gate("payments", replace=True)
    decorated = gate()(len)
    fresh_everkeel.remove("gate", "payments")
    assert [(type(event), event.policy) for event in record_events] == [
        (events.PolicyAdded, "payments"),
        (events.PolicyReplaced, "payments"),
        (events.PolicyAdded, "builtins.len"),
        (events.PolicyRemoved, "payments"),
    ]
    assert first is not second
    assert callable(decorated)


def test_policies_are_listed_in_the_order_they_came(gate, fresh_everkeel):
    made = [gate("b"), gate("a"), gate("c")]
    assert [policy.name for policy in fresh_everkeel] == ["b", "a", "c"]
    assert len(fresh_everkeel) == len(made)


def test_fresh_empties_the_registry_for_a_while(gate, fresh_everkeel):
    outside = gate("payments")
    with fresh_everkeel.fresh() as inside:
        assert list(inside) == []
        gate("payments")
    assert list(fresh_everkeel) == [outside]


def test_fresh_starts_every_policy_over_before_and_after(gate, fresh_everkeel):
    policy = gate()
    policy.call(len, "")
    with fresh_everkeel.fresh():
        assert policy.snapshot()["success"] == 0
        policy.call(len, "")
    assert policy.snapshot()["success"] == 0


def test_fresh_gives_back_what_was_there_when_the_block_fails(gate, fresh_everkeel):
    outside = gate("payments")
    with pytest.raises(ZeroDivisionError), fresh_everkeel.fresh():
        raise ZeroDivisionError
    assert list(fresh_everkeel) == [outside]


def test_registries_are_apart(gate):
    policy = gate("payments")
    other = Registry()
    other.add(policy, "payments")
    assert other.remove("gate", "payments")
    assert policy.name == "payments"
