"""Real servers for tests and benchmarks: on free ports, with temporary data, never assumed to be running.

```python
with postgres() as server:
    connect(server.address)
    server.kill()  # as a power cut would: `kill -9`, data stay
    server.start()
```

Each is started from the machine's own packages. `missing(name)` says which are not installed.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Server", "ServerError", "executable", "free_port", "missing", "pgbouncer", "postgres", "redis"]

READY_WITHIN = 30.0

# Where Debian puts what is not on everybody's PATH.
_PLACES = {
    "redis": ("redis-server",),
    "postgres": ("/usr/lib/postgresql/*/bin/postgres", "postgres"),
    "pgbouncer": ("pgbouncer", "/usr/sbin/pgbouncer"),
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
}


class ServerError(RuntimeError):
    """A server did not start; its own words are in the message."""


def executable(name: str) -> str | None:
    """The path of a server's program, or None where it is not installed."""
    for place in _PLACES[name]:
        if "*" in place:
            found = sorted(Path("/").glob(place.lstrip("/")))
            if found:
                return str(found[-1])
        elif path := shutil.which(place):
            return path
    return None


def missing(name: str) -> bool:
    """True where the program of this server (redis, postgres, pgbouncer, chromium) is not installed."""
    return executable(name) is None


def free_port() -> int:
    """A port of the loopback address nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """One running server. It keeps its port and its data over `kill` and `start`."""

    def __init__(self, name: str, address: str, command: Sequence[str], ready: Callable[[], bool], log: Path) -> None:
        self.name = name
        self.address = address
        self._command = list(command)
        self._ready = ready
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    @property
    def running(self) -> bool:
        """Whether its process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Its process, None where it does not run."""
        return self._process.pid if self._process is not None else None

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self._log.parent

    def start(self) -> None:
        """Start it, and wait until it answers."""
        give_up = time.monotonic() + READY_WITHIN
        self._spawn()
        try:
            while not self._ready():
                if not self.running and self._killed and time.monotonic() < give_up:
                    # PostgreSQL's other processes notice only by and by that the first one was killed, and until then
                    # a new one refuses to start.
                    time.sleep(0.1)
                    self._spawn()
                elif not self.running or time.monotonic() > give_up:
                    raise ServerError(f"{self.name} did not start:\n{self._log.read_text(errors='replace')[-2000:]}")
                time.sleep(0.02)
        except BaseException:
            self.stop()
            raise
        self._killed = False

    def _spawn(self) -> None:
        with self._log.open("ab") as log:
            # A session of its own: an interrupt in the terminal is for the tests, not for the server.
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def stop(self) -> None:
        """Ask it to end, and see that it does."""
        self._end(
            signal.SIGINT if self.name == "postgres" else signal.SIGTERM
        )  # SIGINT: postgres does not wait for clients

    def kill(self) -> None:
        """End it as a power cut would. `start` brings it back with what it had made durable."""
        self._killed = True
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if self.running:
            if how is signal.SIGKILL:
                os.killpg(self._process.pid, how)
            else:
                self._process.send_signal(how)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._process = None


def _program(name: str) -> str:
    found = executable(name)
    if found is None:
        raise ServerError(f"{name} is not installed (`make servers` installs it)")
    return found


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


@contextmanager
def _running(server: Server) -> Iterator[Server]:
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def _folder(name: str, owner: str | None = None) -> Iterator[Path]:
    folder = _new_folder(name, owner)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _new_folder(name: str, owner: str | None) -> Path:
    """An empty folder in which the server's user can work, which may be somebody else than ours."""
    places = [tempfile.gettempdir(), "/tmp", "/var/tmp"]
    for place in dict.fromkeys(places if owner else places[:1]):
        folder = Path(tempfile.mkdtemp(prefix=f"everkeel-{name}-", dir=place))
        if owner is None:
            return folder
        shutil.chown(folder, owner)
        # A folder of one's own is no use below one that only root may enter, as pytest's temporary ones are.
        if subprocess.run(_as(owner, ["test", "-w", str(folder)])).returncode == 0:
            return folder
        folder.rmdir()
    raise ServerError(f"{name} runs as {owner}, who can enter no temporary folder: {', '.join(places)}")


@contextmanager
def redis(*, durable: bool = False) -> Iterator[Server]:
    """A Redis; `durable` writes every command to disk before it answers, so that a killed one has lost nothing."""
    with _folder("redis") as folder:
        port = free_port()
        disk = ["--appendonly", "yes", "--appendfsync", "always"] if durable else ["--appendonly", "no"]
        command = [
            _program("redis"), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", *disk,
        ]  # fmt: skip
        with _running(
            Server("redis", f"redis://127.0.0.1:{port}/0", command, lambda: _accepts(port), folder / "log")
        ) as it:
            yield it


def _owner() -> str | None:
    """PostgreSQL and PgBouncer refuse to run as root: as whom they run then."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"


def _as(owner: str | None, command: Sequence[str]) -> list[str]:
    return list(command) if owner is None else ["setpriv", f"--reuid={owner}", "--clear-groups", "--", *command]


@contextmanager
def postgres(*, durable: bool = False, settings: Sequence[str] = ()) -> Iterator[Server]:
    """A PostgreSQL with a role and a database `everkeel`; the role is no superuser.

    Without `durable` nothing waits for the disk: a killed server still has what it acknowledged, a machine may not.
    """
    program = Path(_program("postgres"))
    beside = program.with_name("psql")
    psql = str(beside) if beside.exists() else "psql"
    owner, port = _owner(), free_port()
    with _folder("postgres", owner) as folder:
        data = folder / "data"

        def run(*command: str) -> None:
            done = subprocess.run(_as(owner, command), capture_output=True, text=True, cwd=folder)
            if done.returncode:
                raise ServerError(f"{command[0]} failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")

        initdb = [str(program.with_name("initdb")), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        run(*initdb, "--locale=C.UTF-8", "--no-sync")
        speed = [] if durable else ["fsync=off", "full_page_writes=off"]
        options = [
            f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={folder}", "max_connections=200",
            *speed, *settings,
        ]  # fmt: skip
        command = _as(owner, [str(program), "-D", str(data), *(word for option in options for word in ("-c", option))])
        client = [psql, "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-qAt"]

        def ready() -> bool:
            asked = subprocess.run([*client, "-d", "postgres", "-c", "select 1"], capture_output=True, cwd="/")
            return asked.returncode == 0

        address = f"postgresql://everkeel@127.0.0.1:{port}/everkeel"
        with _running(Server("postgres", address, command, ready, folder / "log")) as server:
            run(*client, "-d", "postgres", "-c", "create role everkeel login createdb")
            run(*client, "-d", "postgres", "-c", "create database everkeel owner everkeel")
            yield server


@contextmanager
def pgbouncer(dsn: str) -> Iterator[Server]:
    """A PgBouncer in transaction mode in front of the PostgreSQL at `dsn` (any of its databases)."""
    owner, port = _owner(), free_port()
    host, _, upstream = dsn.split("@", 1)[1].split("/", 1)[0].partition(":")
    database = dsn.rsplit("/", 1)[1]
    with _folder("pgbouncer", owner) as folder:
        users, settings = folder / "users.txt", folder / "pgbouncer.ini"
        users.write_text('"everkeel" ""\n')
        settings.write_text(
            f"[databases]\n* = host={host} port={upstream}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
            f"auth_type = trust\nauth_file = {users}\npool_mode = transaction\ndefault_pool_size = 20\n"
            f"max_client_conn = 500\nunix_socket_dir =\nlogfile = {folder / 'pgbouncer.log'}\n"
            "ignore_startup_parameters = extra_float_digits\n"
        )
        command = _as(owner, [_program("pgbouncer"), str(settings)])
        address = f"postgresql://everkeel@127.0.0.1:{port}/{database}"
        with _running(Server("pgbouncer", address, command, lambda: _accepts(port), folder / "log")) as server:
            yield server
