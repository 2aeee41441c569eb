"""What `everkeel` can do: each command's module and its one line of help. To add a command, add a line."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import NamedTuple, Protocol, cast


class Command(NamedTuple):
    """Where a command lives, and what the list of commands says about it."""

    module: str
    help: str


COMMANDS: dict[str, Command] = {
    "breaker": Command("everkeel.cli.breaker", "open, close and reset the circuits of a running service"),
    "completion": Command("everkeel.cli.completion", "print a script that completes commands in your shell"),
    "config": Command("everkeel.cli.config", "check a file, show what is in force and why, change a running service"),
    "events": Command("everkeel.cli.events", "follow what happens in a running service"),
    "limit": Command("everkeel.cli.limit", "see, change and drain the rate limits of a running service"),
    "policies": Command("everkeel.cli.policies", "see the policies of a running service; enable, disable, shadow them"),
    "serve": Command("everkeel.cli.serve", "run the control plane alone"),
    "demo": Command("everkeel.demo.shop.cli", "a shop in three services, a run of bad days, and an audit of its books"),
    "dlq": Command("everkeel.cli.dlq", "see, replay and discard events that a running service gave up on"),
    "generate": Command("everkeel.cli.generate", "write a protected service and its client from an OpenAPI document"),
    "outbox": Command("everkeel.cli.outbox", "see what waits in a running service's outbox, pause and resume it"),
    "saga": Command("everkeel.cli.saga", "draw sagas; see those of a running service, help those that are stuck"),
    "schema": Command("everkeel.cli.schema", "print the JSON Schema of a file of configuration, or tables as SQL"),
}


class CommandModule(Protocol):
    """What a command's module has."""

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Do it; answer the exit code."""
        ...


def load(name: str) -> CommandModule:
    """The module of a command, imported now."""
    return cast("CommandModule", import_module(COMMANDS[name].module))
