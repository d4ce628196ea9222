"""Servers as processes: started, waited for, watched in /proc, ended.

In: commands. Out: where they listen, processor seconds, peak memory.
"""

import asyncio
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from serving_client import Place, get

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Start:
    """How a server is started.

    Attributes:
        name: what tables call it.
        command: the command, in which "{port}" stands for a free port.
        extra: fields of bodies that this server alone knows.
    """

    name: str
    command: tuple[str, ...]
    extra: tuple[tuple[str, object], ...] = ()


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port: int = made.getsockname()[1]
        return port


def tree(pid: int) -> list[int]:
    """Return a process and all that it has started and that still run."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = [pid]
    try:
        listed = children.read_text("ascii").split()
    except OSError:  # it has ended, or the kernel does not tell
        return found
    for child in listed:
        found += tree(int(child))
    return found


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process and its children have taken."""
    total = 0
    for one in tree(pid):
        stat = Path(f"/proc/{one}/stat").read_text("utf-8")
        fields = stat.rpartition(")")[2].split()  # a name may have spaces
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def busy_seconds() -> float:
    """Return the processor time that all processes of the machine have taken."""
    first = Path("/proc/stat").read_text("ascii").split("\n", 1)[0]
    user, nice, system, _, _, irq, softirq, steal, *_ = map(int, first.split()[1:])
    return (user + nice + system + irq + softirq + steal) / TICKS


def peak_nbytes(pid: int) -> int:
    """Return the most resident memory of a process and its children, in bytes."""
    total = 0
    for one in tree(pid):
        for line in Path(f"/proc/{one}/status").read_text("utf-8").splitlines():
            if line.startswith("VmHWM:"):
                total += 1024 * int(line.split()[1])
    return total


@contextmanager
def running(start: Start, seconds: float = 120) -> Iterator[tuple[Place, int]]:
    """Run a server for a while; yield where it listens, and its process.

    Raises:
        SystemExit: it ended, or did not answer in time; with the end of its output.
    """
    port = free_port()
    command = [part.replace("{port}", str(port)) for part in start.command]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=folder, stdout=output, stderr=output,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        try:
            place = Place("127.0.0.1", port, extra=dict(start.extra))
            if not asyncio.run(_is_ready(place, process, seconds)):
                told = log.read_text(errors="replace")[-2000:]
                raise SystemExit(f"{' '.join(command)} does not serve:\n{told}")
            yield place, process.pid
        finally:
            end(process)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process, kindly first."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def _is_ready(
    place: Place, process: "subprocess.Popen[bytes]", seconds: float
) -> bool:
    end_at = time.monotonic() + seconds
    while time.monotonic() < end_at and process.poll() is None:
        try:
            status, _ = await get(place, "/health")
        except (OSError, asyncio.IncompleteReadError):
            status = 0
        if status == 200:
            return True
        await asyncio.sleep(0.1)
    return False


def printed(command: Sequence[str]) -> str:
    """Return what a command prints, run apart from this folder.

    Raises:
        SystemExit: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout
