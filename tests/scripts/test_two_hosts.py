"""The link between the two hosts of `scripts/hosts` loses, delays and delivers packets as told, and
ends cleanly."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from hosts import link
from hosts.launchers import Launcher

PACKETS = 2000
SECONDS = 20
PROGRAM = str(SCRIPTS / "hosts" / "link.py")


class Clock:
    """A clock that a test sets."""

    seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


class Ends:
    """A link whose devices are packet sockets; `ends` are the hosts."""

    def __init__(self, delay: float, loss: float, seed: int) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        for pair in pairs:
            for one in pair:
                one.setblocking(False)
        self.ends = [pair[0] for pair in pairs]
        self.devices = [pair[1] for pair in pairs]
        self.link = link.Link([one.fileno() for one in self.devices], delay, loss, seed)

    def close(self) -> None:
        for one in (*self.ends, *self.devices):
            one.close()

    def received(self, host: int) -> list[int]:
        numbers = []
        while select.select((self.ends[host],), (), (), 0)[0]:
            numbers.append(int(self.ends[host].recv(100)))
        return numbers

    def arriving(self, source: int) -> list[int]:
        """Returns the numbers of the packets that arrive at the other host, sent one at a time."""
        arrived = []
        for number in range(PACKETS):
            self.ends[source].send(b"%d" % number)
            self.link.take(source)
            self.link.deliver()
            arrived += self.received(1 - source)
        return arrived


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    fake_clock = Clock()
    monkeypatch.setattr(link.time, "monotonic", fake_clock.monotonic)
    return fake_clock


def arriving(loss: float, seed: int, source: int = 0) -> list[int]:
    ends = Ends(0, loss, seed)
    arrived = ends.arriving(source)
    assert (ends.link.carried, ends.link.lost) == (len(arrived), PACKETS - len(arrived))
    ends.close()
    return arrived


def test_a_link_loses_the_requested_share_of_packets_by_its_seed() -> None:
    first = arriving(0.1, 1)
    assert 0.07 * PACKETS < PACKETS - len(first) < 0.13 * PACKETS
    assert first == arriving(0.1, 1) == sorted(first)
    assert first != arriving(0.1, 2)
    assert first != arriving(0.1, 1, source=1)
    assert arriving(0, 1) == list(range(PACKETS))
    assert arriving(1, 1) == []


def test_packets_arrive_after_the_delay_in_order(clock: Clock) -> None:
    ends = Ends(0.25, 0, 1)
    for number in range(3):
        ends.ends[1].send(b"%d" % number)
        ends.link.take(1)
        clock.seconds += 0.0625
    assert ends.link.deliver() == 0.0625
    assert ends.received(0) == []
    clock.seconds += 0.125
    assert ends.link.deliver() == 0.0625
    assert ends.received(0) == [0, 1]
    clock.seconds += 1
    assert ends.link.deliver() == 1.0
    assert ends.received(0) == [2]
    ends.close()


def test_a_cut_link_loses_all_and_heals(clock: Clock) -> None:
    ends = Ends(0, 0, 1)
    ends.link.cut_until = clock.seconds + 1
    assert ends.arriving(0) == []
    clock.seconds += 1
    assert ends.arriving(0) == list(range(PACKETS))
    ends.close()


def test_launchers_have_their_own_options() -> None:
    hydra = Launcher(Path("/a/bin/mpiexec"), Path("/a/lib/libmpi_abi.so.1"))
    open_mpi = Launcher(Path("/b/bin/mpiexec"), Path("/b/lib/libmpi.so.40"))
    assert (hydra.name, hydra.command(2)) == ("a/libmpi_abi.so.1", ("/a/bin/mpiexec", "-n", "2"))
    assert "x,y" in hydra.on_hosts(4, ("x", "y"), "agent")
    assert "--allow-run-as-root" in open_mpi.command(2)
    command = open_mpi.on_hosts(4, ("x", "y"), "agent")
    assert "x:4,y:4" in command
    assert command[-2:] == ("-n", "4")


# ---- with the machine's help -------------------------------------------------------------------


@pytest.fixture(scope="module")
def hosts() -> None:
    if reason := link.why_not():
        pytest.skip(f"no two hosts here: {reason}")


PING = """
import os, socket, subprocess
with socket.create_server(("host1", 5000)) as server:
    command = "import socket; socket.create_connection((\'host1\', 5000)).send(b\'hello\')"
    agent = subprocess.Popen([os.environ["LINK_AGENT"], "host2", f"python3 -c \\"{command}\\""])
    connection, peer = server.accept()
    with connection:
        print(socket.gethostname(), peer[0], connection.recv(5).decode(), agent.wait())
"""


def test_hosts_reach_one_another_over_the_link_alone(hosts: None) -> None:
    before = sorted(Path("/sys/class/net").iterdir())
    command = (sys.executable, PROGRAM, "--loss", "0", sys.executable, "-c", PING)
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert (process.returncode, process.stdout) == (0, "host1 10.77.0.2 hello 0\n"), process.stderr
    words = process.stderr.split()
    assert int(words[words.index("link:") + 1]) >= 5  # a connection, its data and its end
    assert sorted(Path("/sys/class/net").iterdir()) == before


def test_the_exit_code_is_the_command_s(hosts: None) -> None:
    process = subprocess.run((sys.executable, PROGRAM, "sh", "-c", "exit 7"), check=False)
    assert process.returncode == 7


STARTER = """
import os, subprocess, sys
subprocess.run([sys.executable, *sys.argv[1:]])
"""


@pytest.mark.parametrize("killed", ["program", "its parent"])
def test_a_killed_link_leaves_nothing_behind(hosts: None, killed: str) -> None:
    """All its processes hold its output open, which ends with the last of them."""
    inside = "$LINK_AGENT host2 'echo up; exec sleep 1000' & exec sleep 1000"
    starter = () if killed == "program" else ("-c", STARTER)
    command = (sys.executable, *starter, PROGRAM, "sh", "-c", inside)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        process.kill()
        assert select.select((process.stdout,), (), (), SECONDS)[0]
        assert os.read(process.stdout.fileno(), 1) == b""
