"""Names: the systems that are compared, as results store them and as tables and plots show them.

In:    a system's name
Out:   its label
"""

UPSTREAM = "upstream"
"""the ChatTTS package behind a lock, one request after another"""
STATIC = "static"
"""the same package's batch call under `@serve.batch`, behind Ray Serve's HTTP"""
SERVICE = "service"
"""this service: `chattts-serve start` on a configuration"""
IN_PROCESS = "in_process"
"""this service's engine, vocoder and synthesizer in one process, without Ray Serve"""
LOW = "low"
"""a suffix: this service or this engine with `latency: low`"""
TWO_INGRESS = "two_ingress"
"""this service with two replicas of the ingress, the vocoder beside the engine"""
URL = "url"
"""a server that was started elsewhere, `--url`"""

LABELS = {
    UPSTREAM: "ChatTTS package",
    STATIC: "static batches",
    SERVICE: "this service",
    IN_PROCESS: "this engine, without Serve",
    URL: "server",
}


def static_name(batch_size: int) -> str:
    """Returns the name of the static batches of one size: `static_8`."""
    return f"{STATIC}_{batch_size}"


def low_name(name: str) -> str:
    """Returns the name of a system with `latency: low`: `service_low`."""
    return f"{name}_{LOW}"


def kind(name: str) -> str:
    """Returns the system a name belongs to: `static` for `static_8`, `service` for `service_low`."""
    return STATIC if name.startswith(STATIC) else name.removesuffix(f"_{LOW}")


def label(name: str) -> str:
    """Returns what tables and plots call a system."""
    size = name.removeprefix(f"{STATIC}_")
    more = f" of {size}" if size.isdigit() else ", low latency" if name.endswith(f"_{LOW}") else ""
    return LABELS[kind(name)] + more
