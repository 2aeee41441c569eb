"""Requests per second of one application behind different rate limiters: real servers, in one run.

Every server is started once, in a process of its own. A round loads each of them for a second, in a new random order,
with wrk on keep-alive connections; the best round counts, because whatever else the machine does only ever takes away.
Beside it stands the processor time that the server spent per request, which does not care who else wants the machine.
What is missing (wrk, a library, Redis) is skipped, and the report says so.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
CONNECTIONS = 16


@dataclass
class Served:
    """One application, and what it answered per second in each round."""

    name: str
    kind: str
    form: str
    dist: str
    samples: list[float] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)  # microseconds of processor time per request

    @property
    def cpu(self) -> float | None:
        """The least of all rounds; None where the system does not tell."""
        return min(self.spent, default=None)

    @property
    def best(self) -> float:
        return max(self.samples)

    @property
    def typical(self) -> float:
        return statistics.median(self.samples)


def measure(rounds: int, skipped: list[str]) -> list[Served]:
    """Load every application that can be served; appends to `skipped` what cannot."""
    wrk = shutil.which("wrk")
    if wrk is None:
        skipped.append("http: all of it: wrk is not installed")
        return []
    try:
        import http_apps
    except ImportError as error:
        skipped.append(f"http: all of it: {error}")
        return []
    with contextlib.ExitStack() as running:
        redis = running.enter_context(_redis())
        served: list[tuple[Served, int, int]] = []
        for name, (kind, form, dist, _) in http_apps.APPS.items():
            if form == "redis" and redis is None:
                skipped.append(f"http/{name}: redis-server is not installed")
                continue
            port, pid = running.enter_context(_server(name, redis))
            if port is None:
                skipped.append(f"http/{name}: does not start, or does not answer")
                continue
            served.append((Served(name, kind, form, dist), port, pid))
        chance = random.Random(1)
        for number in range(rounds + 1):
            for one, port, pid in chance.sample(served, len(served)):
                before = _processor_time(pid)
                rate, count = _load(wrk, port)
                after = _processor_time(pid)
                if not number:
                    continue  # the first round warms up
                one.samples.append(rate)
                if before is not None and after is not None:
                    one.spent.append(1e6 * (after - before) / count)
    return [one for one, _, _ in served]


def _processor_time(pid: int) -> float | None:
    """Seconds of processor time that a process has had so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _load(wrk: str, port: int) -> tuple[float, int]:
    """Requests per second, and how many there were."""
    address = f"http://127.0.0.1:{port}/items/7"
    told = subprocess.run(
        [wrk, "-t1", f"-c{CONNECTIONS}", "-d1s", address], capture_output=True, text=True, check=True
    ).stdout
    if "Non-2xx" in told or "Socket errors" in told:
        raise RuntimeError(f"not all requests were answered:\n{told}")
    rate, count = re.search(r"Requests/sec:\s*([0-9.]+)", told), re.search(r"([0-9]+) requests in", told)
    if rate is None or count is None:
        raise RuntimeError(f"wrk said something else:\n{told}")
    return float(rate[1]), int(count[1])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _server(name: str, redis: int | None) -> Iterator[tuple[int | None, int]]:
    """The port of an application that answers, None where it does not; and its process."""
    port = _free_port()
    command = [sys.executable, "-m", "uvicorn", "--factory", "http_apps:chosen", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--log-level", "critical", "--no-access-log"],
        cwd=HERE,
        env={**os.environ, "EVERKEEL_BENCH_APP": name, "EVERKEEL_BENCH_REDIS": str(redis or "")},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield port if _answers(port, process) else None, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Does it start within half a minute, and answer as it should?"""
    for _ in range(300):
        if process.poll() is not None:
            return False
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.sendall(b"GET /items/7 HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
                answer = b"".join(iter(lambda: connection.recv(4096), b""))
            return answer.startswith(b"HTTP/1.1 200") and b'{"number":7}' in answer
        except OSError:
            time.sleep(0.1)
    return False


@contextlib.contextmanager
def _redis() -> Iterator[int | None]:
    server = shutil.which("redis-server")
    if server is None:
        yield None
        return
    port = _free_port()
    process = subprocess.Popen(
        [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
        stdout=subprocess.DEVNULL,
    )
    try:
        yield port
    finally:
        process.terminate()
        process.wait()
