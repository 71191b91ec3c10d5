"""What somebody without the token tries on every port of a service. `python attacker.py HOST MARK GCS_PORT PORT ...`

Prints one JSON object: the open ports, what HTTP and gRPC said on each, whether Ray let a driver in. Whatever runs makes MARK.
Bounded: a handful of requests a port. It needs no address but HOST, so it can be run in a network of its own.
"""

import json
import os
import socket
import subprocess
import sys

import grpc
import requests

JOBS = ("/api/jobs/", "/api/job_agent/jobs/")
# One method each of the services behind Ray's ports: GCS, raylet, workers, replicas.
METHODS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.serve.ASGIService/HandleRequest",
)
DRIVER = """
import ray, sys
ray.init(address=sys.argv[1], log_to_driver=False)
mark = sys.argv[2]
ray.get(ray.remote(num_cpus=0)(lambda: open(mark, "w").close()).remote(), timeout=20)
"""
IMPATIENT = {"RAY_NUM_REDIS_GET_RETRIES": "1", "RAY_py_gcs_connect_timeout_s": "2", "RAY_gcs_rpc_server_connect_timeout_s": "2"}


def is_open(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(3)
        return probe.connect_ex((host, port)) == 0


def said_by_http(host: str, port: int, mark: str) -> dict[str, int]:
    statuses = {}
    with requests.Session() as session:
        session.trust_env = False
        for path in JOBS:
            try:
                reply = session.post(f"http://{host}:{port}{path}", json={"entrypoint": f"touch '{mark}'"}, timeout=5)
            except requests.RequestException:
                continue
            statuses[path] = reply.status_code
    return statuses


def said_by_grpc(host: str, port: int) -> dict[str, str]:
    codes = {}
    with grpc.insecure_channel(f"{host}:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        for method in METHODS:
            try:
                channel.unary_unary(method)(b"", timeout=5)
                codes[method] = "OK"
            except grpc.RpcError as error:
                codes[method] = error.code().name
    return codes


def driver_gets_in(host: str, port: int, mark: str) -> bool:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= IMPATIENT | {"RAY_AUTH_MODE": "disabled"}
    if host.startswith("127."):  # else Ray would look for this machine's other address in its place
        environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    command = [sys.executable, "-c", DRIVER, f"{host}:{port}", mark]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> None:
    host, mark, gcs, *ports = sys.argv[1:]
    reached = [port for port in map(int, ports) if is_open(host, port)]
    result = {
        "open": reached,
        "http": {port: said_by_http(host, port, mark) for port in reached},
        "grpc": {port: said_by_grpc(host, port) for port in reached},
        "driver": driver_gets_in(host, int(gcs), mark),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
