"""Starts Ray on this machine and serves an artifact until the standard input ends.

    python scripts/serve/server.py model.so '{"replicas": 2}'

The first line of the output is JSON: the ports of the models and of the metrics. Each line "kill"
on the input kills one replica, and the answer is the number of replicas killed: 0 while none runs.
The application `/echo` answers a request with its body, as Ray's tutorial does. It has as many
replicas as the model.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home folder
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # for a busy machine

import ray
import tcc
from ray import serve
from starlette.requests import Request
from starlette.responses import Response


class Echo:
    """Answers with the body of the request."""

    async def __call__(self, request: Request) -> Response:
        return Response(await request.body())


def free_port() -> int:
    """Returns a port that is free now."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def kill(name: str) -> int:
    """Kills a replica of the deployment `name`; returns the number of killed replicas."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    replicas = [a for a in actors if a["name"].startswith("SERVE_REPLICA::") and name in a["name"]]
    random.shuffle(replicas)
    for replica in replicas:
        try:
            ray.kill(ray.get_actor(replica["name"], namespace=replica["namespace"]))
        except ValueError:  # it ended by itself
            continue
        return 1
    return 0


def main(artifact: str, options: str) -> None:
    """Serves until the standard input ends."""
    settings = json.loads(options)
    settings.setdefault("name", "served")
    port, metrics = free_port(), free_port()
    replicas = settings.get("replicas", 1)
    cpus = replicas * (settings.get("cores", 1) + 1)
    ray.init(
        num_cpus=cpus, include_dashboard=False, _metrics_export_port=metrics, log_to_driver=False
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    echo = serve.deployment(Echo).options(
        num_replicas=replicas, max_ongoing_requests=32, ray_actor_options={"num_cpus": 1}
    )
    serve.run(echo.bind(), name="echo", route_prefix="/echo")
    serve.run(tcc.ray.application(artifact, **settings), name="model", route_prefix="/")
    print(json.dumps({"port": port, "metrics": metrics, "name": settings["name"]}), flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            print(kill(f"#{settings['name']}#"), flush=True)
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
