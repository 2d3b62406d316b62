"""What the upstream client leans on inside Tornado exists and does what it is believed to do."""

import asyncio
from typing import Any

import pycurl
import pytest
from tornado.curl_httpclient import CurlAsyncHTTPClient
from tornado.httpclient import AsyncHTTPClient

from tornado_frontdoor.proxy.curl.client import UpstreamClient

CALLBACKS = ("_handle_socket", "_set_timeout")
OURS = (*CALLBACKS, "_curl_create", "_finish_pending_requests", "_handle_timeout", "fetch_impl")


class Recording(CurlAsyncHTTPClient):
    """The stock client, and what was called on it."""

    def initialize(self, max_clients: int = 10) -> None:  # type: ignore[override]
        self.called: list[str] = []
        super().initialize(max_clients=max_clients)

    def _curl_create(self) -> Any:
        self.called.append("_curl_create")
        return super()._curl_create()

    def _set_timeout(self, msecs: int) -> None:
        self.called.append("_set_timeout")
        super()._set_timeout(msecs)

    def _handle_socket(self, *arguments: Any) -> None:
        self.called.append("_handle_socket")
        super()._handle_socket(*arguments)


@pytest.mark.parametrize("name", OURS)
def test_every_method_that_we_replace_is_there_to_be_replaced(name: str) -> None:
    assert name in vars(CurlAsyncHTTPClient)
    assert name in vars(UpstreamClient)


def test_initialize_makes_the_handles_asked_for_and_installs_the_two_callbacks() -> None:
    async def scenario() -> None:
        empty = Recording(max_clients=0, force_instance=True)
        assert (empty._curls, empty._free_list, empty._fds) == ([], [], {})
        assert "_curl_create" not in empty.called
        empty.called.clear()
        curl = pycurl.Curl()
        curl.setopt(pycurl.URL, "http://127.0.0.1:9/")
        empty._multi.add_handle(curl)
        assert empty.called == ["_set_timeout"]
        empty._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        assert "_handle_socket" in empty.called
        empty._multi.remove_handle(curl)
        curl.close()
        empty.close()

        two = Recording(max_clients=2, force_instance=True)
        assert two.called.count("_curl_create") == 2
        assert two._curls == two._free_list
        two.close()

    asyncio.run(scenario())


def test_close_closes_every_handle_and_the_multi() -> None:
    async def scenario() -> None:
        client = UpstreamClient()
        client._curls.append(pycurl.Curl())
        curl, multi = client._curls[0], client._multi
        client.close()
        assert multi.closed
        assert client._multi is None
        with pytest.raises(pycurl.error):
            curl.setopt(pycurl.URL, "http://127.0.0.1/")

    asyncio.run(scenario())


def test_each_client_is_one_of_its_own_and_refuses_fetch() -> None:
    async def scenario() -> None:
        one, other = UpstreamClient(), UpstreamClient()
        assert one is not other
        assert isinstance(one, AsyncHTTPClient)
        with pytest.raises(NotImplementedError):
            await one.fetch("http://127.0.0.1:9/")
        one.close()
        other.close()

    asyncio.run(scenario())
