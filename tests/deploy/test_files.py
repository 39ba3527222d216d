"""The unit, the compose file and the manifests: as far as their own checkers know."""

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from bench.ensemble import SETTINGS as ZOOKEEPER
from coordinator.config import load_settings
from tests.deploy.support import DEPLOY, needs, run
from tests.integration.daemon import until

UNIT: Final = DEPLOY / "systemd/group-coordinator.service"
SETTINGS: Final = DEPLOY / "systemd/group-coordinator.toml"
COMPOSE: Final = DEPLOY / "compose.yaml"
CLUSTER: Final = DEPLOY / "compose-cluster.yaml"
MANIFESTS: Final = DEPLOY / "kubernetes/group-coordinator.yaml"
# What `systemd-analyze security` calls "OK" begins at 4; an unprotected unit has 9.6.
EXPOSURE_MAX: Final = 20


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """A misspelt line is only a warning, and then not in force."""
    unit = tmp_path / UNIT.name
    text = UNIT.read_text(encoding="utf-8")
    program = re.search(r"^ExecStart=(\S+)", text, flags=re.MULTILINE)
    assert program is not None
    # Verified is also that the program is there.
    text = text.replace(program[1], "/bin/true").replace("#LoadCredential=", "LoadCredential=")
    unit.write_text(text, encoding="utf-8")
    done = run(needs("systemd-analyze"), "verify", str(unit))

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_settings_beside_the_unit_are_some_and_so_are_those_it_proposes(
    tmp_path: Path,
) -> None:
    """They are copied, and the lines that begin with a mark are taken up one by one."""
    text = SETTINGS.read_text(encoding="utf-8")
    proposed = tmp_path / "proposed.toml"
    proposed.write_text(re.sub(r'^#(?=")', "", text, flags=re.MULTILINE), encoding="utf-8")

    assert load_settings(toml_path=SETTINGS).http_listeners == "127.0.0.1:9311"
    settings = load_settings(toml_path=proposed)
    assert settings.cluster_zookeeper.startswith("zk1:2181")
    assert settings.ssl_keystore_location.endswith("group-coordinator.service/server.pem")


def test_the_unit_sets_nothing_that_the_file_of_settings_could_not() -> None:
    """The command line would overrule the file, and a node of a cluster has no folder."""
    text = UNIT.read_text(encoding="utf-8")
    command = re.search(r"^ExecStart=(.*)$", text, flags=re.MULTILINE)

    assert command is not None
    assert command[1].split()[1:] == ["serve", "--config", "/etc/group-coordinator.toml"]


def test_the_unit_leaves_the_daemon_little_to_do_harm_with() -> None:
    """It takes bytes from anybody who can reach it."""
    done = run(
        *(needs("systemd-analyze"), "security", "--offline=true", "--no-pager"),
        *(f"--threshold={EXPOSURE_MAX}", str(UNIT)),
    )

    assert done.returncode == 0, done.stdout


def test_the_unit_does_not_start_again_what_was_refused() -> None:
    """The exit statuses of the documentation that another try would not change."""
    text = UNIT.read_text(encoding="utf-8")

    assert "Type=notify\n" in text
    assert "RestartPreventExitStatus=2 65 78\n" in text


def test_the_compose_files_are_some() -> None:
    """An engine would say so only on the machine where it is wanted."""
    schema = ("--builtin-schema", "vendor.compose-spec")
    done = run(installed("check-jsonschema"), *schema, str(COMPOSE), str(CLUSTER))

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_coordinator_of_the_compose_file_starts_and_is_scraped() -> None:
    """Its variables are settings, and Prometheus asks by a name that it answers to."""
    service = services()["coordinator"]
    environ = {
        name: re.sub(r"\$\{\w+:-(.*?)\}", r"\1", text)
        for name, text in service["environment"].items()
    }
    settings = load_settings(environ=environ, listen=["0.0.0.0:9310"])
    watcher = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text(encoding="utf-8"))
    ((target,),) = [
        config["targets"] for job in watcher["scrape_configs"] for config in job["static_configs"]
    ]
    host, _, port = target.partition(":")

    assert host in services()
    assert settings.http_allowed_hosts == host
    assert {str(address.port) for address in settings.http_addresses()} == {port}
    # Nothing is encrypted: not beyond this machine unasked.
    ports = [port for one in services().values() for port in one["ports"]]
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_the_files_that_the_compose_file_mounts_are_there() -> None:
    """An engine makes an empty folder of one that isn't."""
    volumes = [volume for one in services().values() for volume in one.get("volumes", ())]
    files = [volume.partition(":")[0] for volume in volumes if volume.startswith(".")]

    assert len(files) == 4
    assert [name for name in files if not (DEPLOY / name).exists()] == []


def test_the_nodes_of_the_cluster_that_is_composed_fit_together() -> None:
    """Each has its number and its address, and finds the ensemble, which is set as it has to be."""
    parts = services(CLUSTER)
    nodes = {name: one for name, one in parts.items() if name.startswith("coordinator")}
    found = [load_settings(environ=one["environment"]) for one in nodes.values()]
    told = [settings.addresses_told()[0] for settings in found]
    servers = sorted(parts.keys() - nodes.keys() - {"init"})
    places = [settings.zookeeper() for settings in found]
    ensemble = {str(server) for place in places if place is not None for server in place.servers}
    asked = {
        name.replace("_", "").lower(): str(value)
        for name, value in parts[servers[0]]["environment"].items()
    }

    assert [1, 2, 3] == [settings.node_id for settings in found]
    assert [f"127.0.0.1:{one.port}:9310" for one in told] == [
        one["ports"][0] for one in nodes.values()
    ]
    assert ensemble == {f"{server}:2181" for server in servers}
    assert [1, 2, 3] == [parts[name]["environment"]["ZOO_MY_ID"] for name in servers]
    for name in ("tickTime", "initLimit", "syncLimit"):
        assert asked[f"zoo{name.lower()}"] == ZOOKEEPER[name]
    assert asked["zoocfgextra"] == f"snapSizeLimitInKb={ZOOKEEPER['snapSizeLimitInKb']}"
    ports = [port for one in nodes.values() for port in one["ports"]]
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


@pytest.mark.parametrize(
    ("status", "told"), [(0, 0), (1, 1), (2, 0), (65, 0), (69, 69), (70, 70), (74, 74), (78, 0)]
)
def test_a_composed_node_is_not_started_again_after_a_final_status(
    tmp_path: Path, status: int, told: int
) -> None:
    """A node that starts again on an ensemble that was set back serves what it was set back to."""
    assert composed_node(tmp_path, f"exit {status}").wait(60) == told
    assert services(CLUSTER)["coordinator1"]["restart"] == "on-failure"


def test_a_composed_node_is_drained_when_its_container_is_stopped(tmp_path: Path) -> None:
    """The engine signals the shell, which has to pass it on and wait."""
    node = composed_node(
        tmp_path, "trap 'exit 7' TERM; touch running; while :; do sleep 0.01; done"
    )
    until((tmp_path / "running").exists, "a node that runs")
    node.send_signal(signal.SIGTERM)

    assert node.wait(60) == 7


def composed_node(folder: Path, program: str) -> "subprocess.Popen[bytes]":
    """Start a node as its container does, with a *program* in place of the daemon."""
    service = services(CLUSTER)["coordinator1"]
    daemon = folder / "daemon"
    daemon.write_text(f"#!/bin/bash\n{program}\n", encoding="ascii")
    daemon.chmod(0o755)
    (script,) = service["command"]
    script = script.replace("$$", "$").replace(
        "/opt/group-coordinator/bin/group-coordinator", str(daemon)
    )
    return subprocess.Popen([*service["entrypoint"], script], cwd=folder)


def test_the_cluster_that_is_composed_is_made_once_and_by_no_node() -> None:
    """A node that the engine starts again must not replace lost data by an empty cluster."""
    parts = services(CLUSTER)
    nodes = [one for name, one in parts.items() if name.startswith("coordinator")]
    made = load_settings(environ=parts["init"]["environment"])

    assert (parts["init"]["command"], parts["init"]["restart"]) == (["cluster", "init"], "no")
    for node in nodes:
        settings = load_settings(environ=node["environment"])
        assert node["depends_on"] == {"init": {"condition": "service_completed_successfully"}}
        assert (settings.cluster_create, settings.zookeeper()) == (False, made.zookeeper())


def test_kubernetes_takes_the_manifests() -> None:
    """A field at the wrong place is left out without a word."""
    done = run(installed("kubernetes-validate"), "--strict", str(MANIFESTS))

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_coordinator_of_the_manifests_starts_and_can_be_reached(tmp_path: Path) -> None:
    """Settings, command line, ports, probes and selectors fit together."""
    parts = {one["kind"]: one for one in yaml.safe_load_all(MANIFESTS.read_text(encoding="utf-8"))}
    pod = parts["StatefulSet"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    config = tmp_path / "coordinator.toml"
    config.write_text(parts["ConfigMap"]["data"][config.name], encoding="utf-8")
    environ = {one["name"]: one["value"] for one in container["env"]}
    options = dict(word.removeprefix("--").split("=") for word in container["args"][1:])
    settings = load_settings(toml_path=config, environ=environ, listen=[options["listen"]])
    mounts = {one["mountPath"] for one in container["volumeMounts"]}

    assert {one["name"]: one["containerPort"] for one in container["ports"]} == {
        "groups": settings.listener_addresses()[0].port,
        "http": settings.http_addresses()[0].port,
    }
    assert {str(Path(options[name]).parent) for name in ("config", "data-dir")} == mounts
    assert settings.advertised_listeners == f"{parts['Service']['metadata']['name']}:9310"
    labels = pod["metadata"]["labels"]
    assert parts["Service"]["spec"]["selector"] == labels
    assert parts["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert parts["StatefulSet"]["spec"]["replicas"] == 1
    paths = {
        kind: container[f"{kind}Probe"]["httpGet"]["path"].partition("?")[0]
        for kind in ("startup", "liveness", "readiness")
    }
    assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}


def installed(name: str) -> str:
    """Return the path of a program that a package of this environment brings."""
    return str(Path(sys.executable).parent / name)


def services(path: Path = COMPOSE) -> dict[str, dict[str, Any]]:
    """Return what a compose file starts."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))["services"]
    return found
