"""The dashboard for Grafana, as far as that can be told without one."""

from itertools import combinations

import yaml

from tests.deploy.support import DEPLOY, dashboard, known_metrics, metrics_in, panels


def test_every_panel_is_about_metrics_that_there_are() -> None:
    """A panel without data looks like a node without trouble."""
    asked = {
        panel["title"]: [metrics_in(target["expr"]) for target in panel["targets"]]
        for panel in panels()
    }
    named = set().union(*(found for queries in asked.values() for found in queries))

    assert sorted(named - known_metrics()) == []
    assert [title for title, queries in asked.items() if not all(queries)] == []


def test_every_query_is_about_the_coordinators_that_were_chosen() -> None:
    """Two coordinators in one graph without a word would be one that is nowhere."""
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]

    assert [
        expr
        for expr in expressions
        if expr.count("{") != expr.count('{job=~"$job", instance=~"$instance"')
    ] == []


def test_every_panel_says_what_it_shows_and_where_from() -> None:
    """Whoever looks at night has not read the documentation."""
    every = panels()

    assert [one["title"] for one in every if not one["description"].endswith(".")] == []
    assert len({one["title"] for one in every}) == len(every)
    sources = [target["datasource"]["uid"] for one in every for target in one["targets"]]
    assert set(sources) == {"${datasource}"}


def test_no_two_panels_lie_over_each_other() -> None:
    """Grafana would move one of them to where nobody looks for it."""
    every = [*dashboard()["panels"]]
    cells = {}
    for panel in every:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        cells[panel["id"]] = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }

    assert len(cells) == len(every)
    assert [pair for pair in combinations(cells, 2) if cells[pair[0]] & cells[pair[1]]] == []


def test_what_is_provisioned_finds_the_dashboard_and_its_metrics() -> None:
    """The folder of the provider is the one that the compose file mounts."""
    grafana = DEPLOY / "grafana/provisioning"
    (provider,) = yaml.safe_load(
        (grafana / "dashboards/group-coordinator.yaml").read_text(encoding="utf-8")
    )["providers"]
    (source,) = yaml.safe_load(
        (grafana / "datasources/prometheus.yaml").read_text(encoding="utf-8")
    )["datasources"]
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    folder = provider["options"]["path"]

    assert (
        f"./grafana/group-coordinator.json:{folder}/group-coordinator.json:ro"
        in (services["grafana"]["volumes"])
    )
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services
