"""What a definition hides is hidden from everybody but its steps; with a codec, also from who reads the store."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from everkeel import NotRetryable
from everkeel.engines import MemoryEngine
from everkeel.errors import ConfigError, SagaCompensatedError, SagaConflictError, SagaStoppedError
from everkeel.messaging import Event
from everkeel.runtime import tracing
from everkeel.runtime.events import subscribe
from everkeel.sagas import Choreography, Orchestrator, Reaction, Saga, Sagas, SagaState, Step
from everkeel.telemetry.linked import LinkedSpans
from everkeel.telemetry.logs import log_events

CARD = "4111-1111"
told: list[Any] = []


async def authorise(context: Any) -> dict[str, str]:
    context.state["iban"] = "DE02-1234"
    return {"token": "tok-99", "by": "visa"}


async def charge(context: Any) -> None:
    told.append((context.input["card"], context.state["iban"], context.results["authorise"]["token"]))
    raise NotRetryable(f"{context.input['card']} with {context.results['authorise']['token']} was refused")


async def keep(context: Any) -> None:
    raise ConnectionError(f"{context.state['iban']} cannot be reached")


def order(**options: Any) -> Saga[Any, Any, Any]:
    return Saga(
        "order", Step("authorise", authorise, keep, undo_attempts=1), Step("charge", charge, keep),
        redact=["card", "IBAN", "token"], **options,
    )  # fmt: skip


SECRETS = (CARD, "DE02-1234", "tok-99")


def open_in(text: str) -> list[str]:
    """The secrets that a text tells."""
    return [secret for secret in SECRETS if secret in text]


async def test_nobody_but_the_steps_sees_what_is_hidden(virtual_time, caplog):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.open_with(LinkedSpans(provider.get_tracer("test")))
    caplog.set_level(logging.DEBUG)
    saga, heard = order(), []
    listening, logging_them = subscribe(heard.append), log_events()
    try:
        async with MemoryEngine() as engine, Orchestrator(engine, saga, announce="told") as orchestrator:
            told.clear()
            with pytest.raises(SagaStoppedError) as stopped:
                await orchestrator.run(saga, {"card": CARD, "item": "tea"}, id="o")
            await orchestrator.sagas.skip("o", "authorise", actor="ada", reason=f"settled for {CARD}")
            with pytest.raises(SagaCompensatedError) as ended:
                await orchestrator.handle(saga, "o").result()
            view = await Sagas(engine).get("o")
            announced = [claimed.row.payload for claimed in await engine.outbox.claim("me", 100, 60.0)]
            whole = await Sagas(engine).get("o", reveal=True)
    finally:
        listening.cancel()
        logging_them.cancel()
        tracing.open_with(None)
    assert told == [SECRETS]
    assert (view.input, view.data["iban"]) == ({"card": "***", "item": "tea"}, "***")
    assert view.steps["authorise"].result == {"token": "***", "by": "visa"}
    spans = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert "NotRetryable" in spans
    assert len(heard) > 5
    assert "*** with *** was refused" in str(ended.value)
    seen = [repr(view), repr(heard), str(stopped.value), str(ended.value), caplog.text, spans, json.dumps(announced)]
    assert [open_in(text) for text in seen] == [[]] * len(seen)
    assert whole.input["card"] == CARD


async def test_a_result_can_be_hidden_by_the_name_of_its_step(virtual_time):
    async def quote(context: Any) -> str:
        return "secret-price"

    async def broken(context: Any) -> None:
        raise NotRetryable(f"who pays {context.results['quote']}?")

    async def undo(context: Any) -> None:
        pass

    saga: Saga[Any, Any, Any] = Saga("order", Step("quote", quote, undo), Step("pay", broken, undo), redact=["quote"])
    async with MemoryEngine() as engine, Orchestrator(engine, saga) as orchestrator:
        with pytest.raises(SagaCompensatedError, match=r"who pays \*\*\*\?"):
            await orchestrator.run(saga, id="o")
        view = await orchestrator.sagas.get("o")
        assert view.steps["quote"].result == "***"
        assert "secret-price" not in repr(view)


async def test_what_services_say_is_hidden_too(virtual_time):
    shop = Choreography(
        "shop", Reaction("pay", done="Paid", rejected="Refused", compensation="Refund", undone="Refunded"),
        starts="Placed", redact=["card"],
    )  # fmt: skip
    async with MemoryEngine() as engine, Orchestrator(engine, shop) as orchestrator:
        placed = shop.mark(Event("Placed", {"card": CARD}, source="/shop", id="o"))
        said = {"card": "5500-0000", "reason": f"5500-0000 is not {CARD}"}
        refused = shop.mark(Event("Refused", said, source="/bank"), cause=placed)
        for event in (placed, refused):
            await orchestrator.observe(event)
        view = await orchestrator.sagas.get("o")
        assert (view.state, view.input) == (SagaState.COMPENSATED, {"card": "***"})
        assert view.error == "Refused: *** is not ***"


@dataclass
class Paid:
    card: int


async def test_an_input_that_cannot_be_used_is_not_repeated(virtual_time):
    saga = order(input=Paid)
    async with MemoryEngine() as engine, Orchestrator(engine, saga) as orchestrator:
        with pytest.raises(ConfigError, match="saga 'order': input cannot be used") as refused:
            await orchestrator.start(saga, {"card": CARD, "more": 1})  # type: ignore[arg-type]
        assert CARD not in str(refused.value)
        assert refused.value.__suppress_context__


@pytest.mark.parametrize("names", ["card", 7, [7], [""]])
def test_names_of_hidden_fields_are_a_list_of_texts(names):
    with pytest.raises(ConfigError, match="saga 'order': redact must be names of fields, as a list"):
        Saga("order", Step("charge", charge, keep), redact=names)


# ------------------------------------------------------------------ at rest


class Armour:
    """Not a cipher, but nobody reads it by accident."""

    def __init__(self, key: str) -> None:
        self.key = key

    def encode(self, text: str) -> str:
        return self.key + base64.b64encode(text.encode()).decode()

    def decode(self, text: str) -> str:
        if not text.startswith(self.key):
            raise ValueError("another key")
        return base64.b64decode(text.removeprefix(self.key)).decode()


async def greet(context: Any) -> str:
    return f"hello {context.input}"


async def forget(context: Any) -> None:
    pass


GREETING: Saga[Any, Any, Any] = Saga("greeting", Step("greet", greet, forget))


async def test_what_is_kept_is_encoded_and_can_be_read_with_the_codec(virtual_time):
    async with MemoryEngine() as engine:
        async with Orchestrator(engine, GREETING, codec=Armour("k1")) as orchestrator:
            assert await orchestrator.run(GREETING, "ada", id="o") == "hello ada"
            assert not (await orchestrator.start(GREETING, "ada", id="o")).created
            with pytest.raises(SagaConflictError, match="another input"):
                await orchestrator.start(GREETING, "eve", id="o")
        kept = (await engine.sagas.load("o")).document
        assert kept.startswith("coded:k1")
        assert "ada" not in kept
        assert (await Sagas(engine, codec=Armour("k1")).get("o")).result == "hello ada"
        assert "takes the codec" in str((await Sagas(engine).get("o")).error)


async def test_sagas_that_began_without_a_codec_end_with_one(virtual_time):
    async with MemoryEngine() as engine:
        handle = await Orchestrator(engine, GREETING).start(GREETING, "ada", id="o")
        async with Orchestrator(engine, GREETING, codec=Armour("k1")) as orchestrator:
            assert await orchestrator.handle(GREETING, handle.id).result() == "hello ada"
        assert (await engine.sagas.load("o")).document.startswith("coded:")


async def test_a_saga_that_cannot_be_decoded_is_parked_as_it_is_and_goes_on_with_the_key(virtual_time):
    async with MemoryEngine() as engine:
        await Orchestrator(engine, GREETING, codec=Armour("k1")).start(GREETING, "ada", id="o")
        kept = (await engine.sagas.load("o")).document
        for codec in (None, Armour("k2")):
            async with Orchestrator(engine, GREETING, codec=codec) as orchestrator:
                await asyncio.sleep(60)
            row = await engine.sagas.load("o")
            assert (row.state, row.cause, row.document) == (SagaState.PARKED, "poison", kept)
        async with Orchestrator(engine, GREETING, codec=Armour("k1")) as orchestrator:
            await orchestrator.sagas.resume("o", actor="ada", reason="the key is there")
            assert await orchestrator.handle(GREETING, "o").result() == "hello ada"


async def test_a_saga_on_its_way_back_that_could_not_be_read_does_not_go_forward_again(virtual_time):
    async def hang(context: Any) -> None:
        await asyncio.sleep(1e6)

    log: list[str] = []

    async def undo(context: Any) -> None:
        log.append(context.step)

    async def act(context: Any) -> None:
        log.append(f"+{context.step}")

    saga: Saga[Any, Any, Any] = Saga("order", Step("a", act, undo), Step("b", hang, undo), deadline=None)
    async with MemoryEngine() as engine:
        async with Orchestrator(engine, saga, codec=Armour("k1")) as orchestrator:
            await orchestrator.start(saga, id="o")
            await asyncio.sleep(1)
            await orchestrator.stop(0)
        await Sagas(engine, codec=Armour("k1")).cancel("o")
        async with Orchestrator(engine, saga):  # no key
            await asyncio.sleep(60)
        assert (await engine.sagas.load("o")).state is SagaState.PARKED
        async with Orchestrator(engine, saga, codec=Armour("k1")) as orchestrator:
            await orchestrator.sagas.resume("o", actor="ada")
            assert (await orchestrator.wait("o")).state is SagaState.COMPENSATED
    assert log == ["+a", "b", "a"]
