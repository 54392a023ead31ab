"""The gateway as a process: a key-value client, the application on uvicorn, and a status page.

    python -m neve.gateway --config gateway.toml
    python -m neve.gateway --set cluster=main --set 'managers=["127.0.0.1:3701"]' --set listen.http=127.0.0.1:3950

SIGTERM and SIGINT stop it cleanly: no new requests, and those in flight finish.
Exit codes: 0 stopped by a signal, 1 it could not run, 2 the configuration is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import uvicorn
import uvloop
from prometheus_client import CollectorRegistry

from neve.client.objects.client import KeyValueClient
from neve.client.objects.options import KeyValueOptions
from neve.gateway.app import make_app
from neve.gateway.config import GatewayConfig, load
from neve.gateway.metrics import GatewayMetrics, Measured
from neve.proto.errors import InvalidArgument, NeveError
from neve.rpc.auth import AllowAll, Authenticator, TokenFile
from neve.rpc.command_line import parsed
from neve.rpc.front import run_until_told_to_stop
from neve.rpc.logs import set_up_logging
from neve.rpc.status_page import StatusPage
from neve.rpc.tls import TlsFiles, server_context
from neve.rpc.wire.sockets import split_listen_address

log = logging.getLogger(__name__)

BACKLOG = 1024
KEEP_ALIVE_S = 30


class HttpServer(uvicorn.Server):
    """uvicorn, without its signal handlers: the process has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Gateway:
    """One gateway. `start` returns when it serves; `stop` when nothing of it runs any more."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._exit = contextlib.AsyncExitStack()
        self.http_address = self.status_address = ""
        self._ready = False

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self._exit.aclose()
            raise

    async def _start(self) -> None:
        config = self._config
        limits = config.limits
        options = KeyValueOptions(
            operation_timeout_s=limits.operation_timeout_s,
            buffer_bytes_max=limits.buffer_bytes_max,
            part_bytes=limits.part_bytes,
            first_part_bytes=limits.part_bytes,
        )
        client = KeyValueClient(
            config.managers, cluster=config.cluster, token=config.token, tls=config.tls, options=options
        )
        await client.open()
        self._exit.push_async_callback(client.close)
        registry = CollectorRegistry()
        authenticator: Authenticator = (
            TokenFile(config.listen.token_file) if config.listen.token_file is not None else AllowAll()
        )
        app = make_app(
            client,
            limits=limits,
            authenticator=authenticator,
            needs_token=config.listen.token_file is not None,
            facts=self._facts,
        )
        await self._serve(Measured(app, GatewayMetrics(registry)))
        if config.listen.status:
            status = StatusPage(registry, ready=lambda: self._ready, facts=self._facts)
            self.status_address = await status.start(*split_listen_address(config.listen.status))
            self._exit.push_async_callback(status.stop)
        self._ready = True
        log.info("gateway_started http=%s status=%s", self.http_address, self.status_address or "-")

    async def _serve(self, app: Measured) -> None:
        config = self._config
        bound = _bind(config.listen.http)
        host, port = bound.getsockname()[:2]
        self.http_address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        server = HttpServer(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                loop="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                limit_concurrency=config.limits.connections_max,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(1, int(config.drain_timeout_s)),
                ssl_context_factory=_tls(config.listen.tls),
            )
        )
        serving = asyncio.ensure_future(server.serve(sockets=[bound]))

        async def stop() -> None:
            self._ready = False
            server.should_exit = True
            await serving

        self._exit.push_async_callback(stop)
        while not server.started:
            if serving.done():
                serving.result()
                raise OSError(f"uvicorn did not start on {self.http_address}")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        await self._exit.aclose()
        log.info("gateway_stopped http=%s", self.http_address)

    def _facts(self) -> Mapping[str, object]:
        return {"kind": "gateway", "cluster": self._config.cluster}


def _bind(address: str) -> socket.socket:
    host, port = split_listen_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound


def _tls(files: TlsFiles | None) -> Callable[..., ssl.SSLContext] | None:
    if files is None:
        return None
    context = server_context(files)  # a bad set stops the start
    return lambda *_: context


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="neve-gateway", description="Run the HTTP gateway of Neve.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file; gateway/config.py lists the keys")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set one key over the file's")
    options = parsed(parser, arguments)
    try:
        config = load(options.config, options.set)
    except InvalidArgument as error:
        print(f"neve-gateway: {error}", file=sys.stderr)
        return 2
    set_up_logging(as_json=config.log.json, level=config.log.level)
    try:
        uvloop.run(run_until_told_to_stop(Gateway(config)))
    except (NeveError, TimeoutError, OSError, ValueError) as error:
        print(f"neve-gateway: cannot run: {error or type(error).__name__}", file=sys.stderr)
        return 1
    return 0
