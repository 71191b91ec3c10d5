"""The manifests as kubectl renders them, held against Kubernetes' schemas, KubeRay's, Serve's and our own rules."""

import math
import os
import re
from copy import deepcopy
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import kubernetes_validate
import pytest
import yaml

from pipeline.store.redis_link import PASSWORD_VARIABLE
from scripts.generate import mounts
from scripts.generate.k8s_config import (
    OVERLAYS,
    WORKER_GROUPS,
    egress_patch,
    listener_patches,
    listeners_of,
    outside_ports,
    patch_of,
    patch_path,
)
from scripts.generate.kustomize import CLUSTER_WIDE, Manifest, change, containers, render
from serve.commands.launch import ray_environment
from serve.commands.launch.ray_environment import Place
from serve.config.config_file import check_file, find_mistakes

ROOT = Path(__file__).resolve().parents[3]
CRD = ROOT / "tests/data/kuberay/ray.io_rayservices.yaml"
KUBERNETES = "1.32"
FAREWELL_S = 35  # what Serve takes on top of graceful_shutdown_timeout_s
START_S = 120  # what a replica may take to start, weights included, so that it speaks before the one it replaces goes


@pytest.fixture(scope="session")
def rendered() -> dict[str, list[Manifest]]:
    """overlay -> its documents."""
    return {overlay: render(ROOT / "k8s/overlays" / overlay) for overlay in OVERLAYS}


@pytest.fixture(params=OVERLAYS)
def documents(request, rendered) -> list[Manifest]:
    return rendered[request.param]


@pytest.fixture
def ray_service(documents) -> Manifest:
    (document,) = of_kind(documents, "RayService")
    return document


def of_kind(documents: list[Manifest], kind: str) -> list[Manifest]:
    return [document for document in documents if document["kind"] == kind]


def cluster_of(ray_service: Manifest) -> Manifest:
    return ray_service["spec"]["rayClusterConfig"]


def serve_config_of(ray_service: Manifest) -> Manifest:
    return yaml.safe_load(ray_service["spec"]["serveConfigV2"])


def ray_pods(ray_service: Manifest) -> dict[str, Manifest]:
    """group -> pod template."""
    cluster = cluster_of(ray_service)
    pods = {"head": cluster["headGroupSpec"]["template"]}
    return pods | {group["groupName"]: group["template"] for group in cluster["workerGroupSpecs"]}


def all_pods(documents: list[Manifest]) -> dict[str, Manifest]:
    """name -> pod template, of everything that makes pods."""
    pods: dict[str, Manifest] = {}
    for document in documents:
        if document["kind"] == "RayService":
            pods |= ray_pods(document)
        elif "template" in document.get("spec", {}):
            pods[document["metadata"]["name"]] = document["spec"]["template"]
    return pods


def matches(selector: Manifest, labels: dict[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def closed(schema: Any) -> Any:
    """An OpenAPI v3 schema of a CRD as a JSON schema that knows no other keys."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    out = {key: closed(value) for key, value in schema.items() if not key.startswith("x-") and key not in ("format", "default")}
    if schema.get("properties") and not schema.get("x-kubernetes-preserve-unknown-fields"):
        out.setdefault("additionalProperties", False)
    return out


@pytest.fixture(scope="session")
def ray_service_schema() -> Manifest:
    crd = yaml.load(CRD.read_text(), Loader=yaml.CSafeLoader)
    (version,) = [version for version in crd["spec"]["versions"] if version["name"] == "v1"]
    schema = closed(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


@pytest.mark.slow
def test_ray_services_fit_kuberays_schema(ray_service, ray_service_schema):
    jsonschema.validate(ray_service, ray_service_schema)


@pytest.mark.slow
def test_a_misspelt_key_does_not_fit_kuberays_schema(ray_service, ray_service_schema):
    wrong = deepcopy(ray_service)
    cluster_of(wrong)["headGroupSpec"]["tempIate"] = {}
    with pytest.raises(jsonschema.ValidationError, match="tempIate"):
        jsonschema.validate(wrong, ray_service_schema)


def test_everything_else_fits_kubernetes_schema(documents):
    for document in documents:
        if document["kind"] != "RayService":
            kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_pods_fit_kubernetes_schema(documents):
    for name, pod in all_pods(documents).items():
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **pod["metadata"]}, "spec": pod["spec"]}
        kubernetes_validate.validate(whole, KUBERNETES, strict=True)


def test_everything_lives_in_the_overlays_namespace(documents):
    (namespace,) = of_kind(documents, "Namespace")
    for document in documents:
        if document["kind"] not in CLUSTER_WIDE:
            assert document["metadata"]["namespace"] == namespace["metadata"]["name"], document["metadata"]["name"]


@pytest.mark.parametrize(("overlay", "config"), OVERLAYS.items())
def test_the_embedded_configuration_is_the_file(overlay, config, rendered):
    assert patch_path(overlay).read_text() == patch_of(config), "run python -m scripts.generate"
    (ray_service,) = of_kind(rendered[overlay], "RayService")
    embedded = serve_config_of(ray_service)
    assert find_mistakes(embedded) == []
    assert embedded == check_file(ROOT / config).document


def deployments_of(ray_service: Manifest) -> list[Manifest]:
    return serve_config_of(ray_service)["applications"][0]["deployments"]


def first_replicas(deployment: Manifest) -> int:
    return deployment.get("num_replicas") or deployment["autoscaling_config"]["min_replicas"]


def room_of(group: Manifest) -> dict[str, float]:
    """What Ray may place on one worker."""
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    own = {name: float(count) for name, count in group.get("resources", {}).items()}
    return {"cpu": float(limits["cpu"]), "gpu": float(limits.get("nvidia.com/gpu", 0)), **own}


def place(deployments: list[Manifest], replicas: dict[str, int], workers: list[dict[str, float]]) -> dict[str, list[int]]:
    """deployment -> the workers its replicas find room on, the hungriest first, as Ray's scheduler has to."""
    places: dict[str, list[int]] = {deployment["name"]: [] for deployment in deployments}

    def wants(deployment: Manifest) -> dict[str, float]:
        options = deployment["ray_actor_options"]
        return {"gpu": options.get("num_gpus", 0), "cpu": options["num_cpus"], **options.get("resources", {})}

    for deployment in sorted(
        deployments, key=lambda deployment: (wants(deployment)["gpu"], wants(deployment)["cpu"]), reverse=True
    ):
        name, most = deployment["name"], deployment.get("max_replicas_per_node", 100)
        for _ in range(replicas[name]):
            fits = (
                number
                for number, room in enumerate(workers)
                if all(room.get(resource, 0) >= amount for resource, amount in wants(deployment).items())
                and places[name].count(number) < most
            )
            number = next(fits, None)
            assert number is not None, f"no worker has room for {name}"
            places[name].append(number)
            for resource, amount in wants(deployment).items():
                workers[number][resource] = workers[number].get(resource, 0) - amount
    return places


def workers_of(ray_service: Manifest, count: str) -> list[dict[str, float]]:
    return [room_of(group) for group in cluster_of(ray_service)["workerGroupSpecs"] for _ in range(group[count])]


def test_replicas_fit_the_smallest_cluster(ray_service):
    """Every deployment's first replicas have a place before the autoscaler has done anything."""
    deployments = deployments_of(ray_service)
    place(
        deployments,
        {deployment["name"]: first_replicas(deployment) for deployment in deployments},
        workers_of(ray_service, "minReplicas"),
    )


def test_a_rolling_update_finds_room_in_the_largest_cluster(ray_service):
    deployments = deployments_of(ray_service)
    replicas = {
        deployment["name"]: first_replicas(deployment)
        + math.ceil(first_replicas(deployment) * deployment.get("max_surge_percent", 0) / 100)
        for deployment in deployments
    }
    place(deployments, replicas, workers_of(ray_service, "maxReplicas"))


def test_a_machine_may_go_and_an_ingress_replica_is_left(rendered):
    """In production: each on a CPU worker of its own, and those are kept on different machines."""
    (ray_service,) = of_kind(rendered["prod"], "RayService")
    deployments = deployments_of(ray_service)
    groups = cluster_of(ray_service)["workerGroupSpecs"]
    owners = [group["groupName"] for group in groups for _ in range(group["minReplicas"])]
    places = place(
        deployments,
        {deployment["name"]: first_replicas(deployment) for deployment in deployments},
        workers_of(ray_service, "minReplicas"),
    )["Ingress"]
    assert len(set(places)) == len(places) >= 2
    assert {owners[number] for number in places} == {"cpu"}
    # Wherever else it may be placed later, no other group can take it.
    assert [group["groupName"] for group in groups if group.get("resources", {}).get("cpu_worker")] == ["cpu"]


def test_workers_of_a_group_stand_on_different_machines(rendered):
    (ray_service,) = of_kind(rendered["prod"], "RayService")
    for group in cluster_of(ray_service)["workerGroupSpecs"]:
        (spread,) = group["template"]["spec"]["topologySpreadConstraints"]
        assert (spread["topologyKey"], spread["maxSkew"]) == ("kubernetes.io/hostname", 1)
        assert spread["labelSelector"] == {"matchLabels": {"ray.io/group": group["groupName"]}}, "KubeRay's label of its pods"
        if group["groupName"] == "cpu":
            assert (spread["whenUnsatisfiable"], spread["minDomains"]) == ("DoNotSchedule", 2)


def test_scaling_deployments_find_machines_to_scale_to(ray_service):
    gpus = sum(room_of(group)["gpu"] * group["maxReplicas"] for group in cluster_of(ray_service)["workerGroupSpecs"])
    most = 0
    for deployment in deployments_of(ray_service):
        replicas = deployment.get("num_replicas") or deployment["autoscaling_config"]["max_replicas"]
        most += replicas * deployment["ray_actor_options"].get("num_gpus", 0)
    assert most <= gpus


def test_streams_are_heard_to_their_end(ray_service):
    deployments = deployments_of(ray_service)
    longest = max(deployment["graceful_shutdown_timeout_s"] for deployment in deployments)
    for group, pod in ray_pods(ray_service).items():
        if group != "head":
            (worker,) = pod["spec"]["containers"]
            leave = worker["lifecycle"]["preStop"]["exec"]["command"]
            assert leave[:2] == ["chattts-serve", "leave"], group
            grace_s = float(leave[leave.index("--grace") + 1])
            assert grace_s >= longest + START_S, group
            assert pod["spec"]["terminationGracePeriodSeconds"] >= grace_s + FAREWELL_S, group
    assert ray_service["spec"]["rayClusterDeletionDelaySeconds"] >= longest


def test_idle_nodes_outlive_a_lull(ray_service):
    downscale = max(
        deployment.get("autoscaling_config", {}).get("downscale_delay_s", 0) for deployment in deployments_of(ray_service)
    )
    assert cluster_of(ray_service)["autoscalerOptions"]["idleTimeoutSeconds"] >= max(600, downscale)


def test_the_head_runs_no_replicas(ray_service):
    assert cluster_of(ray_service)["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert ray_service["spec"]["excludeHeadPodFromServeSvc"] is True


def test_other_peoples_processes_cannot_join(ray_service):
    assert cluster_of(ray_service)["authOptions"] == {"mode": "token"}


def test_production_remembers_its_cluster_when_the_head_restarts(rendered):
    (ray_service,) = of_kind(rendered["prod"], "RayService")
    options = cluster_of(ray_service)["gcsFaultToleranceOptions"]
    host, _, port = options["redisAddress"].partition(":")
    (service,) = [document for document in of_kind(rendered["prod"], "Service") if document["metadata"]["name"] == host]
    assert int(port) in [entry["port"] for entry in service["spec"]["ports"]]
    assert "secretKeyRef" in options["redisPassword"]["valueFrom"]


def test_what_productions_replicas_share_is_there_and_keeps_what_it_should(rendered):
    (ray_service,) = of_kind(rendered["prod"], "RayService")
    args = serve_config_of(ray_service)["applications"][0]["args"]
    words = {}
    for role, url in (("store", args["voices"]["store"]), ("cache", args["cache"]["redis"])):
        at = urlsplit(url)
        (service,) = [
            document for document in of_kind(rendered["prod"], "Service") if document["metadata"]["name"] == at.hostname
        ]
        assert at.port in [entry["port"] for entry in service["spec"]["ports"]]
        pods = [
            pod
            for pod in all_pods(rendered["prod"]).values()
            if matches({"matchLabels": service["spec"]["selector"]}, pod["metadata"]["labels"])
        ]
        assert len(pods) == 1, f"{url} is one Redis"
        flags = pods[0]["spec"]["containers"][0]["args"]
        words[role] = dict(zip(flags[::2], flags[1::2], strict=True))
    assert (words["store"]["--appendonly"], words["store"]["--maxmemory-policy"]) == ("yes", "noeviction"), "keys are not lost"
    assert (words["cache"]["--save"], words["cache"]["--appendonly"]) == ("", "no")
    assert words["cache"]["--maxmemory-policy"] == "allkeys-lru", "a full cache makes room"


def test_production_verifies_its_weights_and_cannot_change_them(rendered):
    (ray_service,) = of_kind(rendered["prod"], "RayService")
    claims = {claim["metadata"]["name"] for claim in of_kind(rendered["prod"], "PersistentVolumeClaim")}
    workers = ray_pods(ray_service)
    del workers["head"]
    for group, pod in workers.items():
        (volume,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "weights"]
        assert volume["persistentVolumeClaim"]["claimName"] in claims, group
        assert volume["persistentVolumeClaim"]["readOnly"] is True, group
        (mount,) = [mount for mount in pod["spec"]["containers"][0]["volumeMounts"] if mount["name"] == "weights"]
        assert mount["mountPath"] == ray_environment.POD_WEIGHTS, group
    (fetch,) = containers(of_kind(rendered["prod"], "Job"))
    assert {"name": "CHATTTS_WEIGHTS", "value": fetch["volumeMounts"][0]["mountPath"]} in fetch["env"]
    (verify,) = ray_pods(ray_service)["gpu"]["spec"]["initContainers"]
    assert verify["command"] == ["chattts-serve", "weights", "fetch", "--offline"]


def test_every_container_is_locked_down(documents):
    for name, pod in all_pods(documents).items():
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True, name
        assert isinstance(pod["spec"]["securityContext"]["runAsUser"], int), name
        for container in containers(pod):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["readOnlyRootFilesystem"] is True, name
            assert context["capabilities"]["drop"] == ["ALL"], name


def test_ray_can_write_to_tmp_and_its_autoscaler_to_the_log_of_the_head(ray_service):
    cluster = cluster_of(ray_service)
    autoscaler, (head,) = cluster["autoscalerOptions"], cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert autoscaler["securityContext"]["readOnlyRootFilesystem"] is True
    for container in [autoscaler, *(pod["spec"]["containers"][0] for pod in ray_pods(ray_service).values())]:
        places = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert {"/tmp", "/tmp/ray"} <= set(places)
    assert all(mount in head["volumeMounts"] for mount in autoscaler["volumeMounts"])


def test_every_pod_of_prod_outranks_other_work(rendered):
    (priority,) = of_kind(rendered["prod"], "PriorityClass")
    pods = {name: pod for name, pod in all_pods(rendered["prod"]).items() if name != "fetch-weights"}
    assert {pod["spec"].get("priorityClassName") for pod in pods.values()} == {priority["metadata"]["name"]}


def test_every_container_knows_its_limits(documents):
    for name, pod in all_pods(documents).items():
        for container in containers(pod):
            resources = container["resources"]
            assert resources["requests"]["memory"] == resources["limits"]["memory"], name
            assert "cpu" in resources["limits"], name


def test_every_image_has_a_version(documents):
    for name, pod in all_pods(documents).items():
        for container in containers(pod):
            _, _, tag = container["image"].rpartition(":")
            assert tag[0].isdigit(), f"{name}: {container['image']}"


def test_mounts_have_volumes(documents):
    for document in documents:
        claims = [claim["metadata"]["name"] for claim in document.get("spec", {}).get("volumeClaimTemplates", [])]
        for name, pod in all_pods([document]).items():
            volumes = {volume["name"] for volume in pod["spec"].get("volumes", [])} | set(claims)
            for container in containers(pod):
                assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes, name


def test_workers_are_ready_when_the_model_is(ray_service):
    for group, pod in ray_pods(ray_service).items():
        if group != "head":
            (worker,) = pod["spec"]["containers"]
            assert worker["readinessProbe"]["httpGet"]["path"] == "/ready", group
            assert worker["startupProbe"]["failureThreshold"] * worker["startupProbe"]["periodSeconds"] >= 300, group
            assert worker["livenessProbe"]["httpGet"]["port"] != 8000, "a model that loads must not be killed for it"


def test_all_of_ray_runs_in_one_environment(documents, ray_service):
    (environment,) = of_kind(documents, "ConfigMap")
    for pod in ray_pods(ray_service).values():
        for container in containers(pod):
            assert {"configMapRef": {"name": environment["metadata"]["name"]}} in container["envFrom"]
    assert environment["data"] == ray_environment.environment(Place.PODS)


def test_haproxy_starts_through_our_program(documents):
    (environment,) = of_kind(documents, "ConfigMap")
    named = Path(environment["data"]["RAY_SERVE_HAPROXY_BINARY_PATH"])
    (workdir,) = re.findall(r"^WORKDIR (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    program = ROOT / named.relative_to(workdir)
    assert os.access(program, os.X_OK)


def test_disruption_budgets_let_one_worker_go_where_there_are_two(documents, ray_service):
    """As whole numbers of pods that stay: a RayCluster has no scale, and without it any other budget refuses every eviction."""
    budgets = of_kind(documents, "PodDisruptionBudget")
    for group in cluster_of(ray_service)["workerGroupSpecs"]:
        labels = group["template"]["metadata"]["labels"] | {"ray.io/group": group["groupName"]}  # KubeRay's label
        matching = [budget["spec"]["minAvailable"] for budget in budgets if matches(budget["spec"]["selector"], labels)]
        assert matching == ([group["minReplicas"] - 1] if group["minReplicas"] > 1 else []), group["groupName"]


def test_every_pod_is_behind_a_network_policy(documents):
    policies = of_kind(documents, "NetworkPolicy")
    for name, pod in all_pods(documents).items():
        matching = [policy for policy in policies if matches(policy["spec"]["podSelector"], pod["metadata"]["labels"])]
        assert matching, name
        assert all(set(policy["spec"]["policyTypes"]) == {"Ingress", "Egress"} for policy in matching), name


def test_outsiders_reach_the_service_and_nothing_else(documents, ray_service):
    (policy,) = [document for document in of_kind(documents, "NetworkPolicy") if document["metadata"]["name"] == "chattts"]
    own = ray_pods(ray_service)["head"]["metadata"]["labels"]
    for rule in policy["spec"]["ingress"]:
        for source in rule["from"]:
            ports = {entry["port"] for entry in rule.get("ports", [])}
            inside = "namespaceSelector" not in source and matches(source["podSelector"], own)
            client = "chattts/client" in source.get("namespaceSelector", {}).get("matchLabels", {})
            assert inside or ports, "an outsider may reach every port"
            assert 8404 not in ports
            if client:
                assert ports == {8000}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_listeners_that_are_configured_are_open(overlay, rendered):
    """gRPC and Wyoming: on the service, on every worker, and to clients in the policy, each once."""
    documents = deepcopy(rendered[overlay])
    (ray_service,), policies = of_kind(documents, "RayService"), of_kind(documents, "NetworkPolicy")
    document = serve_config_of(ray_service)
    assert listeners_of(document) == {}, "the shipped ones open none"
    document["grpc_options"] = {"port": 9001, "grpc_servicer_functions": ["a:b"]}
    document["applications"][0]["args"]["wyoming"] = {"port": 10200}
    listeners = listeners_of(document)
    assert listeners == {"grpc": 9001, "wyoming": 10200}
    (policy,) = [document for document in policies if document["metadata"]["name"] == "chattts"]
    for target, patch in zip((ray_service, policy), listener_patches(listeners, WORKER_GROUPS[overlay]), strict=True):
        for operation in patch:
            change(target, **operation)
    assert {port["targetPort"] for port in ray_service["spec"]["serveService"]["spec"]["ports"]} == {8000, 9001, 10200}
    pods = ray_pods(ray_service)
    del pods["head"]
    assert len(pods) == WORKER_GROUPS[overlay]
    for pod in pods.values():
        assert {"grpc": 9001, "wyoming": 10200}.items() <= {
            port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]
        }.items()
    (clients,) = [rule for rule in policy["spec"]["ingress"] if "chattts/client" in str(rule["from"])]
    assert [port["port"] for port in clients["ports"]] == [8000, 9001, 10200]
    kubernetes_validate.validate(policy, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    ("args", "ports"),
    [
        ({"voices": {"store": "redis://chattts-store:6379/0"}, "cache": {"redis": None}}, []),
        ({"voices": {"store": "rediss://:secret@store.example.com:6380/0"}}, [6380]),
        (
            {"cache": {"redis": "redis://10.0.0.7/0"}, "tracing": {"endpoint": "http://otel.tools.svc:4318/v1/traces"}},
            [4318, 6379],
        ),
        ({"tracing": {"endpoint": "http://127.0.0.1:4318/v1/traces"}}, []),
    ],
)
def test_servers_outside_that_are_configured_can_be_reached(args, ports, rendered):
    (policy,) = [
        document for document in of_kind(rendered["prod"], "NetworkPolicy") if document["metadata"]["name"] == "chattts"
    ]
    policy = deepcopy(policy)
    for operation in egress_patch(outside_ports(args)):
        change(policy, **operation)
    kubernetes_validate.validate(policy, KUBERNETES, strict=True)
    added = policy["spec"]["egress"][3:]
    assert [port["port"] for rule in added for port in rule["ports"]] == ports


def test_prometheus_scrapes_ports_that_pods_have_and_the_policy_opens(documents, ray_service):
    (folder,) = {path.parent for path in (ROOT / "k8s").rglob("podmonitor.yaml")}
    monitor = yaml.safe_load((folder / "podmonitor.yaml").read_text())
    resources = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert sorted(resources) == ["podmonitor.yaml", "prometheusrule.yaml"]
    for group, pod in ray_pods(ray_service).items():
        assert matches(monitor["spec"]["selector"], pod["metadata"]["labels"]), group
        names = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= names, group


def test_the_cluster_may_talk_to_itself(documents, ray_service):
    (policy,) = [document for document in of_kind(documents, "NetworkPolicy") if document["metadata"]["name"] == "chattts"]
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for pod in ray_pods(ray_service).values():
            assert any(
                "ports" not in rule and matches(peer.get("podSelector", {"matchLabels": {"": ""}}), pod["metadata"]["labels"])
                for rule in policy["spec"][direction]
                for peer in rule.get(peers, [])
            )


EXAMPLES = sorted((ROOT / "k8s/examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_fit_kubernetes_schema(path):
    for document in yaml.safe_load_all(path.read_text()):
        if "gateway" not in document["apiVersion"]:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_the_backup_reaches_the_store_and_nothing_else(rendered):
    _, job, policy = yaml.safe_load_all((ROOT / "k8s/examples/backup.yaml").read_text())
    (store,) = [
        document for document in of_kind(rendered["prod"], "StatefulSet") if document["metadata"]["name"] == "chattts-store"
    ]
    assert matches(policy["spec"]["podSelector"], store["spec"]["template"]["metadata"]["labels"])
    (peer,) = policy["spec"]["ingress"][0]["from"]
    assert matches(peer["podSelector"], job["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"])


def test_a_model_of_gpu_is_chosen_for_the_gpu_workers_alone(ray_service_schema):
    documents = render(ROOT / "k8s/examples/gpu-model")
    (ray_service,) = of_kind(documents, "RayService")
    jsonschema.validate(ray_service, ray_service_schema)
    chosen = [group for group, pod in ray_pods(ray_service).items() if "affinity" in pod["spec"]]
    assert chosen == ["gpu"]


def test_every_redis_of_prod_has_the_password_that_the_pods_have(rendered):
    secret = {"secretKeyRef": {"name": "chattts-redis", "key": "password"}}
    for document in of_kind(rendered["prod"], "StatefulSet"):
        (container,) = document["spec"]["template"]["spec"]["containers"]
        assert "--requirepass" in container["args"]
        assert [entry["valueFrom"] for entry in container["env"]] == [secret]
    (ray_service,) = of_kind(rendered["prod"], "RayService")
    for pod in ray_pods(ray_service).values():
        assert {"name": PASSWORD_VARIABLE, "valueFrom": secret} in pod["spec"]["containers"][0]["env"]


def home_of(pod: Manifest) -> Manifest:
    (volume,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "home"]
    return volume


def mount_of(pod: Manifest) -> Manifest:
    (mount,) = [mount for mount in pod["spec"]["containers"][0]["volumeMounts"] if mount["name"] == "home"]
    return mount


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda pod: home_of(pod)["persistentVolumeClaim"].update(readOnly=True), "which cannot be written"),
        (lambda pod: mount_of(pod).update(readOnly=True), "which cannot be written"),
        (lambda pod: mount_of(pod).update(mountPath="/elsewhere"), "no volume is mounted there"),
        (lambda pod: home_of(pod).update(persistentVolumeClaim={"claimName": "chattts-alone"}), "is not shared by the pods"),
    ],
)
def test_a_folder_that_is_written_is_mounted_so_on_every_pod(spoil, words, rendered):
    args = yaml.safe_load((ROOT / OVERLAYS["prod"]).read_text())["applications"][0]["args"]
    assert list(mounts.mistakes()) == []
    for group in ("head", "cpu", "gpu"):
        documents = deepcopy(rendered["prod"])
        (ray_service,) = of_kind(documents, "RayService")
        spoil(ray_pods(ray_service)[group])
        mistakes = list(mounts.mistakes_of(documents, args))
        assert all(mistake.startswith(f"{group}: ") and words in mistake for mistake in mistakes)
        assert any("jobs.folder is /data/jobs" in mistake for mistake in mistakes)


@pytest.mark.parametrize(
    ("args", "key"),
    [
        ({"jobs": {"folder": "/srv/jobs"}}, "jobs.folder is /srv/jobs"),
        ({"tracing": {"exporter": "file", "folder": "/srv/traces"}}, "tracing.folder is /srv/traces"),
        ({"voices": {"store": "/srv/store.sqlite"}}, "voices.store is /srv"),
    ],
)
def test_every_key_that_names_a_folder_counts(args, key, rendered):
    assert any(key in mistake for mistake in mounts.mistakes_of(rendered["prod"], args))
