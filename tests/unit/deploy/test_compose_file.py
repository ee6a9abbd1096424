"""The compose file: valid, complete, and as hardened as it says."""

import re
import subprocess
import sys
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from tests.support.compose import APP_SERVICES, IMAGE, ROOT, compose, last

SERVICES = compose()["services"]
STORES = ("postgres", "redis", "objects")
OTHERS = (*STORES, "proxy")


def test_it_satisfies_the_official_schema() -> None:
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "check_jsonschema"),
            *("--builtin-schema", "vendor.compose-spec", ROOT / "docker-compose.yml"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def test_what_services_use_is_defined_and_what_is_defined_is_used() -> None:
    for part in ("secrets", "networks", "volumes"):
        used = {name for service in SERVICES.values() for name in _used(service, part)}
        assert used == set(compose()[part])


def test_services_wait_for_services_that_are_there_and_say_when_they_are_ready() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in SERVICES, name
            if how["condition"] == "service_healthy":
                assert SERVICES[other]["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
            else:
                assert (other, SERVICES[other]["restart"]) == ("init", "no")


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["init"]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["cpus"]
    assert service["memswap_limit"] == service["mem_limit"]
    assert service["ulimits"]["core"] == 0
    assert service["pids_limit"]
    assert "cap_add" not in service
    user, _, group = str(service.get("user", last("cpu", "USER"))).partition(":")
    assert int(user) > 0 < int(group)
    assert service["restart"] == ("no" if name == "init" else "unless-stopped")
    assert "privileged" not in service
    assert service.get("network_mode") is None


def test_our_own_services_may_lock_their_memory() -> None:
    for service in (SERVICES[name] for name in APP_SERVICES):
        assert service["ulimits"]["memlock"] == {"soft": -1, "hard": -1}
        assert [mount.partition(":")[0] for mount in service["tmpfs"]] == ["/tmp"]


def test_a_worker_has_as_many_threads_as_processors() -> None:
    for name in ("cpu-worker", "gpu-worker"):
        assert int(SERVICES[name]["environment"]["OMP_NUM_THREADS"]) == SERVICES[name]["cpus"]


def test_stores_are_on_the_internal_network_alone() -> None:
    assert compose()["networks"]["data"] == {"internal": True}
    for name in STORES:
        assert SERVICES[name]["networks"] == ["data"]


def test_the_proxy_alone_is_published_and_to_this_machine_alone() -> None:
    assert {name for name, service in SERVICES.items() if "ports" in service} == {"proxy"}
    assert SERVICES["proxy"]["ports"] == ["127.0.0.1:8100:8100"]


def test_the_api_is_behind_the_proxy_and_believes_nobody_else_about_addresses() -> None:
    proxy, api = SERVICES["proxy"], SERVICES["api"]
    assert list(proxy["networks"]) == ["front"]
    trusted = api["environment"]["EXPUNGE_TRUSTED_PROXIES"]
    assert trusted == proxy["networks"]["front"]["ipv4_address"]
    subnets = [each["subnet"] for each in compose()["networks"]["front"]["ipam"]["config"]]
    addresses = [service["networks"]["front"]["ipv4_address"] for service in (proxy, api)]
    for address in addresses:
        assert any(ip_address(address) in ip_network(subnet) for subnet in subnets)
    (mounted,) = proxy["volumes"]
    source, target, mode = mounted.split(":")
    assert (ROOT / source).is_file()
    assert (proxy["command"][-1], mode) == (target, "ro")
    listened = (ROOT / source).read_text()
    assert "server api:8100;" in listened
    assert f"listen {proxy['ports'][0].rpartition(':')[2]};" in listened


def test_what_touches_weights_cannot_reach_the_world() -> None:
    for name in ("cpu-worker", "gpu-worker", "init"):
        assert SERVICES[name]["networks"] == ["data"]


def test_only_init_may_change_tables_and_keys() -> None:
    for name in APP_SERVICES:
        may = name == "init"
        assert ("migration_url" in _used(SERVICES[name], "secrets")) == may
        assert ("keys:/var/lib/expunge" in SERVICES[name]["volumes"]) == may
        assert ("keys:/var/lib/expunge:ro" in SERVICES[name]["volumes"]) != may


def test_no_secret_is_in_a_variable_or_a_command() -> None:
    for service in SERVICES.values():
        for variable, value in service.get("environment", {}).items():
            secret = ("PASSWORD", "SECRET_KEY", "ACCESS_KEY", "_URL")
            if any(word in variable for word in secret):
                assert str(value).startswith("/run/secrets/"), variable
        assert "PASSWORD" not in str(service["command"])
    assert all(set(s) == {"file"} for s in compose()["secrets"].values())


def test_a_gpu_is_asked_for_by_its_profile_alone() -> None:
    assert {name for name, service in SERVICES.items() if "profiles" in service} == {"gpu-worker"}
    assert SERVICES["gpu-worker"]["profiles"] == ["gpu"]
    (device,) = SERVICES["gpu-worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    assert SERVICES["gpu-worker"]["command"] == SERVICES["cpu-worker"]["command"]


def test_images_are_named_with_a_version_and_a_digest() -> None:
    for name in OTHERS:
        assert re.fullmatch(IMAGE, SERVICES[name]["image"])


def test_our_services_images_are_built_here_from_targets_that_exist() -> None:
    for name in APP_SERVICES:
        target = SERVICES[name]["build"]["target"]
        assert SERVICES[name]["image"] == f"expunge:{target}"
        assert last(target, "ENTRYPOINT") == ["expunge"]


def test_volumes_are_mounted_where_the_image_has_them() -> None:
    mounted = {volume.split(":")[1] for volume in SERVICES["api"]["volumes"]}
    assert mounted == set(last("cpu", "VOLUME"))
    environment = SERVICES["api"]["environment"]
    assert mounted == {environment["EXPUNGE_DATA_DIR"], environment["EXPUNGE_KEY_STORE_DIR"]}


def _used(service: dict[str, Any], part: str) -> list[str]:
    uses = service.get(part, [])
    if part == "volumes":
        return [use.split(":")[0] for use in uses if not use.startswith((".", "/"))]
    return [use if isinstance(use, str) else use["source"] for use in uses]
