"""Several hosts on one machine: network namespaces with an sshd each, as `ray up` needs them.

A host has its own processes, host name, home, /tmp and /dev/shm. All hosts share /srv/ctvr, as machines of a laboratory
share a file server, and the root file system, which is their operating system. As in a machine image, the home holds a
virtual environment with the packages that cluster/setup.sh installs; they are copied from ours.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import site
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
HOME = "/srv/host/home"  # of every host, as the host sees it
NETWORK = "10.77.23"
DEBIAN = ("openssh-server", "libwrap0", "rsync", "libpopt0", "libxxhash0")


class Unavailable(RuntimeError):
    """Raised if this machine cannot simulate several hosts; the message gives the reason."""


def sh(*words: str | Path, check: bool = True, **more: str) -> str:
    """Run a command and return its output; if it fails, raise an AssertionError with the output."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, env={**os.environ, **more}, check=False)
    assert not check or not done.returncode, f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


# ------------------------------------------------------------------------------------------- the machine


def find_tools(folder: Path) -> Path:
    """Return a folder whose `bin` holds sshd and rsync: this machine's, or unpacked (not installed) Debian packages.

    Raises:
        Unavailable: if this machine can provide neither.
    """
    if os.geteuid() != 0:
        raise Unavailable("only root can make network namespaces")
    for program in ("ip", "unshare", "nsenter", "ssh", "ssh-keygen"):
        if not shutil.which(program):
            raise Unavailable(f"{program} is not installed")
    if not Path("/srv").is_dir():
        raise Unavailable("there is no folder /srv to mount on")
    try:
        sh("ip", "netns", "add", "ctvr-probe")
        sh("ip", "netns", "del", "ctvr-probe")
    except AssertionError as error:
        raise Unavailable(f"network namespaces are refused ({str(error).splitlines()[-1]})") from None
    programs = folder / "bin"
    programs.mkdir(parents=True)
    path = f"{os.environ['PATH']}:/usr/sbin"
    found = {name: shutil.which(name, path=path) for name in ("sshd", "rsync")}
    root = folder / "debian"
    if not all(found.values()):
        _unpack(root)
    for name, program in found.items():
        place = program or next(str(p) for p in root.glob(f"usr/*bin/{name}"))
        libraries = "" if program else f"export LD_LIBRARY_PATH=$here/debian/{_libraries(root)}\n"
        inside = place if program else f"$here/debian/{Path(place).relative_to(root)}"
        script = f'#!/bin/bash\nhere=$(dirname "$(dirname "$(readlink -f "$0")")")\n{libraries}exec {inside} "$@"\n'
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    return folder


def _unpack(root: Path) -> None:
    packages = root.parent / "packages"
    packages.mkdir()
    if not shutil.which("apt-get"):
        raise Unavailable("sshd and rsync are not installed")
    done = subprocess.run(["apt-get", "download", *DEBIAN], cwd=packages, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable("sshd and rsync are not installed: apt-get install openssh-server rsync")
    for package in packages.glob("*.deb"):
        sh("dpkg", "-x", package, root)


def _libraries(root: Path) -> str:
    return str(next(root.glob("usr/lib/*/libpopt.so.0")).parent.relative_to(root))


def make_image(folder: Path) -> Path:
    """Make a home as a machine's image contains it: uv, and an environment with our packages but without our sources.

    Raises:
        Unavailable: if Flask-WTF, which MLflow's passwords need, cannot be installed.
    """
    home = folder / "image"
    venv = home / "ctvr_venv"
    uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
    (home / "ctvr_uv" / "bin").mkdir(parents=True)
    (home / "ctvr_uv" / "bin" / "uv").symlink_to(uv)
    sh(uv, "venv", "-q", "--python", sys.executable, venv)
    constraints = REPOSITORY / "constraints.txt"
    done = subprocess.run(
        [uv, "pip", "install", "-q", "--python", venv / "bin/python", "-c", constraints, "Flask-WTF~=1.2"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Unavailable(f"Flask-WTF cannot be installed: {done.stderr.strip().splitlines()[0]}")
    (packages,) = venv.glob("lib/python*/site-packages")
    ours = [path for path in site.getsitepackages() if Path(path).is_dir()]
    (packages / "image.pth").write_text("\n".join([f"{HOME}/ctvr_src", *ours]) + "\n")
    for name, module in (("ray", "ray.scripts.scripts"), ("ctvr", "ctvr.orchestrator.cli.main")):
        script = venv / "bin" / name
        script.write_text(f"#!{HOME}/ctvr_venv/bin/python\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
        script.chmod(0o755)
    read = (REPOSITORY / name for name in ("pyproject.toml", "constraints.txt"))
    stamp = hashlib.sha256(b"".join(file.read_bytes() for file in read)).hexdigest()
    (venv / ".ctvr_stamp").write_text(stamp)  # the packages of setup.sh are installed
    (home / ".bashrc").write_text("export PATH=/srv/tools/bin:$PATH UV_OFFLINE=1\n")
    return home


# ---------------------------------------------------------------------------------------------- the hosts


@dataclass
class Host:
    """A running host. `folder`/home is its home directory, as seen from outside."""

    name: str
    address: str
    folder: Path
    process: subprocess.Popen[bytes]
    pid: int  # of its pid 1, as the machine sees it

    def enter(self, *words: str) -> list[str]:
        """Return the command that runs `words` on the host with the environment of a login shell."""
        return ["nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", *words]

    def run(self, command: str, check: bool = True) -> str:
        """Return the output of a shell command on this host."""
        return sh(*self.enter("env", "-i", f"HOME={HOME}", "bash", "-lc", f"source ~/.bashrc; {command}"), check=check)

    def processes(self) -> dict[int, str]:
        """Return the process ids (in the machine's namespace) and command lines of the host's processes."""
        found: dict[int, str] = {}
        if self.process.poll() is not None:
            return found
        mine = os.readlink(f"/proc/{self.pid}/ns/pid")
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(folder / "ns/pid") == mine:
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:  # it has ended
                continue
        return found

    def lose_power(self) -> None:
        """Remove the network and all processes at once, without a shutdown."""
        sh("ip", "-n", self.name, "link", "set", "eth0", "down")
        self.end()

    def end(self) -> None:
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Hosts:
    """A bridge and the hosts on it; the machine itself has the address NETWORK.1. A context manager."""

    folder: Path
    tools: Path
    image: Path
    prefix: str = "ctvr"
    hosts: list[Host] = field(default_factory=list)

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    @property
    def key(self) -> Path:
        return self.folder / "id_ed25519"

    def __enter__(self) -> Hosts:
        self._remove()  # the remains of a test that was killed
        self.shared.mkdir(parents=True)
        self.folder.chmod(0o755)
        sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key)
        sh("ip", "link", "add", f"{self.prefix}0", "type", "bridge")
        sh("ip", "addr", "add", f"{NETWORK}.1/24", "dev", f"{self.prefix}0")
        sh("ip", "link", "set", f"{self.prefix}0", "up")
        return self

    def __exit__(self, *error: object) -> None:
        for host in self.hosts:
            host.end()
        self._remove()

    def _remove(self) -> None:
        for name in sh("ip", "netns", "list").split():
            if name.startswith(f"{self.prefix}-"):
                sh("ip", "netns", "del", name)
        sh("ip", "link", "del", f"{self.prefix}0", check=False)

    def add(self, name: str) -> Host:
        """Start a host and wait for its sshd."""
        name, number = f"{self.prefix}-{name}", 11 + len(self.hosts)
        address, folder = f"{NETWORK}.{number}", self.folder / name
        self._furnish(name, folder)
        inner, outer = f"{self.prefix}i{number}", f"{self.prefix}o{number}"
        sh("ip", "netns", "add", name)
        sh("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
        sh("ip", "link", "set", outer, "master", f"{self.prefix}0", "up")
        sh("ip", "link", "set", inner, "netns", name)
        for words in (
            ("link", "set", inner, "name", "eth0"),
            ("addr", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
            ("route", "add", "default", "via", f"{NETWORK}.1"),  # Ray finds its own address by it
        ):
            sh("ip", "-n", name, *words)
        visible = sorted({sys.prefix, sys.base_prefix, str(Path(shutil.which("uv") or sys.executable).parent)})
        apart = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        words = ["bash", str(HERE / "host.sh"), name, str(folder), str(self.shared), str(self.tools), *visible]
        log = (folder / "host.log").open("wb")
        process = subprocess.Popen(
            ["ip", "netns", "exec", name, *apart, *words], stdout=log, stderr=log, env={"PATH": os.environ["PATH"]}
        )
        host = Host(name, address, folder, process, 0)
        self.hosts.append(host)
        self._await(host)
        return host

    def _furnish(self, name: str, folder: Path) -> None:
        (folder / "tmp").mkdir(parents=True)
        (folder / "tmp").chmod(0o1777)
        sh("cp", "-a", self.image, folder / "home")
        lines = Path("/etc/passwd").read_text().splitlines()
        lines = [line for line in lines if line.split(":")[0] not in ("root", "sshd")]
        lines = [f"root:x:0:0:root:{HOME}:/bin/bash", "sshd:x:110:65534::/run/sshd:/usr/sbin/nologin", *lines]
        (folder / "passwd").write_text("\n".join(lines) + "\n")
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{NETWORK}.{11 + len(self.hosts)} {name}\n")
        (folder / "resolv.conf").touch()
        sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "host_key")
        shutil.copy(f"{self.key}.pub", folder / "authorized_keys")
        (folder / "sshd_config").write_text(
            "HostKey /srv/host/host_key\nAuthorizedKeysFile /srv/host/authorized_keys\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nPermitRootLogin prohibit-password\nUseDNS no\nPidFile none\nMaxStartups 50\n"
            "SetEnv PATH=/srv/tools/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        )

    def _await(self, host: Host, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and host.process.poll() is None:
            child = sh("ps", "--ppid", str(host.process.pid), "-o", "pid=", check=False).split()
            if child and not host.pid:
                host.pid = int(child[0])
            if host.pid and self.ssh(host, "true", check=False) == 0:
                return
            time.sleep(0.3)
        said = "".join((host.folder / name).read_text() for name in ("host.log",))
        said += "".join(file.read_text() for file in host.folder.glob("sshd.log"))
        raise Unavailable(f"the host {host.name} did not start: {said[-500:]}")

    def ssh(self, host: Host, command: str, check: bool = True) -> int:
        options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
        words = [
            "ssh",
            "-i",
            str(self.key),
            "-F",
            "none",
            *options,
            "-o",
            "ConnectTimeout=3",
            f"root@{host.address}",
            command,
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert not check or not done.returncode, done.stderr
        return done.returncode
