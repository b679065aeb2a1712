"""HTTP proxies of the environment, and the addresses that bypass them.

If `http_proxy` is set and `no_proxy` is not, as in many offices and clusters, HTTP libraries use the proxy even for
127.0.0.1. The proxy cannot reach that address, and Ray's dashboard and MLflow's server appear broken.
"""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

# No proxy can reach these. Some libraries (requests, reqwest) read the network range, all others the names
LOOPBACK = ("127.0.0.1", "localhost", "::1", "127.0.0.0/8")
EXCEPTIONS = ("no_proxy", "NO_PROXY")  # a library reads one of them; most prefer the first
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def exceptions(*hosts: str) -> str:
    """Return a value for `no_proxy`: the environment's entries, then loopback and `hosts`."""
    given = [entry.strip() for name in EXCEPTIONS for entry in os.environ.get(name, "").split(",")]
    return ",".join(dict.fromkeys(entry for entry in [*given, *LOOPBACK, *hosts] if entry))


def except_from_proxies(*hosts: str) -> None:
    """Exclude loopback and `hosts` from the proxies of this process and its children. No-op without a proxy."""
    if any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES):
        os.environ.update(dict.fromkeys(EXCEPTIONS, exceptions(*hosts)))


def proxies_of(url: str) -> dict[str, str]:
    """Return the proxies by scheme that `requests` would use for an address; {} if `no_proxy` excludes the address."""
    from requests.utils import get_environ_proxies

    return get_environ_proxies(url)


def proxy_of(url: str) -> str:
    """Return the proxy that `requests` uses for an address, without its password; empty if it uses none."""
    from requests.utils import select_proxy

    proxy = select_proxy(url, proxies_of(url)) or ""
    return proxy.rpartition("//")[2].rpartition("@")[2].rstrip("/")


def is_loopback(host: str) -> bool:
    """Return whether an address or name refers to this machine only."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(address: str) -> str:
    """Return the host of `SCHEME://HOST:PORT` or `HOST:PORT`; empty for addresses without a port (`auto`, `local`)."""
    bare = urlsplit(address if "://" in address else f"//{address}")
    return (bare.hostname or "") if "://" in address or ":" in address else ""
