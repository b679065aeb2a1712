"""Detached signatures of bundles by the keys of SSH: `ssh-keygen -Y` of OpenSSH 8.2 or later signs and verifies."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from ctvr.orchestrator.errors import ConfigError

NAMESPACE = "ctvr"  # a signature for another purpose is not accepted
OLD = "is not installed, or is older than OpenSSH 8.2"


def sign(content: bytes, name: str, key: Path) -> bytes:
    """Return the signature of a file by a private key. ssh-keygen may ask for a passphrase.

    Args:
        content: content of the file.
        name: name of the file, which ssh-keygen prints.
        key: the private key.

    Raises:
        ConfigError: if ssh-keygen is missing or refuses.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_bytes(content)
        _keygen(["sign", "-f", str(key), "-n", NAMESPACE, str(file)], f"--sign {key}")
        return signature_of(file).read_bytes()


def signer_of(file: Path, signers: Path) -> str:
    """Return the name in a file of allowed signers whose key signed `file`.

    Raises:
        ConfigError: if the signature is missing, is not of this file, or is not of a listed key.
    """
    signature, where = signature_of(file), f"--signers {signers}"
    if not signature.is_file():
        raise ConfigError(f"the signature {signature} does not exist", where, remedy="Pass the file next to it.")
    of = ["-f", str(signers), "-s", str(signature)]
    name = _keygen(["find-principals", *of], where).partition("\n")[0]
    _keygen(["verify", *of, "-I", name, "-n", NAMESPACE], where, file.read_bytes())
    return name


def signature_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.sig")


def _keygen(words: list[str], where: str, content: bytes | None = None) -> str:
    """Run `ssh-keygen -Y` and return its output; raise ConfigError with the last line of its error output."""
    try:
        done = subprocess.run(["ssh-keygen", "-Y", *words], input=content, capture_output=True, timeout=60)
    except FileNotFoundError as error:
        raise ConfigError(f"ssh-keygen {OLD}", where, remedy="Install OpenSSH.") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError("ssh-keygen did not end within 60 s", where, remedy="Use ssh-agent.") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"status {done.returncode}"]
        raise ConfigError(f"the signature is refused ({said[-1]:.200})", where, remedy="Check the key and the file.")
    return done.stdout.decode("utf-8", "replace").strip()
