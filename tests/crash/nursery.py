"""Starts the processes under test: it has everything imported and forks, so that a kill is made good in milliseconds.

Reads a line of JSON for each process to start, `{"role": ..., "point": ...}`, and writes one for each that has started
or ended. When whoever reads is gone, everything it started is killed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import sys
from pathlib import Path

from everkeel.testing import crash_as_told
from everkeel.testing.crashing import VARIABLE

HERE = Path(__file__).parent


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def preload(services, shop) -> None:
    """Let lazy imports happen here, once."""
    import everkeel.engines.postgres.dead_letters
    import everkeel.engines.postgres.inbox
    import everkeel.engines.sqlite.dead_letters
    import everkeel.engines.sqlite.inbox  # noqa: F401

    if shop.postgres:
        import asyncpg  # noqa: F401
        import psycopg  # noqa: F401
    if shop.broker.startswith("redis"):
        import redis.asyncio  # noqa: F401


def child(services, shop, role: str, point: str | None) -> None:
    log = os.open(os.path.join(shop.folder, f"log.{role}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for stream, target in ((0, nothing), (1, log), (2, log)):
        os.dup2(target, stream)
    if point:
        os.environ[VARIABLE] = point
    crash_as_told()
    signal.signal(signal.SIGUSR1, lambda *_: tell_tasks())
    try:
        services.run(role, shop)
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


def tell_tasks() -> None:
    """What this process waits for, into its log: asked for where a run does not come to its end."""
    import asyncio
    import faulthandler

    faulthandler.dump_traceback()
    for task in asyncio.all_tasks(asyncio.get_event_loop_policy().get_event_loop()):
        task.print_stack(file=sys.stderr)


def say(**what: object) -> None:
    os.write(1, f"{json.dumps(what)}\n".encode())


def main() -> None:
    services = load("services")
    shop = services.Shop(*sys.argv[1:])
    preload(services, shop)
    children: set[int] = set()
    asked = b""
    try:
        while True:
            if select.select([0], [], [], 0.01)[0]:
                read = os.read(0, 65536)
                if not read:
                    return
                *lines, asked = (asked + read).split(b"\n")
                for line in lines:
                    order = json.loads(line)
                    pid = os.fork()
                    if pid == 0:
                        child(services, shop, order["role"], order["point"])
                    children.add(pid)
                    say(started=pid, role=order["role"])
            while children:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                children.discard(pid)
                say(ended=pid, code=os.waitstatus_to_exitcode(status))
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
