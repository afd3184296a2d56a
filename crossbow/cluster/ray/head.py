"""The head of a cluster that is started here. Its state is on the disk, so that it can continue after it was killed."""

from __future__ import annotations

import inspect
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from crossbow.cluster.ray.environment import added_variables
from crossbow.cluster.ray.guard import guarded
from crossbow.cluster.ray.scratch import scratch_directory
from crossbow.cluster.signals import deferred
from crossbow.console import say
from crossbow.types import ConfigurationError

OBJECT_STORE = 128 << 20
"""Bytes of shared memory of a node that is started here. Messages between ranks are not kept in it."""
NICENESS = 0
"""Niceness of the ranks. Ray's default is 15, with which they would hardly run while other programs use the cores."""
MOST_BYTES = 38
"""Maximum length of the path of a directory for Ray's sockets: with the names that Ray adds, the path of a socket has
at most 103 bytes."""
DIRECTORY = "RAY_TMPDIR"
"""The environment variable with the directory of Ray's sockets and logs."""
PAUSE = 0.1
"""Seconds between two attempts to find the node of a head that starts."""
LOOK = 0.5
"""Seconds between two checks of the head."""
SECONDS_TO_START = 120.0
"""Maximum wait for the head to start. Ray itself waits 30 s, which is too short on a very busy machine."""
SECONDS_TO_END = 10.0
"""Maximum wait for the end of the thread."""


@contextmanager
def own_head(
    ray: Any, *, cores: int, address: str | None = None, checks: Mapping[str, int] | None = None
) -> Iterator[None]:
    """Start the head of a cluster on this machine, and end it with the context. If its server is killed, it is
    restarted.

    cores: number of cores that it announces. address: its address for other machines; None for this one only. checks:
    settings of the health checks of its nodes. Raises ConfigurationError if the head does not start.
    """
    with ExitStack() as stack:
        stack.enter_context(added_variables(stack.enter_context(guarded())))
        settings: dict[str, Any] = {"worker_niceness": NICENESS, **(checks or {})}
        directory = stack.enter_context(scratch_directory("crossbow-ray-head-"))
        keeps = _can_keep(ray)
        if keeps:
            state = Path(directory, "state")
            state.mkdir()
            settings |= {"gcs_storage": "rocksdb", "gcs_storage_path": str(state)}
        stack.callback(ray.shutdown)
        with deferred(), _without_rays_handler(ray), few_processes(ray), _long_wait(ray):
            try:
                ray.init(
                    "local",
                    num_cpus=cores,
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE,
                    log_to_driver=False,
                    logging_level="CRITICAL",
                    _node_ip_address=address,
                    _temp_dir=_own_directory(directory) if address is None else None,
                    _system_config=settings,
                )
            except Exception as error:
                received = (str(error).splitlines() or [repr(error)])[0]
                raise ConfigurationError(
                    f"expected Ray to start on this machine. Received: {received}. With {DIRECTORY}=DIR in the "
                    "environment, Ray keeps its logs in DIR"
                ) from error
        if keeps:
            stack.enter_context(_started_again(ray._private.worker._global_node))
        yield


@contextmanager
def _without_rays_handler(ray: Any) -> Iterator[None]:
    """Keep Ray from replacing the handler of SIGTERM. Ray's handler would end this process at any point."""
    utils = ray._private.utils
    given, utils.set_sigterm_handler = utils.set_sigterm_handler, lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = given


@contextmanager
def few_processes(ray: Any) -> Iterator[None]:
    """Keep Ray from starting three processes that nothing here uses: the autoscaler, the dashboard's server, and the
    one that copies log files to the driver. Together they take as long to start as the rest of the head. With a version
    of Ray that has no such parameters, they are started."""
    parameter, services = ray._private.parameter, ray._private.services
    if not {"no_monitor", "include_log_monitor"} <= inspect.signature(parameter.RayParams).parameters.keys():
        yield
        return
    given, start = parameter.RayParams, services.start_api_server
    parameter.RayParams = partial(given, no_monitor=True, include_log_monitor=False)
    services.start_api_server = lambda *_, **__: ("", None)
    try:
        yield
    finally:
        parameter.RayParams, services.start_api_server = given, start


@contextmanager
def _long_wait(ray: Any) -> Iterator[None]:
    """Let Ray wait for the head's node for `SECONDS_TO_START`: it asks for the node until there is no RuntimeError. A
    version of Ray that asks in another way keeps its own limit."""
    services, deadline = ray._private.services, time.monotonic() + SECONDS_TO_START
    given = getattr(services, "get_node", None)
    if given is None:
        yield
        return

    def get_node(*arguments: Any) -> Any:
        while True:
            try:
                return given(*arguments)
            except RuntimeError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(PAUSE)

    services.get_node = get_node
    try:
        yield
    finally:
        services.get_node = given


def _own_directory(directory: str) -> str | None:
    """A directory for Ray's sockets and logs that is removed with the head. None: Ray's default, where they stay, if
    the user has chosen it, or if the path is too long."""
    return None if os.environ.get(DIRECTORY) or len(os.fsencode(directory)) > MOST_BYTES else directory


def _can_keep(ray: Any) -> bool:
    """Whether this version of Ray can keep the state of the head on the disk."""
    return hasattr(ray._private.node.Node, "_is_rocksdb_gcs")


@contextmanager
def _started_again(node: Any) -> Iterator[None]:
    """Restart the server of the head if it ends within the context. node: Ray's object for the head's node."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK):
            servers = node.all_processes.get("gcs_server", ())
            if servers and all(server.process.poll() is None for server in servers):
                continue
            try:
                node.kill_gcs_server(check_alive=False)
                node.start_gcs_server()  # at its old port
            except Exception as error:  # without a head, the launcher ends training
                say(f"the head of the Ray cluster has ended, and could not be started again: {error}")
                return
            say("the head of the Ray cluster had ended. It goes on with its state on the disk")

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(SECONDS_TO_END)
