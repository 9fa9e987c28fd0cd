"""Emulates two hosts by network namespaces, with a link that delays and loses packets.

    link.py [--delay 1] [--loss 0.01] [--outage 5000] [--seed 1] COMMAND ...

COMMAND runs on the first host, 10.77.0.1, whose name is `host1`. The other host is 10.77.0.2, with
the name `host2`. $LINK_AGENT is a program with the arguments of ssh, `HOST COMMAND ...`, which
starts commands on either host.

Each namespace has a TUN device, and this program carries packets between them. A packet arrives
after `delay` milliseconds or, with probability `loss`, not at all. The seed and the order of all
packets decide which packets are lost. SIGUSR1 to process $LINK_PROCESS cuts the link for
`outage` milliseconds.

This needs Linux with /dev/net/tun, and user namespaces unless it is run by root. It needs no kernel
module, and no address or file outside the namespaces. All processes are in one PID namespace. It
ends with COMMAND, with this program, and with the process that started it, however these end. Only
the standard library is needed. The exit code is COMMAND's, or 3, with the reason, if the machine
does not allow it.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

NAMES, ADDRESSES = ("host1", "host2"), ("10.77.0.1", "10.77.0.2")
DEVICE = "tun0"
# The flags of unshare(2) for namespaces of mounts, the host name, System V IPC and the network.
NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
PR_SET_PDEATHSIG = 1
MTU = 1500
NOT_ALLOWED = 3
FILES = Path("/mnt")  # a tmpfs is mounted here, in the program's own mount namespace
LIBC = ctypes.CDLL(None, use_errno=True)

AGENT = """#!/bin/sh
case "$1" in
{cases}
*) echo "no host $1" >&2; exit 1;;
esac
shift
exec nsenter --target "$process" --mount --net --uts --ipc sh -c "$*"
"""


def outside(*arguments: str) -> list[str]:
    """Returns the command that runs this program with these arguments in namespaces of its own."""
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    spaces = ("--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net")
    return ["unshare", *user, *spaces, sys.executable, str(Path(__file__).resolve()), *arguments]


def why_not() -> str:
    """Returns the reason why this machine cannot emulate two hosts, or "" if it can."""
    process = subprocess.run(outside("true"), capture_output=True, text=True, check=False)
    reason = process.stderr.strip() or f"exit code {process.returncode}"
    return "" if process.returncode == 0 else reason.splitlines()[-1]


# ---- hosts -------------------------------------------------------------------------------------


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def make_host(which: int) -> tuple[int, int]:
    """Moves this process to a new host: new namespaces with an address and a TUN device.

    `which` is 0 or 1. Returns (file descriptor of the TUN device, id of a process that stays on the
    host).
    """
    if LIBC.unshare(NAMESPACES):
        raise OSError(ctypes.get_errno(), "unshare")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    socket.sethostname(NAMES[which])
    _call("mount", "-t", "sysfs", "sysfs", "/sys")  # mounted anew, to list this host's devices
    address, peer_address = ADDRESSES[which], ADDRESSES[1 - which]
    _call("ip", "link", "set", "lo", "up")
    _call("ip", "address", "add", address, "peer", peer_address, "dev", DEVICE)
    _call("ip", "link", "set", DEVICE, "up", "mtu", str(MTU))
    process = os.fork()
    if process == 0:
        signal.pause()
        os._exit(0)
    return device, process


def name_hosts() -> None:
    """Mounts an /etc/hosts that has the names and addresses of both hosts."""
    _call("mount", "-t", "tmpfs", "tmpfs", str(FILES))
    hosts = FILES / "hosts"
    lines = (f"{address} {name}\n" for address, name in zip(ADDRESSES, NAMES, strict=True))
    hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))
    _call("mount", "--bind", str(hosts), "/etc/hosts")


def write_agent(processes: Sequence[int]) -> Path:
    """Writes the program that runs commands on hosts, and returns its path.

    Its arguments are a host and a command. `processes` has the id of a process on each host.
    """
    table = zip(NAMES, ADDRESSES, processes, strict=True)
    cases = "\n".join(f"{name}|{address}) process={process};;" for name, address, process in table)
    agent = FILES / "agent"
    agent.write_text(AGENT.format(cases=cases))
    agent.chmod(0o755)
    return agent


# ---- the link ----------------------------------------------------------------------------------


class Link:
    """Carries packets between two TUN devices.

    Packets keep their order, because all have the same delay. Each direction loses packets
    independently.
    """

    def __init__(self, devices: Sequence[int], delay: float, loss: float, seed: int) -> None:
        """`delay` is in seconds, and `loss` is the probability that a packet is lost."""
        self.devices, self.delay, self.loss = devices, delay, loss
        self.draws = [random.Random(f"{seed}/{direction}") for direction in range(2)]
        self.under_way: list[deque[tuple[float, bytes]]] = [deque(), deque()]
        self.cut_until = 0.0
        self.carried = self.lost = 0

    def take(self, source: int) -> None:
        """Reads all packets that are waiting in device `source`."""
        while True:
            try:
                packet = os.read(self.devices[source], 1 << 16)
            except BlockingIOError:
                return
            if time.monotonic() < self.cut_until or self.draws[source].random() < self.loss:
                self.lost += 1
            else:
                self.under_way[source].append((time.monotonic() + self.delay, packet))

    def deliver(self) -> float:
        """Delivers the packets that are due; returns the seconds until the next one is due."""
        now, wait = time.monotonic(), 1.0
        for source, packets in enumerate(self.under_way):
            while packets and packets[0][0] <= now:
                os.write(self.devices[1 - source], packets.popleft()[1])
                self.carried += 1
            if packets:
                wait = min(wait, packets[0][0] - now)
        return wait

    def turn(self) -> None:
        """Waits for the next packet or signal, and handles it."""
        ready = select.select(self.devices, (), (), max(0.0, self.deliver()))[0]
        for device in ready:
            self.take(self.devices.index(device))


def carry(link: Link, outage: float, command: Sequence[str]) -> int:
    """Runs a command and carries packets until it ends; returns its exit code.

    After the signal SIGUSR1, all packets are lost for `outage` seconds.
    """

    def cut(_signal: int, _frame: FrameType | None) -> None:
        link.cut_until = time.monotonic() + outage

    signal.signal(signal.SIGUSR1, cut)
    process = subprocess.Popen(command)
    ended = process.pid, 0
    while True:
        link.turn()
        # This process is the first of its namespace, so it becomes the parent of every orphan and
        # must wait for all of them.
        while True:
            try:
                ended = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if ended[0] in (0, process.pid):
                break
        if ended[0] == process.pid:
            return os.waitstatus_to_exitcode(ended[1]) & 0xFF


def main() -> int:
    """Returns the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--delay", type=float, default=1.0, metavar="MILLISECONDS")
    parser.add_argument("--loss", type=float, default=0.01, metavar="PROBABILITY")
    parser.add_argument("--outage", type=float, default=5000.0, metavar="MILLISECONDS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if os.getpid() != 1:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.execvp("unshare", outside(*sys.argv[1:]))
    try:
        name_hosts()
        second, first = make_host(1), make_host(0)
        agent = write_agent((first[1], second[1]))
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        print(f"no two hosts here: {reason.strip()}", file=sys.stderr)
        return NOT_ALLOWED
    os.environ |= {
        "LINK_AGENT": str(agent), "LINK_PROCESS": str(os.getpid()), "TMPDIR": str(FILES),
    }  # fmt: skip
    link = Link((first[0], second[0]), arguments.delay / 1e3, arguments.loss, arguments.seed)
    code = carry(link, arguments.outage / 1e3, arguments.command)
    print(f"link: {link.carried} packets carried, {link.lost} lost", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
