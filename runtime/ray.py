"""Serves an artifact on Ray Serve by the KServe v2 protocol.

    from ray import serve
    import tcc
    serve.run(tcc.ray.application("mobilenet.so"), route_prefix="/")

Ray's proxy carries HTTP, its controller starts, watches and replaces replicas. SERVING.md beside
this file is the guide. Ray is the extra `ray`; only `application` imports it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcc.runtime.reports import MissingLibraryError, RuntimeFailure

if TYPE_CHECKING:
    from ray import serve


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of a deployment.

    `name` is the model's name in URLs ("": that of the artifact). `replicas` processes run the
    model, each on `cores` CPUs of its own; replicas beyond the groups of CPUs of a machine share
    them in turn. With `latency` above 0, requests that wait are joined along the batch dimension
    into runs of at most `rows` rows, as long as two runs take at most `latency` seconds. A body of
    more than `body_bytes` is refused. Up to `ongoing` requests are in a replica at once, and up to
    `queued` wait in front of all (-1: any number); Ray answers 503 to more.
    """

    name: str = ""
    replicas: int = 1
    cores: int = 1
    latency: float = 0.0
    rows: int = 16
    body_bytes: int = 64 << 20
    ongoing: int = 32
    queued: int = -1


def application(artifact: str | os.PathLike[str], **options: Any) -> serve.Application:
    """Returns an application of Ray Serve that serves `artifact`; `options` are `ServeOptions`.

    `serve.run(application, route_prefix="/")` starts it. The artifact must lie at the same path on
    every node. Raises RuntimeFailure for an unknown option, an option out of range, or a file that
    is not there. Raises MissingLibraryError without Ray.
    """
    path = Path(artifact).absolute()
    if not path.is_file():
        raise RuntimeFailure("the artifact is not there", where=str(path))
    settings = _checked(options)
    name = settings.name or path.name.partition(".")[0]
    try:
        replica = import_module("tcc.runtime.ray_replica")
    except ImportError as failure:
        raise MissingLibraryError(
            "Ray Serve is missing",
            why=str(failure),
            hint="install it with: pip install 'tcc[ray]'",
        ) from failure
    return replica.bound(str(path), name, asdict(settings))


def from_arguments(arguments: Mapping[str, str]) -> serve.Application:
    """Returns `application` for `serve run tcc.runtime.ray:from_arguments artifact=m.so cores=2`.

    Raises RuntimeFailure as `application` does, and without `artifact`.
    """
    options: dict[str, Any] = dict(arguments)
    artifact = options.pop("artifact", None)
    if artifact is None:
        raise RuntimeFailure("no artifact is named", hint="add: artifact=PATH")
    types: dict[str, Any] = {name: type(value) for name, value in asdict(ServeOptions()).items()}
    for key in options.keys() & types.keys():
        try:
            options[key] = types[key](options[key])
        except ValueError:
            raise RuntimeFailure(
                f"option '{key}' has the wrong type", why=f"it is {options[key]!r}"
            ) from None
    return application(artifact, **options)


def _checked(options: Mapping[str, Any]) -> ServeOptions:
    names = [field.name for field in fields(ServeOptions)]
    unknown = [name for name in options if name not in names]
    if unknown:
        raise RuntimeFailure(
            f"serving has no option {', '.join(unknown)}", hint=f"it has {', '.join(names)}"
        )
    settings = ServeOptions(**options)
    for name in ("replicas", "cores", "rows", "body_bytes", "ongoing"):
        value = getattr(settings, name)
        if type(value) is not int or value < 1:
            raise RuntimeFailure(f"option '{name}' is no number from 1 on", why=f"it is {value!r}")
    if not 0 <= settings.latency < float("inf"):
        raise RuntimeFailure("option 'latency' is no time in seconds", why=f"{settings.latency!r}")
    if settings.name and not settings.name.replace("-", "_").replace(".", "_").isidentifier():
        raise RuntimeFailure("option 'name' is no name for URLs", why=f"it is {settings.name!r}")
    if settings.latency and settings.ongoing < settings.rows:
        raise RuntimeFailure(
            "option 'ongoing' is below 'rows'", why="a replica never has enough requests to join"
        )
    return settings
