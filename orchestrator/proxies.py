"""HTTP proxies of the environment, and the addresses that are asked without one.

Where `http_proxy` is set and `no_proxy` is not, as in many offices and clusters, HTTP libraries ask the proxy even for
127.0.0.1: it answers for itself or never, and Ray's dashboard or MLflow's server seem to be broken.
"""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

# No proxy can reach these. The network is for libraries that read one (requests, reqwest), the names for all others
LOOPBACK = ("127.0.0.1", "localhost", "::1", "127.0.0.0/8")
EXCEPTIONS = ("no_proxy", "NO_PROXY")  # libraries read one or the other; most prefer the first
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def exceptions(*hosts: str) -> str:
    """Return the value of `no_proxy`: that of the environment, then loopback and `hosts`."""
    given = [entry.strip() for name in EXCEPTIONS for entry in os.environ.get(name, "").split(",")]
    return ",".join(dict.fromkeys(entry for entry in [*given, *LOOPBACK, *hosts] if entry))


def except_from_proxies(*hosts: str) -> None:
    """Have this process and its children ask loopback and `hosts` directly; without a proxy nothing changes."""
    if any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES):
        os.environ.update(dict.fromkeys(EXCEPTIONS, exceptions(*hosts)))


def proxies_of(url: str) -> dict[str, str]:
    """Return the proxies, by scheme, that `requests` would ask for an address; none where `no_proxy` excepts it."""
    from requests.utils import get_environ_proxies

    return get_environ_proxies(url)


def proxy_of(url: str) -> str:
    """Return the proxy that `requests` asks for an address, without its password; empty where it asks none."""
    from requests.utils import select_proxy

    proxy = select_proxy(url, proxies_of(url)) or ""
    return proxy.rpartition("//")[2].rpartition("@")[2].rstrip("/")


def is_near(host: str) -> bool:
    """Whether few proxies reach a host: it has a private address or a name without a dot, and is not this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return bool(host) and "." not in host and host != "localhost"
    return (address.is_private or address.is_link_local) and not address.is_loopback


def host_of(address: str) -> str:
    """Return the host of `SCHEME://HOST:PORT` or `HOST:PORT`; empty for what has no port (`auto`, `local`)."""
    bare = urlsplit(address if "://" in address else f"//{address}")
    return (bare.hostname or "") if "://" in address or ":" in address else ""
