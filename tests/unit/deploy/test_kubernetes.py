"""The manifests for Kubernetes: valid, complete, and as confined as the compose file's services."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import yaml

from app.api import operations
from app.runtime.processes import health
from app.runtime.settings import Settings
from tests.support.compose import ROOT, compose

VERSIONS = ("1.33", "1.37")
"""The oldest that is supported, and the newest, whose schemas are installed."""
FOLDER = ROOT / "deploy/kubernetes"
OVERLAYS = ("base", "gpu", "autoscaling")
PARTS = ("init", "api", "dispatcher", "cpu-worker", "gpu-worker")


def kustomization(overlay: str) -> dict[str, Any]:
    return dict(yaml.safe_load((FOLDER / overlay / "kustomization.yaml").read_text()))


def files(overlay: str) -> list[Path]:
    named = [FOLDER / overlay / each for each in kustomization(overlay)["resources"]]
    return [path for path in named if path.is_file()]


RESOURCES: list[dict[str, Any]] = [
    resource
    for overlay in OVERLAYS
    for path in files(overlay)
    for resource in yaml.safe_load_all(path.read_text())
]


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in RESOURCES if each["kind"] == kind}


PODS = {
    name.removeprefix("expunge-"): each["spec"]["template"]
    for name, each in (of_kind("Deployment") | of_kind("Job")).items()
}


def container(part: str) -> dict[str, Any]:
    (only,) = PODS[part]["spec"]["containers"]
    return dict(only)


def test_every_manifest_satisfies_the_official_schema() -> None:
    for resource in RESOURCES:
        for version in VERSIONS:
            kubernetes_validate.validate(resource, version, strict=True)


def test_the_ingresses_lead_to_the_api_and_say_what_the_composed_proxy_says() -> None:
    ingresses = (ROOT / "deploy/kubernetes/ingress.yaml").read_text()
    proxy = (ROOT / "deploy/nginx.conf").read_text()
    (port,) = of_kind("Service")["expunge-api"]["spec"]["ports"]
    for ingress in yaml.safe_load_all(ingresses):
        for version in VERSIONS:
            kubernetes_validate.validate(ingress, version, strict=True)
        for name, value in ingress["metadata"]["annotations"].items():
            directives = value.splitlines()
            if not name.endswith(("-type", "-snippets")):
                directives = [f"{name.removeprefix('nginx.org/').replace('-', '_')} {value};"]
            for line in directives:
                if "-type" not in name and not line.startswith(("location", "limit_conn expunge")):
                    assert f" {line}\n" in proxy
        for rule in ingress["spec"]["rules"]:
            for path in rule.get("http", {"paths": []})["paths"]:
                target = {"name": "expunge-api", "port": {"number": port["port"]}}
                assert path["backend"] == {"service": target}


def test_a_wrong_manifest_does_not_satisfy_it() -> None:
    wrong = of_kind("Deployment")["expunge-api"] | {"spec": {"replica": 2}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_a_kustomization_names_every_manifest_beside_it() -> None:
    base = (FOLDER / "base").resolve()
    for overlay in OVERLAYS:
        folder = FOLDER / overlay
        there = {path for path in folder.glob("*.yaml") if "apiVersion:" in path.read_text()}
        named = {(folder / each).resolve() for each in kustomization(overlay)["resources"]}
        assert there - {folder / "kustomization.yaml"} == named - {base}
        assert overlay == "base" or base in named


def test_parts_are_those_of_the_compose_file_with_their_commands() -> None:
    assert sorted(PODS) == sorted(PARTS)
    for part in PARTS:
        assert container(part)["args"] == compose()["services"][part]["command"]


def test_images_are_those_that_the_kustomizations_name() -> None:
    named = {
        image["name"]: f"{image['newName']}:{image['newTag']}"
        for overlay in OVERLAYS
        for image in kustomization(overlay).get("images", [])
    }
    for part in PARTS:
        assert named[container(part)["image"]] == compose()["services"][part]["image"]


@pytest.mark.parametrize("part", PARTS)
def test_every_pod_is_confined(part: str) -> None:
    spec, confined = PODS[part]["spec"], container(part)["securityContext"]
    assert not spec["automountServiceAccountToken"]
    assert not spec["enableServiceLinks"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert confined == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    limits, requests = (container(part)["resources"][each] for each in ("limits", "requests"))
    assert limits.keys() >= {"cpu", "memory"} == requests.keys()
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    for volume in spec["volumes"]:
        assert volume.keys() & {"persistentVolumeClaim", "projected", "emptyDir"}
        assert volume.get("emptyDir", {"medium": "Memory"})["medium"] == "Memory"


@pytest.mark.parametrize("part", PARTS)
def test_a_pod_has_the_volumes_and_secrets_that_it_needs_and_no_others(part: str) -> None:
    volumes = {each["name"]: each for each in PODS[part]["spec"]["volumes"]}
    mounts = {each["name"]: each for each in container(part)["volumeMounts"]}
    assert volumes.keys() == mounts.keys()
    claims = {
        each["persistentVolumeClaim"]["claimName"]
        for each in volumes.values()
        if "persistentVolumeClaim" in each
    }
    assert claims <= of_kind("PersistentVolumeClaim").keys()
    secrets = [each["secret"]["name"] for each in volumes["secrets"]["projected"]["sources"]]
    assert ("expunge-owner" in secrets) == (part == "init")
    assert mounts["service-keys"].get("readOnly", False) == (part != "init")
    settings = of_kind("ConfigMap")["expunge-settings"]["data"]
    assert mounts["service-keys"]["mountPath"] == settings["EXPUNGE_DATA_DIR"]
    assert mounts["object-keys"]["mountPath"] == settings["EXPUNGE_KEY_STORE_DIR"]
    assert mounts["secrets"]["mountPath"] == settings["EXPUNGE_SECRETS_DIR"]


def test_settings_are_the_programs_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = dict(of_kind("ConfigMap")["expunge-settings"]["data"])
    for part in PARTS:
        for variable in container(part).get("env", []):
            if variable["name"].startswith("EXPUNGE_"):
                given[variable["name"]] = variable["value"]
    for name, value in (given | {"EXPUNGE_SECRETS_DIR": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    assert Settings().environment == "production"  # which refuses what it does not know
    assert "EXPUNGE_WORKER_MEMORY" in given


@pytest.mark.parametrize("part", ["cpu-worker", "gpu-worker"])
def test_a_worker_uses_less_than_it_is_killed_for_and_its_own_processors(part: str) -> None:
    environment = {each["name"]: each["value"] for each in container(part)["env"]}
    limits = container(part)["resources"]["limits"]
    use, limit = (
        int(size.removesuffix("B").removesuffix("Gi"))
        for size in (environment["EXPUNGE_WORKER_MEMORY"], limits["memory"])
    )
    assert use <= 0.75 * limit
    assert environment["OMP_NUM_THREADS"] == limits["cpu"]
    assert container(part)["resources"]["requests"]["memory"] == limits["memory"]


def test_probes_ask_what_the_programs_answer() -> None:
    paths = {getattr(route, "path", None) for route in operations.router.routes}
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container("api")[name]["httpGet"]["path"] in paths
    (port,) = container("api")["ports"]
    assert port["containerPort"] == 8100
    for part in ("dispatcher", "cpu-worker", "gpu-worker"):
        command = container(part)["livenessProbe"]["exec"]["command"]
        assert command[:3] == ["python", "-m", health.__name__]
        assert command[3] == part.rpartition("-")[2]
        assert command[3] in health.PARTS


def test_only_the_dispatcher_reaches_the_world() -> None:
    policies = of_kind("NetworkPolicy")
    assert policies["expunge-default"]["spec"] == {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
    }
    for name, policy in policies.items():
        for rule in policy["spec"].get("egress", []):
            for target in rule["to"]:
                if target.get("ipBlock", {}).get("cidr") == "0.0.0.0/0":
                    selected = policy["spec"]["podSelector"]["matchLabels"]
                    assert selected == {"app.kubernetes.io/name": "expunge-dispatcher"}, name


def test_selectors_find_their_pods() -> None:
    labels = [pod["metadata"]["labels"] for pod in PODS.values()]
    selectors = [each["spec"]["selector"] for each in of_kind("Service").values()]
    for kind in ("PodDisruptionBudget", "Deployment"):
        selectors += [each["spec"]["selector"]["matchLabels"] for each in of_kind(kind).values()]
    for policy in of_kind("NetworkPolicy").values():
        selectors.append(policy["spec"]["podSelector"].get("matchLabels", {}))
    for selector in selectors:
        assert any(selector.items() <= each.items() for each in labels), selector
    assert of_kind("PodDisruptionBudget").keys() == of_kind("Deployment").keys()


def test_workers_scale_by_a_figure_that_the_service_measures() -> None:
    (scaler,) = of_kind("HorizontalPodAutoscaler").values()
    assert scaler["spec"]["scaleTargetRef"]["name"] in of_kind("Deployment")
    (metric,) = scaler["spec"]["metrics"]
    text = (FOLDER / "autoscaling/prometheus-adapter.yaml").read_text()
    (rule,) = yaml.safe_load(text)["rules"]["external"]
    assert metric["external"]["metric"]["name"] == rule["name"]["as"]
    query = re.sub(r",?<<\.LabelMatchers>>", "", rule["metricsQuery"])
    promql_parser.parse(query)
    measured = (ROOT / "app/operations/monitoring/collector.py").read_text()
    for name in re.findall(r"expunge_\w+", query):
        assert f'"{name}"' in measured
