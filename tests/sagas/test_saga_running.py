"""Sagas as a service runs them, in memory and in virtual time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from everkeel import NotRetryable, circuit_breaker, deadline, events
from everkeel.engines import MemoryEngine
from everkeel.errors import (
    ConfigError,
    SagaCompensatedError,
    SagaConflictError,
    SagaNotFoundError,
    SagaStateError,
    SagaStoppedError,
    UnknownSagaError,
)
from everkeel.messaging import Event
from everkeel.runtime.deadline import remaining
from everkeel.sagas import NOTHING, Context, Orchestrator, Parallel, Saga, SagaState, Step, StepStatus
from everkeel.sagas.happenings import Done
from everkeel.sagas.performing import Report
from everkeel.testing.contracts.inbox import rolled_back


class Refused(NotRetryable):
    """The bank said no."""


@dataclass
class Participants:
    """What was done and undone, in order; and what each step does, in place of working."""

    log: list[str] = field(default_factory=list)
    acts: dict[str, Any] = field(default_factory=dict)

    def step(self, name: str, *, undo: bool = True, **options: Any) -> Step:
        async def action(context: Context[Any, Any]) -> Any:
            self.log.append(name)
            return await self._act(name, context)

        async def compensation(context: Context[Any, Any]) -> None:
            self.log.append(f"-{name}")
            await self._act(f"-{name}", context)

        return Step(name, action, compensation if undo else None, **options)

    async def _act(self, name: str, context: Context[Any, Any]) -> Any:
        act = self.acts.get(name)
        if isinstance(act, list):
            act = act.pop(0) if act else None
        if isinstance(act, BaseException):
            raise act
        return await act(context) if callable(act) else f"{name} done"


@pytest.fixture
def shop() -> Participants:
    return Participants()


@asynccontextmanager
async def running(*sagas: Any, **options: Any) -> AsyncIterator[Orchestrator]:
    async with MemoryEngine() as engine, Orchestrator(engine, *sagas, **options) as orchestrator:
        yield orchestrator


def order(shop: Participants, **options: Any) -> Saga[Any, Any, Any]:
    return Saga("order", shop.step("reserve"), shop.step("charge"), shop.step("ship"), **options)


async def hang(context: Context[Any, Any]) -> None:
    await asyncio.sleep(1e6)


# ------------------------------------------------------------------ forward


async def test_steps_run_in_order_and_the_last_ones_result_is_the_sagas(virtual_time, shop):
    saga = order(shop)
    async with running(saga) as orchestrator:
        assert await orchestrator.run(saga, {"order": 7}, id="o-7") == "ship done"
        view = await orchestrator.sagas.get("o-7")
    assert shop.log == ["reserve", "charge", "ship"]
    assert view.state is SagaState.COMPLETED
    assert [entry.what for entry in view.timeline] == [
        "started", "step_started", "step_done", "step_started", "step_done", "step_started", "step_done", "completed",
    ]  # fmt: skip
    assert view.steps["charge"].result == "charge done"


@dataclass
class Basket:
    item: str
    count: int


@dataclass
class Progress:
    reserved: int = 0
    paid: bool = False


@dataclass
class Receipt:
    total: int


async def test_input_state_and_result_are_typed(virtual_time):
    async def reserve(context: Context[Basket, Progress]) -> None:
        context.state.reserved = context.input.count

    async def pay(context: Context[Basket, Progress]) -> None:
        assert context.state == Progress(reserved=3)
        context.state.paid = True

    saga: Saga[Basket, Progress, Receipt] = Saga(
        "typed", Step("reserve", reserve, NOTHING), Step("pay", pay, NOTHING), input=Basket, state=Progress,
        result=Receipt, returns=lambda context: Receipt(context.state.reserved * 5 if context.state.paid else 0),
    )  # fmt: skip
    async with running(saga) as orchestrator:
        assert await orchestrator.run(saga, Basket("tea", 3)) == Receipt(15)
        with pytest.raises(ConfigError, match="saga 'typed': input cannot be used"):
            await orchestrator.start(saga, {"item": "tea"})  # type: ignore[arg-type]  # the test


async def test_steps_of_a_group_run_together_and_merge_their_state(virtual_time, shop):
    both = asyncio.Event()
    there: list[str] = []

    async def meet(context: Context[Any, dict[str, Any]]) -> None:
        there.append(context.step)
        if len(there) == 2:
            both.set()
        await both.wait()
        context.state[context.step] = True

    shop.acts = {"charge": meet, "check": meet}
    saga = Saga("group", shop.step("reserve"), Parallel(shop.step("charge"), shop.step("check")), shop.step("ship"))
    async with running(saga) as orchestrator:
        await orchestrator.run(saga, id="g")
        assert (await orchestrator.sagas.get("g")).data == {"charge": True, "check": True}
    assert shop.log[0] == "reserve"
    assert shop.log[-1] == "ship"


async def test_a_step_whose_condition_is_false_is_skipped(virtual_time, shop):
    saga = Saga(
        "gift", shop.step("reserve"), shop.step("wrap", when=lambda context: context.input["gift"]), shop.step("ship")
    )
    async with running(saga) as orchestrator:
        await orchestrator.run(saga, {"gift": False}, id="plain")
        assert shop.log == ["reserve", "ship"]
        assert (await orchestrator.sagas.get("plain")).steps["wrap"].status is StepStatus.SKIPPED
        await orchestrator.run(saga, {"gift": True})
        assert shop.log == ["reserve", "ship", "reserve", "wrap", "ship"]


async def test_steps_may_wait_for_others_than_the_one_before(virtual_time, shop):
    saga = Saga("dag", shop.step("a"), shop.step("b", after=()), shop.step("c", after=("a", "b")))
    async with running(saga) as orchestrator:
        await orchestrator.run(saga)
    assert sorted(shop.log[:2]) == ["a", "b"]
    assert shop.log[2] == "c"


async def test_a_failure_is_tried_again_with_the_same_key(virtual_time, shop):
    keys: list[tuple[str, int]] = []

    async def flaky(context: Context[Any, Any]) -> str:
        keys.append((context.key, context.attempt))
        if len(keys) < 3:
            raise ConnectionError("away")
        return "paid"

    shop.acts["charge"] = flaky
    saga = order(shop)
    async with running(saga) as orchestrator:
        await orchestrator.run(saga, id="o-1")
    assert keys == [("o-1:charge", 1), ("o-1:charge", 2), ("o-1:charge", 3)]


async def test_a_plain_function_runs_in_a_thread(shop):
    def charge(context: Context[Any, Any]) -> str:
        return threading.current_thread().name

    saga = Saga("threads", Step("charge", charge, lambda context: None))

    async def main() -> str:
        async with running(saga) as orchestrator:
            return await orchestrator.run(saga)

    assert (await asyncio.to_thread(asyncio.run, main())).startswith("everkeel-sagas")


test_a_plain_function_runs_in_a_thread = pytest.mark.asyncio(test_a_plain_function_runs_in_a_thread)


# ------------------------------------------------------------------ back


async def test_a_business_rejection_turns_back_at_once_and_undoes_in_reverse(virtual_time, shop):
    shop.acts["ship"] = Refused("no such address")
    saga = order(shop)
    async with running(saga) as orchestrator:
        with pytest.raises(
            SagaCompensatedError, match=r"saga 'order' 'o-1' was compensated \(rejected\) at step 'ship'"
        ):
            await orchestrator.run(saga, id="o-1")
    assert shop.log == ["reserve", "charge", "ship", "-charge", "-reserve"]


async def test_the_definition_says_which_errors_are_rejections(virtual_time, shop):
    shop.acts["charge"] = KeyError("no account")
    saga = Saga("order", shop.step("reserve"), shop.step("charge", rejects=LookupError))
    async with running(saga) as orchestrator:
        with pytest.raises(SagaCompensatedError):
            await orchestrator.run(saga)
    assert shop.log == ["reserve", "charge", "-reserve"]


async def test_a_step_that_fails_for_good_may_have_been_done_and_is_undone_too(virtual_time, shop):
    shop.acts["charge"] = ConnectionError("reset")
    saga = order(shop)
    async with running(saga) as orchestrator:
        with pytest.raises(SagaCompensatedError, match=r"\(failed\) at step 'charge': ConnectionError: reset"):
            await orchestrator.run(saga)
    assert shop.log == ["reserve", *["charge"] * 3, "-charge", "-reserve"]


async def test_a_step_that_its_breaker_kept_from_running_needs_no_undoing(virtual_time, shop):
    bank = circuit_breaker("bank of sagas")
    bank.force_open()
    saga = Saga("order", shop.step("reserve"), shop.step("charge", policies=bank, attempts=2))
    async with running(saga) as orchestrator:
        with pytest.raises(SagaCompensatedError, match="CircuitOpenError"):
            await orchestrator.run(saga)
    assert shop.log == ["reserve", "-reserve"]


async def test_while_a_breaker_is_probed_a_step_waits_for_its_backoff_and_not_for_probes_to_be_lost(virtual_time, shop):
    bank = circuit_breaker("bank of probes", minimum_calls=1, window=1, open_for=1, probes=1)
    saga = Saga("order", shop.step("charge", policies=bank, attempts=9, backoff=0.5), deadline=30)
    async with running(saga) as orchestrator:
        bank.force_open()
        bank.half_open()
        with bank:  # somebody else's probe
            handle = await orchestrator.start(saga)
            await asyncio.sleep(2)
        await handle.result(timeout=3)
    assert shop.log == ["charge"]


async def test_a_saga_that_ends_before_the_next_try_of_a_step_is_let_go(virtual_time, shop):
    """The step would have been tried again in a minute, and the saga's time was over before."""
    bank = circuit_breaker("bank of long waits", open_for=60)
    bank.force_open()
    saga = Saga("order", shop.step("reserve"), shop.step("charge", policies=bank, attempts=3, backoff=60), deadline=8)
    async with running(saga) as orchestrator:
        with pytest.raises(SagaCompensatedError, match="timed_out"):
            await orchestrator.run(saga, id="o-1")
        await asyncio.sleep(0)
        assert not orchestrator.drivers
        assert (await orchestrator.store.load("o-1")).due_at is None
    assert shop.log == ["reserve", "-reserve"]


async def test_a_business_rejection_is_not_charged_to_the_breaker(virtual_time, shop):
    bank = circuit_breaker("bank of refusals", minimum_calls=1, window=1)
    shop.acts["charge"] = Refused("no funds")
    saga = Saga("order", shop.step("charge", policies=bank))
    async with running(saga) as orchestrator:
        for _ in range(3):
            with pytest.raises(SagaCompensatedError):
                await orchestrator.run(saga)
    assert bank.snapshot()["state"] == "closed"


async def test_a_timeout_of_a_step_leaves_its_outcome_unknown(virtual_time, shop):
    shop.acts["charge"] = hang
    saga = Saga("order", shop.step("reserve"), shop.step("charge", timeout=2.0, attempts=2, backoff=0))
    async with running(saga) as orchestrator:
        with pytest.raises(SagaCompensatedError, match="no answer within 2 s"):
            await orchestrator.run(saga, id="o")
        assert virtual_time.monotonic() == pytest.approx(4.0, abs=0.1)
    assert shop.log == ["reserve", "charge", "charge", "-charge", "-reserve"]


async def test_on_unknown_compensate_does_not_ask_again(virtual_time, shop):
    shop.acts["charge"] = ConnectionError("reset")
    saga = Saga("order", shop.step("charge", on_unknown="compensate"))
    async with running(saga) as orchestrator:
        with pytest.raises(SagaCompensatedError):
            await orchestrator.run(saga)
    assert shop.log == ["charge", "-charge"]


async def test_steps_that_run_beside_a_rejected_one_are_interrupted_and_undone(virtual_time, shop):
    shop.acts = {"charge": hang, "check": Refused("fraud")}
    saga = Saga("group", shop.step("reserve"), Parallel(shop.step("charge"), shop.step("check")))
    async with running(saga) as orchestrator:
        with pytest.raises(SagaCompensatedError):
            await orchestrator.run(saga)
    assert shop.log[-2:] == ["-charge", "-reserve"]


# ------------------------------------------------------------------ time


async def test_a_saga_whose_time_is_over_turns_back(virtual_time, shop):
    shop.acts["charge"] = hang
    saga = order(shop, deadline=5.0)
    heard: list[Any] = []
    async with running(saga) as orchestrator:
        orchestrator.subscribe(heard.append, events.SagaTimedOut)
        with pytest.raises(SagaCompensatedError, match="timed_out"):
            await orchestrator.run(saga, id="o")
        assert virtual_time.monotonic() == pytest.approx(5.0, abs=0.1)
        assert orchestrator.snapshot()["counts"]["order"]["timed_out"] == 1
        stats = await orchestrator.sagas.stats()
        assert stats["order"].timed_out == 1
    assert shop.log == ["reserve", "charge", "-charge", "-reserve"]
    assert [(event.saga_id, event.compensating) for event in heard] == [("o", True)]


async def test_thirty_seconds_is_the_default_deadline(virtual_time, shop):
    shop.acts["charge"] = hang
    saga = order(shop)
    async with running(saga) as orchestrator:
        with pytest.raises(SagaCompensatedError):
            await orchestrator.run(saga)
        assert virtual_time.monotonic() == pytest.approx(30.0, abs=0.1)


async def test_a_late_success_does_not_resurrect_the_saga_and_is_undone(virtual_time, shop):
    async def stubborn(context: Context[Any, Any]) -> str:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            return "charged all the same"
        return ""

    shop.acts["charge"] = stubborn
    saga = order(shop, deadline=5.0)
    async with running(saga) as orchestrator:
        with pytest.raises(SagaCompensatedError):
            await orchestrator.run(saga, id="o")
        view = await orchestrator.sagas.get("o")
    assert shop.log == ["reserve", "charge", "-charge", "-reserve"]
    assert "late_done" in [entry.what for entry in view.timeline]


async def test_a_success_that_comes_to_light_after_the_end_is_undone_and_changes_no_state(virtual_time, shop):

    shop.acts["charge"] = hang
    saga = order(shop, deadline=5.0)
    async with running(saga) as orchestrator:
        with pytest.raises(SagaCompensatedError):
            await orchestrator.run(saga, id="o")
        shop.log.clear()
        orchestrator.report_late("o", Report(Done("charge", "late")))
        await asyncio.sleep(1)
        view = await orchestrator.sagas.get("o")
        assert (view.state, view.steps["charge"].status) == (SagaState.COMPENSATED, StepStatus.UNDONE)
        assert shop.log == ["-charge"]


async def test_many_detectors_time_each_saga_out_once(virtual_time, shop):
    shop.acts["charge"] = hang
    saga = order(shop, deadline=3.0)
    async with MemoryEngine() as engine:
        starter = Orchestrator(engine, saga)
        for number in range(40):
            await starter.start(saga, id=f"o-{number}")  # nobody works on them: it does not run
        await asyncio.sleep(10)
        detectors = [Orchestrator(engine, saga, name=f"d{number}", batch=3) for number in range(4)]
        for detector in detectors:
            await detector.__aenter__()
        await asyncio.sleep(30)
        for detector in detectors:
            await detector.stop()
        assert sum(detector.counts["order", "timed_out"] for detector in detectors) == 40
        assert (await starter.sagas.stats())["order"].by_state == {SagaState.COMPENSATED: 40}


async def test_the_deadline_of_the_request_that_started_it_is_not_the_sagas(virtual_time, shop):
    left: dict[str, float | None] = {}

    async def look(context: Context[Any, Any]) -> None:
        await asyncio.sleep(3)
        left[context.key] = remaining()
        if context.step == "ship":
            raise Refused("no")

    shop.acts = dict.fromkeys(["reserve", "charge", "ship", "-charge"], look)
    saga = order(shop, deadline=20)
    async with running(saga) as orchestrator:
        with deadline(2):
            handle = await orchestrator.start(saga, id="o")
        with pytest.raises(SagaCompensatedError):
            await handle.result()
    assert left["o:ship"] == pytest.approx(11, abs=0.1), "actions know how much time the saga has"
    assert left["o:charge:undo"] is None, "the way back has no deadline"


# ------------------------------------------------------------------ the pivot


async def test_past_the_pivot_there_is_only_forward(virtual_time, shop):
    shop.acts["ship"] = [ConnectionError("away")] * 20
    saga = Saga(
        "order", shop.step("reserve"), shop.step("charge", undo=False, pivot=True), shop.step("ship", undo=False),
        deadline=5.0,
    )  # fmt: skip
    heard: list[Any] = []
    async with running(saga) as orchestrator:
        orchestrator.subscribe(heard.append, events.SagaTimedOut)
        handle = await orchestrator.start(saga)
        await asyncio.sleep(1)
        with pytest.raises(SagaStateError, match="past its pivot"):
            await handle.cancel()
        assert await handle.result() == "ship done"
    assert shop.log == ["reserve", "charge", *["ship"] * 21]
    assert [event.compensating for event in heard] == [False]


async def test_a_rejection_past_the_pivot_parks_the_saga_until_an_operator_resumes_it(virtual_time, shop):
    shop.acts["ship"] = [Refused("no such address")]
    saga = Saga("order", shop.step("charge", undo=False, pivot=True), shop.step("ship", undo=False))
    async with running(saga) as orchestrator:
        handle = await orchestrator.start(saga, id="o")
        with pytest.raises(SagaStoppedError, match=r"is parked at step 'ship'.*no such address"):
            await handle.result()
        await orchestrator.sagas.resume("o", actor="ada", reason="address corrected")
        assert await handle.result() == "ship done"


async def test_a_pivot_that_says_no_lets_the_saga_turn_back(virtual_time, shop):
    shop.acts["charge"] = Refused("no funds")
    saga = Saga("order", shop.step("reserve"), shop.step("charge", undo=False, pivot=True))
    async with running(saga) as orchestrator:
        with pytest.raises(SagaCompensatedError):
            await orchestrator.run(saga)
    assert shop.log == ["reserve", "charge", "-reserve"]


# ------------------------------------------------------------------ operators


async def blocked(orchestrator: Orchestrator, saga: Saga[Any, Any, Any]) -> Any:
    handle = await orchestrator.start(saga, id="o")
    with pytest.raises(SagaStoppedError, match="is compensation_blocked at step 'charge'"):
        await handle.result()
    return handle


async def test_a_compensation_that_fails_for_good_blocks_the_saga_and_an_operator_retries_it(virtual_time, shop):
    shop.acts = {"ship": Refused("no"), "-charge": [ConnectionError("away")] * 5}
    saga = order(shop)
    async with running(saga) as orchestrator:
        handle = await blocked(orchestrator, saga)
        assert shop.log == ["reserve", "charge", "ship", *["-charge"] * 5], "the earlier step waits for this one"
        with pytest.raises(SagaStateError, match="cannot retry step 'reserve', which is done"):
            await orchestrator.sagas.retry("o", "reserve", actor="ada")
        await orchestrator.sagas.retry("o", "charge", actor="ada")
        with pytest.raises(SagaCompensatedError):
            await handle.result()
    assert shop.log[-2:] == ["-charge", "-reserve"]


@pytest.mark.parametrize(("what", "status"), [("skip", StepStatus.UNDO_SKIPPED), ("mark_done", StepStatus.UNDONE)])
async def test_an_operator_deals_with_a_blocked_compensation_giving_a_reason(virtual_time, shop, what, status):
    shop.acts = {"ship": Refused("no"), "-charge": Refused("refunds are closed")}
    saga = order(shop)
    async with running(saga) as orchestrator:
        handle = await blocked(orchestrator, saga)
        act = getattr(orchestrator.sagas, what)
        with pytest.raises(SagaStateError, match="a reason is needed"):
            await act("o", "charge", actor="ada", reason=" ")
        with pytest.raises(SagaStateError, match=r"cannot .* step 'nonsense'.*there is no such step"):
            await act("o", "nonsense", actor="ada", reason="r")
        await act("o", "charge", actor="ada", reason="refunded by hand")
        with pytest.raises(SagaCompensatedError):
            await handle.result()
        view = await orchestrator.sagas.get("o")
        assert view.steps["charge"].status is status
        line = next(entry for entry in view.timeline if entry.what == what)
        assert (line.actor, line.detail, line.step) == ("ada", "refunded by hand", "charge")
    assert shop.log[-1] == "-reserve"


async def test_on_blocked_continue_undoes_the_rest_before_it_waits(virtual_time, shop):
    shop.acts = {"ship": Refused("no"), "-charge": Refused("refunds are closed")}
    saga = order(shop, on_blocked="continue")
    async with running(saga) as orchestrator:
        await blocked(orchestrator, saga)
        assert shop.log[-2:] == ["-charge", "-reserve"]


async def test_failed_is_reached_only_from_where_nothing_goes_on(virtual_time, shop):
    shop.acts = {"ship": Refused("no"), "-charge": Refused("closed"), "reserve": hang}
    saga = order(shop)
    async with running(saga) as orchestrator:
        await orchestrator.start(saga, id="busy")
        with pytest.raises(SagaStateError, match="saga 'order' 'busy' is running: cannot fail"):
            await orchestrator.sagas.fail("busy", actor="ada", reason="no patience")
        del shop.acts["reserve"]
        handle = await blocked(orchestrator, saga)
        await orchestrator.sagas.fail("o", actor="ada", reason="written off")
        with pytest.raises(SagaStoppedError, match="is failed"):
            await handle.result()
        with pytest.raises(SagaStateError):
            await orchestrator.sagas.retry("o", "charge", actor="ada")


async def test_a_saga_can_be_cancelled(virtual_time, shop):
    shop.acts["ship"] = hang
    saga = order(shop)
    async with running(saga) as orchestrator:
        handle = await orchestrator.start(saga, id="o")
        await asyncio.sleep(1)
        await handle.cancel(actor="bob", reason="changed my mind")
        with pytest.raises(SagaCompensatedError, match=r"\(cancelled\).*changed my mind"):
            await handle.result()
        await handle.cancel()  # that is how it is already
    assert shop.log == ["reserve", "charge", "ship", "-ship", "-charge", "-reserve"]


async def test_a_completed_saga_cannot_be_cancelled(virtual_time, shop):
    saga = order(shop)
    async with running(saga) as orchestrator:
        await orchestrator.run(saga, id="o")
        with pytest.raises(SagaStateError, match="saga 'order' 'o' is completed: cannot cancel"):
            await orchestrator.sagas.cancel("o")
        with pytest.raises(SagaNotFoundError, match="there is no saga 'p'"):
            await orchestrator.sagas.cancel("p")


async def test_an_operator_elsewhere_is_heard_by_who_works_on_the_saga(virtual_time, shop):
    from everkeel.sagas import Sagas

    shop.acts["ship"] = hang
    saga = order(shop, deadline=None)
    async with running(saga, lease=3.0) as orchestrator:
        handle = await orchestrator.start(saga, id="o")
        await asyncio.sleep(0.1)
        await Sagas(orchestrator.engine).cancel("o", actor="bob")
        with pytest.raises(SagaCompensatedError):
            await handle.result(timeout=5)
    assert shop.log == ["reserve", "charge", "ship", "-ship", "-charge", "-reserve"]


# ------------------------------------------------------------------ identity, versions, bad input


async def test_a_second_start_with_the_same_id_is_the_same_saga(virtual_time, shop):
    saga = order(shop)
    other = Saga("other", shop.step("x"))
    async with running(saga, other) as orchestrator:
        first = await orchestrator.start(saga, {"n": 1}, id="o")
        second = await orchestrator.start(saga, {"n": 1}, id="o")
        assert (first.created, second.created) == (True, False)
        assert await first.result() == await second.result() == "ship done"
        with pytest.raises(SagaConflictError, match="began with another input"):
            await orchestrator.start(saga, {"n": 2}, id="o")
        with pytest.raises(SagaConflictError, match="it is a saga 'order'"):
            await orchestrator.start(other, {"n": 1}, id="o")
    assert shop.log == ["reserve", "charge", "ship"]


async def test_a_saga_finishes_on_the_version_it_began_with(virtual_time, shop):
    old, new = order(shop), Saga("order", shop.step("new"), version=2)
    shop.acts["charge"] = hang
    async with MemoryEngine() as engine:
        first = Orchestrator(engine, old)
        async with first:
            handle = await first.start(old, id="o")
            await asyncio.sleep(1)
            await first.stop(grace=0)
        del shop.acts["charge"]
        async with Orchestrator(engine, old, new) as second:
            assert await second.handle(old, "o").result() == "ship done"
            assert await second.run(new) == "new done"
    assert handle.id == "o"


async def test_a_saga_of_a_version_nobody_knows_is_parked_after_a_while(virtual_time, shop):
    old, new = order(shop), Saga("order", shop.step("new"), version=2)
    async with MemoryEngine() as engine:
        await Orchestrator(engine, old).start(old, id="o", deadline=600)
        async with Orchestrator(engine, new, park_after=60) as orchestrator:
            await asyncio.sleep(30)
            assert (await orchestrator.sagas.get("o")).state is SagaState.PENDING, "somebody else may know it"
            await asyncio.sleep(60)
            view = await orchestrator.sagas.get("o")
            assert (view.state, view.summary.cause) == (SagaState.PARKED, "unknown_definition")
            assert "no definition of order@1" in (view.error or "")
        async with Orchestrator(engine, old) as knows:
            await knows.sagas.resume("o", actor="ada")
            assert await knows.handle(old, "o").result() == "ship done"


async def test_a_definition_that_raises_parks_the_saga(virtual_time, shop):
    def broken(context: Context[Any, Any]) -> bool:
        raise ZeroDivisionError("of mine")

    saga = Saga("broken", shop.step("a"), shop.step("b", when=broken))
    async with running(saga) as orchestrator:
        with pytest.raises(SagaStoppedError, match=r"parked.*ZeroDivisionError: of mine"):
            await orchestrator.run(saga)


async def test_what_is_unknown_or_wrong_is_refused_with_its_name(virtual_time, shop):
    saga = order(shop)
    async with running(saga) as orchestrator:
        with pytest.raises(
            UnknownSagaError, match=r"saga 'trip' 't': no definition of version 1 here \(known: order@1\)"
        ):
            await orchestrator.start(Saga("trip", shop.step("fly")), id="t")
        with pytest.raises(ConfigError, match="version 1 has another definition here"):
            await orchestrator.start(order(shop))
        with pytest.raises(ConfigError, match="saga 'order': id must be a printable text"):
            await orchestrator.start(saga, id=" ")
        with pytest.raises(ConfigError, match="saga 'order': input cannot be used"):
            await orchestrator.start(saga, object())
        with pytest.raises(ConfigError, match="state must be of pending, running"):
            await orchestrator.sagas.list(state="sleeping")
        with pytest.raises(SagaNotFoundError):
            await orchestrator.sagas.get("nobody")


async def test_who_waits_not_long_enough_is_told_so_and_the_saga_goes_on(virtual_time, shop):
    async def slow(context: Context[Any, Any]) -> str:
        await asyncio.sleep(5)
        return "slow"

    shop.acts["ship"] = slow
    saga = order(shop)
    async with running(saga) as orchestrator:
        handle = await orchestrator.start(saga)
        with pytest.raises(TimeoutError, match="was not over within 1 s"):
            await handle.result(timeout=1)
        assert await handle.result() == "slow"


# ------------------------------------------------------------------ others


async def test_a_saga_can_be_started_in_the_callers_transaction(virtual_time, shop):
    saga = order(shop)
    async with running(saga) as orchestrator:
        await rolled_back(orchestrator.engine.transaction, lambda tx: orchestrator.start(saga, id="never", tx=tx))
        async with orchestrator.engine.transaction() as tx:
            handle = await orchestrator.start(saga, id="o", tx=tx)
            await asyncio.sleep(20)
            assert shop.log == []
        assert await handle.result() == "ship done"
        with pytest.raises(SagaNotFoundError):
            await orchestrator.sagas.get("never")


async def test_events_of_a_step_are_sent_with_it_once_and_say_where_they_belong(virtual_time, shop):
    async def charge(context: Context[Any, Any]) -> None:
        context.emit(Event("PaymentTaken", {"amount": 5}, source="/bank"), topic="payments")
        if context.attempt == 1:
            raise ConnectionError("reset")

    shop.acts["charge"] = charge
    saga = order(shop)
    async with running(saga) as orchestrator:
        await orchestrator.run(saga, id="o", correlation_id="c-1")
        claimed = await orchestrator.engine.outbox.claim("test", 10, 60)
    from everkeel.messaging.rows import event_of

    (event,) = [event_of(one.row) for one in claimed]
    assert claimed[0].row.topic == "payments"
    assert (event.type, event.id, event.data) == ("PaymentTaken", "o:charge:0", {"amount": 5})
    assert (event.saga_id, event.saga_type, event.saga_step) == ("o", "order", "charge")
    assert (event.correlation_id, event.key, event.attributes["sagastepnumber"]) == ("c-1", "o", 2)


async def test_what_happens_is_announced_over_the_outbox_and_to_listeners(virtual_time, shop):
    shop.acts["ship"] = Refused("no")
    saga = order(shop)
    heard: list[str] = []
    async with running(saga, announce="audit") as orchestrator:
        orchestrator.subscribe(lambda event: heard.append(type(event).__name__))
        with pytest.raises(SagaCompensatedError):
            await orchestrator.run(saga, id="o")
        claimed = await orchestrator.engine.outbox.claim("test", 100, 60)
    assert heard == [
        "SagaStarted", "StepCompleted", "StepCompleted", "StepRejected", "Compensating", "StepUndone", "StepUndone",
        "SagaCompensated",
    ]  # fmt: skip
    assert [one.row.type for one in claimed] == [
        "saga.started", "saga.step_done", "saga.step_done", "saga.step_rejected", "saga.compensating",
        "saga.step_undone", "saga.step_undone", "saga.compensated",
    ]  # fmt: skip


async def test_what_cannot_be_written_down_is_a_failure_of_its_step(virtual_time, shop):
    async def odd(context: Context[Any, Any]) -> object:
        return object()

    saga = Saga("odd", Step("a", odd, NOTHING, attempts=1))
    async with running(saga) as orchestrator:
        with pytest.raises(SagaCompensatedError, match="cannot be written as JSON"):
            await orchestrator.run(saga)


async def test_more_sagas_than_it_may_have_in_its_hands_wait_their_turn(virtual_time, shop):
    most, here = 0, 0

    async def count(context: Context[Any, Any]) -> None:
        nonlocal most, here
        here += 1
        most = max(most, here)
        await asyncio.sleep(1)
        here -= 1

    shop.acts["a"] = count
    saga = Saga("many", shop.step("a"), deadline=None)
    async with running(saga, concurrency=3) as orchestrator:
        handles = [await orchestrator.start(saga) for _ in range(10)]
        for handle in handles:
            await handle.result()
    assert most == 3


def test_a_thread_that_cannot_be_interrupted_and_succeeds_after_all_is_undone_again():
    go_on, log = threading.Event(), []

    def charge(context: Context[Any, Any]) -> str:
        log.append("charge")
        go_on.wait(30)
        return "charged"

    async def refund(context: Context[Any, Any]) -> None:
        log.append("refund")

    saga = Saga("stubborn", Step("charge", charge, refund, attempts=1, timeout=0.05))

    async def main() -> None:
        async with running(saga, poll=0.05) as orchestrator:
            with pytest.raises(SagaCompensatedError, match=r"no answer within 0\.05 s"):
                await orchestrator.run(saga, id="o")
            assert log == ["charge", "refund"]
            go_on.set()
            for _ in range(3000):
                await asyncio.sleep(0.01)
                view = await orchestrator.sagas.get("o")
                if view.steps["charge"].undos == 2 and view.summary.owner is None:
                    break
            assert (view.state, view.steps["charge"].status) == (SagaState.COMPENSATED, StepStatus.UNDONE)
            assert log == ["charge", "refund", "refund"]

    asyncio.run(main())


async def test_a_saga_that_cannot_be_written_harms_no_other_in_its_batch(virtual_time):
    from everkeel.sagas.writer import Writer
    from everkeel.testing.contracts.sagas import new

    class Picky(MemoryEngine().sagas.__class__):  # type: ignore[misc]  # a memory store that refuses one
        async def write(self, sagas: Any, changes: Any) -> Any:
            if any(saga.id == "bad" for saga in sagas):
                raise ValueError("not this one")
            return await super().write(sagas, changes)

    writer = Writer(Picky(MemoryEngine()))
    answers = await asyncio.gather(*(writer.create(new(id)) for id in ("a", "bad", "b")), return_exceptions=True)
    assert [isinstance(answer, ValueError) for answer in answers] == [False, True, False]


async def test_an_error_with_half_a_character_in_it_can_be_written_down(virtual_time, shop, tmp_path):
    shop.acts["charge"] = Refused("\ud800 \0 ü")
    saga = order(shop)
    async with running(saga) as orchestrator:
        with pytest.raises(SagaCompensatedError):
            await orchestrator.run(saga, id="o")
        row = await orchestrator.store.load("o")
        assert row is not None
        row.document.encode()


async def test_a_saga_that_is_resumed_has_its_time_again(virtual_time, shop):
    old, new = order(shop, deadline=20.0), Saga("order", shop.step("reserve"), version=2)
    async with MemoryEngine() as engine:
        await Orchestrator(engine, old).start(old, id="o")
        for _ in range(2):  # nobody knows the version, until it is parked; and then once more
            async with Orchestrator(engine, new) as orchestrator:
                await asyncio.sleep(600)
                assert (await orchestrator.sagas.get("o")).state is SagaState.PARKED
                view = await orchestrator.sagas.resume("o", actor="ada")
                left = (view.summary.deadline_at or 0.0) - engine.clock.time()
                assert left == pytest.approx(20.0)
        shop.acts["ship"] = hang
        async with Orchestrator(engine, old) as orchestrator:
            await asyncio.sleep(15)
            assert (await orchestrator.sagas.get("o")).state is SagaState.RUNNING
            assert (await orchestrator.wait("o")).cause == "timed_out"


async def test_a_step_that_is_interrupted_before_it_begins_says_so(virtual_time, shop):
    saga = order(shop, deadline=None)
    async with running(saga) as orchestrator:
        await orchestrator.start(saga, id="o")
        driver = orchestrator.drivers["o"]
        await orchestrator.sagas.cancel("o", revision=1)  # written before its driver has begun anything
        assert (await orchestrator.wait("o", 10)).state is SagaState.COMPENSATED
        assert driver.gone.done()
    assert shop.log == []


@pytest.mark.parametrize("change", ["added", "removed"])
async def test_steps_that_changed_within_a_version_park_what_began_before(virtual_time, shop, change):
    shop.acts["charge"] = hang
    before = order(shop, deadline=None)
    names = ["reserve", "charge", "ship", "mail"] if change == "added" else ["reserve", "ship"]
    after: Saga[Any, Any, Any] = Saga("order", *map(shop.step, names), deadline=None)
    async with MemoryEngine() as engine:
        async with Orchestrator(engine, before) as orchestrator:
            await orchestrator.start(before, id="o")
            await asyncio.sleep(1)
            await orchestrator.stop(0)
        async with Orchestrator(engine, after) as orchestrator:
            assert (await orchestrator.wait("o")).state is SagaState.PARKED
            view = await orchestrator.sagas.get("o")
        assert view.summary.cause == "changed_definition"
        assert f"the steps of order@1 have changed ({'mail' if change == 'added' else 'charge'} {change})" in view.error
        del shop.acts["charge"]
        async with Orchestrator(engine, before) as orchestrator:  # rolled back, and resumed
            await orchestrator.sagas.resume("o", actor="ada")
            assert (await orchestrator.wait("o")).state is SagaState.COMPLETED


async def test_a_saga_with_a_long_timeline_still_knows_how_long_it_took(virtual_time, shop):
    shop.acts["ship"] = [ConnectionError("no road")] * 300
    saga = Saga("order", shop.step("charge", pivot=True), shop.step("ship", backoff=1.0, jitter=None), deadline=None)
    heard: list[Any] = []
    async with running(saga) as orchestrator:
        orchestrator.subscribe(heard.append, events.SagaCompleted)
        await orchestrator.run(saga, id="o")
        assert len((await orchestrator.sagas.get("o")).timeline) == 500
    assert heard[0].duration >= 300


async def test_what_a_compensation_changes_in_the_state_is_kept(virtual_time, shop):
    async def undo(context: Context[Any, Any]) -> None:
        context.state["refund"] = "r-1"

    async def reads(context: Context[Any, Any]) -> None:
        shop.log.append(context.state["refund"])

    shop.acts |= {"-charge": undo, "-reserve": reads, "ship": Refused("no")}
    saga = order(shop)
    async with running(saga) as orchestrator:
        with pytest.raises(SagaCompensatedError):
            await orchestrator.run(saga, id="o")
        assert (await orchestrator.sagas.get("o")).data == {"refund": "r-1"}
    assert shop.log[-3:] == ["-charge", "-reserve", "r-1"]


async def test_what_is_undone_again_after_a_late_success_is_no_repetition(virtual_time, shop):
    """A service that remembers keys, and was asked to undo before there was anything to undo."""
    charged: list[str] = []
    remembered: set[str] = set()

    async def refund(context: Context[Any, Any]) -> None:
        shop.log.append(context.key)
        if context.key not in remembered:
            remembered.add(context.key)
            charged.clear()
        if len(shop.log) in (1, 3):
            raise ConnectionError("the answer was lost")

    async def charge(context: Context[Any, Any]) -> None:
        await asyncio.sleep(1e6)

    saga: Saga[Any, Any, Any] = Saga("order", Step("charge", charge, refund, timeout=1, attempts=1), deadline=None)
    async with running(saga) as orchestrator:
        with pytest.raises(SagaCompensatedError):
            await orchestrator.run(saga, id="o")
        charged.append("after all")
        orchestrator.report_late("o", Report(Done("charge")))
        await asyncio.sleep(60)
        assert not charged
    assert shop.log == ["o:charge:undo"] * 2 + ["o:charge:undo:1"] * 2
