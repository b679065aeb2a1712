"""No library sends a request to this machine through a proxy."""

import os
import urllib.error
import urllib.request

import pytest

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.proxies import except_from_proxies, exceptions, host_of, proxy_of
from tests.http_server import Server
from tests.refusing import refuses


def test_without_a_proxy_the_environment_stays_as_it_is(monkeypatch):
    monkeypatch.setattr("os.environ", {"PATH": "/bin", "no_proxy": "a"})
    except_from_proxies("10.0.0.1")
    assert os.environ == {"PATH": "/bin", "no_proxy": "a"}


def test_loopback_joins_what_either_variable_excepts(monkeypatch):
    monkeypatch.setattr("os.environ", {"HTTP_PROXY": "http://p:1", "no_proxy": "a, b", "NO_PROXY": "b,.corp"})
    except_from_proxies("10.0.0.1")
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == "a,b,.corp,127.0.0.1,localhost,::1,127.0.0.0/8,10.0.0.1"
    assert exceptions() == os.environ["no_proxy"]  # nothing twice


def test_a_proxy_is_named_without_its_password(proxy):
    assert proxy_of("http://example.com/x") == f"127.0.0.1:{proxy.server_port}"
    os.environ["no_proxy"] = "example.com,10.0.0.0/8"
    assert proxy_of("http://example.com/x") == proxy_of("https://10.1.2.3:5000") == ""


@pytest.mark.parametrize(
    ("address", "host"),
    [("10.0.0.1:6379", "10.0.0.1"), ("ray://head:10001", "head"), ("auto", ""), ("[::1]:6379", "::1"), ("", "")],
)
def test_the_host_of_an_address(address, host):
    assert host_of(address) == host


def test_every_library_of_ours_asks_this_machine_directly(proxy):
    """The libraries are urllib, requests (MLflow, Ray's State API) and reqwest (obstore)."""
    import requests

    from ctvr.orchestrator.store.remote import RemoteObjects

    with Server(200) as here:
        url = f"http://127.0.0.1:{here.server_port}"
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{url}/first")
        assert proxy.asked == [f"{url}/first"]  # the stand-in is one
        except_from_proxies()
        for name in ("127.0.0.1", "localhost"):
            assert requests.get(f"http://{name}:{here.server_port}/requests", timeout=10).ok
        urllib.request.urlopen(f"{url}/urllib").close()
        os.environ |= {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        with pytest.raises(ConfigError):  # the stand-in keeps nothing
            RemoteObjects("s3://bucket/x").open()
        here.shutdown()
    assert {"/requests", "/urllib"} < set(here.asked)
    assert any(path.startswith("/bucket") for path in here.asked)
    assert proxy.asked == [f"{url}/first"]
    assert proxy_of("http://127.1.2.3:5000") == ""


def test_mlflow_is_asked_without_a_proxy_and_an_answering_proxy_is_named(proxy):
    from ctvr.orchestrator.tracking.server import check

    with Server(200) as here:
        check(f"http://127.0.0.1:{here.server_port}")
        here.shutdown()
    assert here.asked
    assert not proxy.asked
    with refuses("127.0.0.1", where="tracking http://mlflow.example:5000"):
        check("http://mlflow.example:5000")
    assert proxy.asked
