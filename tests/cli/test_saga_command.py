"""`everkeel saga show` without a service: definitions of the user's modules, drawn."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from everkeel.cli import main

MODULE = """
from everkeel.engines import MemoryEngine
from everkeel.sagas import Choreography, CompensationRegistry, Orchestrator, Reaction, Saga, Step

def reserve(context): ...
def release(context): ...

old = Saga("order", Step("reserve", reserve, release))
new = Saga("order", Step("reserve", reserve, release), Step("ship", reserve, pivot=True), version=2)
hidden = Orchestrator(MemoryEngine(), old, new, Saga("refund", Step("pay", reserve, release)))
booking = Choreography("booking", Reaction("room", done="Held", compensation="Free", undone="Freed"), starts="Booked")
compensations = CompensationRegistry(new, booking)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "drawn_sagas.py").write_text(MODULE)
    (tmp_path / "drawn_app.py").write_text("import drawn_sagas\napp = object()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def running(*words: str) -> tuple[int, str, str]:
        for name in ("drawn_sagas", "drawn_app"):
            sys.modules.pop(name, None)
        code = main(["saga", *words])
        told = capsys.readouterr()
        return code, told.out, told.err

    yield running
    for name in ("drawn_sagas", "drawn_app"):
        sys.modules.pop(name, None)


def test_the_newest_version_of_a_definition_is_drawn_or_the_one_that_is_named(run) -> None:
    code, out, _ = run("show", "order", "--import", "drawn_sagas")
    assert code == 0
    assert out.startswith("saga order (version 2, deadline 30 s)\n")
    assert "ship" in out
    assert "ship" not in run("show", "order@1", "--import", "drawn_sagas")[1]


def test_every_format(run) -> None:
    assert run("show", "order", "--import", "drawn_sagas", "--format", "mermaid")[1].startswith("flowchart TD\n")
    svg = run("show", "order", "--import", "drawn_sagas", "--format", "svg")[1]
    assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"


def test_definitions_are_found_in_orchestrators_registries_and_modules_that_an_application_imports(run) -> None:
    known = "booking@1\ncompensations\norder@1\norder@2\nrefund@1\n"
    assert run("list", "--import", "drawn_sagas")[1] == known
    assert run("list", "--app", "drawn_app:app")[1] == known
    assert run("show", "refund", "--app", "drawn_app:app")[1].startswith("saga refund")
    assert run("show", "booking", "--import", "drawn_sagas")[1].startswith("saga booking (choreographed")
    assert "undone by Free" in run("show", "compensations", "--import", "drawn_sagas")[1]
    assert run("show", "--app", "drawn_sagas:compensations")[1].startswith("What undoes what")


def test_what_is_not_there_is_said(run) -> None:
    code, _, trouble = run("show", "nothing", "--import", "drawn_sagas")
    assert code == 1
    assert "no definition 'nothing' there; there are booking@1, compensations, order@1" in trouble
    assert run("cancel", "order-7", "--import", "drawn_sagas")[0] == 2
    assert run("show", "order", "--import", "drawn_nowhere")[0] == 1
