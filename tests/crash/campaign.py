"""Kills the processes of a shop, over and over, and at the end counts what became of every order.

    python tests/crash/campaign.py --kills 500       what `make crash` runs

Each process that starts is told the point at which it dies (`kill -9`, from inside); others are killed from outside at
moments nobody chose, and the servers with them. Nothing here waits for a time: a kill is made good at once, and the run
is over when nothing is pending any more.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import random
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from everkeel.testing import servers

HERE = Path(__file__).parent
SOURCE = Path(__file__).parents[2] / "src" / "everkeel"

_PRODUCER = ("outbox.before_write", "outbox.after_write", "outbox.before_commit", "outbox.after_commit")
POINTS = {
    "orders": _PRODUCER,
    "orders_sync": _PRODUCER,
    "relay": (
        "relay.after_claim", "relay.before_publish", "relay.after_publish", "relay.before_ack", "relay.after_ack",
        "relay.before_bury", "relay.after_bury",
    ),
    "billing": (
        "consumer.after_claim", "consumer.after_effect", "consumer.before_commit", "consumer.after_commit",
        "consumer.before_ack", "consumer.after_ack", "bury.before_commit", "bury.after_commit",
    ),
    "mailing": ("consumer.after_effect", "consumer.after_complete", "consumer.before_ack"),
    "operator": ("replay.before_append", "replay.before_commit", "replay.after_commit", "discard.before_commit"),
}  # fmt: skip
"""Where each process dies. `named_in_source` finds what is missing here."""


def named_in_source() -> set[str]:
    """Every point that the code of messaging, its engines and its inbox passes."""
    return {
        name
        for package in ("messaging", "engines", "idempotency")
        for file in (SOURCE / package).rglob("*.py")
        for name in re.findall(r'crash_point\("([^"]+)"\)', file.read_text())
    }


def _services():
    spec = importlib.util.spec_from_file_location("services", HERE / "services.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["services"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


services = _services()


# ------------------------------------------------------------------ what came out


@dataclass
class Report:
    """What was done to the shop, and what it made of it."""

    name: str
    by_point: Counter[str] = field(default_factory=Counter)
    at_random: Counter[str] = field(default_factory=Counter)
    restarts: Counter[str] = field(default_factory=Counter)
    gave_up: Counter[str] = field(default_factory=Counter)
    """Processes that ended by themselves, as they may while a server is away."""
    last_words: list[str] = field(default_factory=list)
    written: int = 0
    effects: int = 0
    discarded: int = 0
    mailed: int = 0
    mailed_again: int = 0
    suppressed: int = 0
    replayed: int = 0
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)
    """Effects and letters of orders that were never written."""
    out_of_order: list[str] = field(default_factory=list)
    pending: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def kills(self) -> int:
        return self.by_point.total() + self.at_random.total()

    def lines(self) -> Iterator[str]:
        yield f"{self.name}: {self.kills} kills in {self.seconds:.0f} s, servers restarted: {_told(self.restarts)}"
        yield f"  at a point: {_told(self.by_point)}"
        yield f"  at random: {_told(self.at_random)}; ended by themselves: {_told(self.gave_up)}"
        yield (
            f"  events written {self.written}, effects {self.effects}, discarded by the operator {self.discarded}, "
            f"lost={len(self.lost)}, twice={len(self.twice)}, out of order={len(self.out_of_order)}"
        )
        yield (
            f"  duplicates suppressed {self.suppressed}, replayed {self.replayed}, mailed {self.mailed} "
            f"(again {self.mailed_again}: at least once), pending {sum(self.pending.values())}"
        )


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


# ------------------------------------------------------------------ looking at the shop


def ask(shop, sql: str) -> list[tuple]:
    with closing(shop.connect()) as connection:
        return connection.execute(sql).fetchall()


def lines_of(shop, file: str) -> list[str]:
    path = Path(shop.folder) / file
    return path.read_text().split() if path.exists() else []


def still_to_do(shop) -> dict[str, int]:
    """How much there is still to do."""
    letters = dict(ask(shop, "SELECT status, count(*) FROM everkeel_dead_letters GROUP BY status"))
    waiting = sum(count for status, count in letters.items() if status in ("pending", "parked", "replayed"))
    (outbox,) = ask(shop, "SELECT count(*) FROM everkeel_outbox WHERE state <> 1")[0]
    (orders,) = ask(shop, "SELECT count(*) FROM orders WHERE kind <> 'hopeless'")[0]
    (hopeless,) = ask(shop, "SELECT count(*) FROM orders WHERE kind = 'hopeless'")[0]
    (effects,) = ask(shop, "SELECT count(DISTINCT id) FROM effects")[0]
    return {
        "outbox": outbox, "letters": waiting, "effects": orders - effects,
        "hopeless": hopeless - letters.get("discarded", 0),
        "mails": orders + hopeless - len(set(lines_of(shop, "mailed"))),
        "broker": in_broker(shop),
    }  # fmt: skip


def in_broker(shop) -> int:
    if shop.broker.startswith("redis"):
        import redis

        with closing(redis.Redis.from_url(shop.broker)) as client:
            stream = f"everkeel:{{{services.TOPIC}}}"
            if not client.exists(stream):
                return 0
            return sum(group["pending"] + (group["lag"] or 0) for group in client.xinfo_groups(stream))
    import sqlite3

    with closing(sqlite3.connect(shop.broker, timeout=30)) as connection:
        return connection.execute("SELECT count(*) FROM everkeel_deliveries").fetchone()[0]


def count(report: Report, shop) -> None:
    """What became of every order."""
    orders = {id: (producer, n, key, kind) for id, producer, n, key, kind in ask(shop, "SELECT * FROM orders")}
    effects = ask(shop, "SELECT id, key FROM effects ORDER BY seq")
    times = Counter(id for id, _ in effects)
    report.written, report.effects = len(orders), len(effects)
    expected = {id for id, order in orders.items() if order[3] != "hopeless"}
    report.lost = sorted(expected - set(times))
    report.twice = sorted(id for id, count in times.items() if count > 1)
    report.alone = sorted(set(times) - expected)
    by_key: dict[str, list[int]] = defaultdict(list)
    for id, key in effects:
        if key is not None:
            by_key[key].append(orders[id][1] if id in orders else -1)
    report.out_of_order = [
        f"{key}: {before} then {after}"
        for key, numbers in by_key.items()
        for before, after in itertools.pairwise(numbers)
        if after < before
    ]
    mailed = Counter(lines_of(shop, "mailed"))
    report.mailed, report.mailed_again = len(mailed), mailed.total() - len(mailed)
    report.alone += sorted(set(mailed) - set(orders))
    report.suppressed = len(lines_of(shop, "suppressed.billing")) + len(lines_of(shop, "suppressed.mailing"))
    letters = dict(ask(shop, "SELECT status, count(*) FROM everkeel_dead_letters GROUP BY status"))
    report.discarded, report.replayed = letters.get("discarded", 0), letters.get("resolved", 0)


# ------------------------------------------------------------------ the processes


class Nursery:
    """The processes under test."""

    def __init__(self, shop) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "nursery.py"), shop.folder, shop.database, shop.broker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._heard = b""
        self._selector = selectors.DefaultSelector()
        assert self._process.stdout is not None
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def start(self, role: str, point: str | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps({'role': role, 'point': point})}\n".encode())
        self._process.stdin.flush()

    def news(self, within: float) -> list[dict]:
        """What happened meanwhile."""
        if not self._selector.select(within):
            return []
        assert self._process.stdout is not None
        read = os.read(self._process.stdout.fileno(), 65536)
        if not read:
            raise RuntimeError("the nursery is gone")
        *lines, self._heard = (self._heard + read).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._selector.close()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


class Campaign:
    """One run over one shop."""

    def __init__(self, report: Report, shop, *, rounds: int, at_random: int, restarts: list, within: float) -> None:
        self.report, self.shop = report, shop
        self._chance = random.Random(20 + rounds)
        self._plan = {role: deque(self._told_points(points, rounds)) for role, points in POINTS.items()}
        self._at_random = at_random
        self._restarts = deque(restarts)
        self._ends = time.monotonic() + within
        self._alive: dict[int, str] = {}
        self._point: dict[str, str | None] = {}
        self._ours: set[int] = set()  # killed from outside
        self._nursery = Nursery(shop)
        self._all = sum(map(len, self._plan.values()))

    def _told_points(self, points, rounds: int) -> Iterator[str]:
        for number in range(rounds):
            for point in self._chance.sample(points, len(points)):
                yield f"{point}:{1 if number == 0 else self._chance.randint(1, 4)}"

    # -------------------------------------------------------------- life

    def run(self) -> Report:
        began = time.monotonic()
        try:
            for role in POINTS:
                self._start(role)
            while self._kills_left():
                self._look(0.05)
                self._disturb()
            (Path(self.shop.folder) / "stop").touch()
            while not self._quiet():
                self._look(0.1)
        finally:
            self._nursery.close()
        count(self.report, self.shop)
        self.report.seconds = time.monotonic() - began
        return self.report

    def _kills_left(self) -> bool:
        return any(self._plan.values()) or any(self._point.values()) or self._at_random > 0 or bool(self._restarts)

    def _start(self, role: str) -> None:
        plan = self._plan[role]
        self._point[role] = point = plan.popleft() if plan else None
        self._nursery.start(role, point)

    def _look(self, within: float) -> None:
        if time.monotonic() > self._ends:
            self._ask_why()
            letters = ask(
                self.shop,
                "SELECT consumer, status, reason, event_id, replays FROM everkeel_dead_letters "
                "WHERE status IN ('pending', 'parked', 'replayed') LIMIT 5",
            )
            raise TimeoutError(f"not over in time: {self.state()}; alive: {self._alive}; letters: {letters}")
        for news in self._nursery.news(within):
            if "started" in news:
                self._alive[news["started"]] = news["role"]
            else:
                self._ended(news["ended"], news["code"])

    def _ask_why(self) -> None:
        """Let everybody write down what they wait for."""
        for pid in self._alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(1)

    def _ended(self, pid: int, code: int) -> None:
        role = self._alive.pop(pid)
        point = self._point[role]
        if code == 0:
            self._point[role] = None
            return  # a producer that was told to stop
        if pid in self._ours:
            self.report.at_random[role] += 1
        elif code == -signal.SIGKILL and point is not None:
            self.report.by_point[point.partition(":")[0]] += 1
            point = None
        else:
            self.report.gave_up[f"{role} {self._when(role)}"] += 1
        if point is not None:
            self._plan[role].appendleft(point)  # it did not get there
        self._start(role)

    def _when(self, role: str) -> str:
        """Did it end by itself while it connected, or later? A relay and a consumer that run outlive a server."""
        log = (Path(self.shop.folder) / f"log.{role}").read_text(errors="replace")
        if "__aenter__" in log[log.rfind("Traceback") :]:
            return "at its start"
        self.report.last_words.append(f"{role}: {log[-1500:]}")
        return "later"

    def _disturb(self) -> None:
        """Now and then kill somebody from outside, and a server: spread over the kills that were planned."""
        done = self.report.by_point.total() / max(self._all, 1)
        if self._at_random and self._chance.random() < 0.2 and self._alive:
            self._at_random -= 1
            pid = self._chance.choice(sorted(self._alive))
            self._ours.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._restarts and done >= self._restarts[0][0]:
            _, server = self._restarts.popleft()
            server.kill()
            start_again(server)
            self.report.restarts[server.name] += 1

    # -------------------------------------------------------------- looking at the shop

    def state(self) -> dict[str, int]:
        """How much there is still to do."""
        producers = sum(role.startswith("orders") for role in self._alive.values())
        return {**still_to_do(self.shop), "producers": producers}

    def _quiet(self) -> bool:
        self.report.pending = self.state()
        return not any(self.report.pending.values())


def start_again(server: servers.Server) -> None:
    """Start a killed server; what is left of its processes may keep its memory or its port for a moment."""
    ends = time.monotonic() + 60
    while True:
        try:
            server.start()
            return
        except servers.ServerError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.1)


# ------------------------------------------------------------------ scenarios


@contextmanager
def shop_of(database: str, broker: str) -> Iterator[tuple]:
    """An empty shop on a database (`sqlite`, `postgres`) and a broker (`sqlite`, `redis`), with its servers."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="everkeel-crash-"))
        running = []
        where, over = str(Path(folder) / "shop.db"), str(Path(folder) / "broker.db")
        if database == "postgres":
            running.append(stack.enter_context(servers.postgres()))
            where = running[-1].address
        if broker == "redis":
            running.append(stack.enter_context(servers.redis(durable=True)))
            over = running[-1].address
        shop = services.Shop(folder, where, over)
        shop.set_up()
        yield shop, running


def campaign(
    database: str, broker: str, *, rounds: int = 1, at_random: int = 5, restarts: int = 0, within: float = 600
) -> Report:
    """Run a shop, kill at every point `rounds` times and at random, restart each server so often; count."""
    with shop_of(database, broker) as (shop, running):
        turns = [(number + 1) / (restarts + 1) for number in range(restarts)]
        planned = sorted(((turn, server) for turn in turns for server in running), key=lambda one: one[0])
        report = Report(f"{database} + {broker}")
        try:
            return Campaign(
                report, shop, rounds=rounds, at_random=at_random, restarts=planned, within=within
            ).run()  # fmt: skip
        except BaseException:
            for line in report.lines():
                print(line, file=sys.stderr)
            for log in sorted(Path(shop.folder).glob("log.*")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}", file=sys.stderr)
            raise


def wrongs(report: Report) -> list[str]:
    """What is not as promised."""
    kinds = ("lost", "twice", "alone", "out_of_order")
    found = [f"{kind}: {getattr(report, kind)[:5]}" for kind in kinds if getattr(report, kind)]
    missed = set().union(*POINTS.values()) - set(report.by_point)
    if missed:
        found.append(f"never killed at: {sorted(missed)}")
    found += [
        f"ended by itself: {who}" for who in ("relay later", "billing later", "mailing later") if report.gave_up[who]
    ]
    if report.written < 50:
        found.append(f"only {report.written} orders were written")
    if report.mailed != report.written:
        found.append(f"{report.mailed} of {report.written} were mailed")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500, help="at least so many, over all scenarios")
    chosen = parser.parse_args()
    scenarios = [("sqlite", "sqlite"), ("postgres", "redis"), ("postgres", "sqlite")]
    for server in ("postgres", "redis"):
        if servers.missing(server):
            print(f"NOT RUN: scenarios with {server}, which is not installed (`make servers` installs it)")
            scenarios = [pair for pair in scenarios if server not in pair]
    points = sum(map(len, POINTS.values()))
    rounds = -(-chosen.kills // (len(scenarios) * (points + points // 4)))
    kills, bad = 0, []
    for database, broker in scenarios:
        report = campaign(
            database, broker, rounds=rounds, at_random=rounds * points // 4 + 1,
            restarts=0 if (database, broker) == ("sqlite", "sqlite") else rounds, within=3600,
        )  # fmt: skip
        print("\n".join(report.lines()), flush=True)
        bad += [f"{report.name}: {wrong}" for wrong in wrongs(report)]
        kills += report.kills
    print(f"{kills} kills in all; " + ("; ".join(bad) or "nothing lost, nothing twice, every key in order"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
