"""The Grafana dashboards and the alert rules: every metric and label in them exists, every expression parses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from everkeel.telemetry.names import METRICS, POLICY_NAME, POLICY_TYPE, prometheus_label

FOLDER = Path(__file__).resolve().parents[2] / "dashboards"
DASHBOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}
GROUPS = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]

EXPRESSIONS = [(f"alert {rule['alert']}", rule["expr"]) for rule in RULES]
for file, dashboard in DASHBOARDS.items():
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    EXPRESSIONS += [
        (f"{file}: panel {panel['title']}", target["expr"]) for panel in panels for target in panel["targets"]
    ]
    EXPRESSIONS += [(f"{file}: annotation {one['name']}", one["expr"]) for one in dashboard["annotations"]["list"]]

EXPORTED = {}
for metric in METRICS.values():
    names = [metric.prometheus_name]
    if metric.kind == "histogram":
        names = [f"{metric.prometheus_name}{suffix}" for suffix in ("_bucket", "_sum", "_count")]
    for name in names:
        EXPORTED[name] = {prometheus_label(one) for one in (POLICY_NAME, POLICY_TYPE, *metric.attributes)}


# ------------------------------------------------------------------ a small part of PromQL


TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?(?![\w.]))|(?P<duration>\[(?:\d+[smhd]|\$__rate_interval)\])
    |(?P<word>[a-zA-Z_]\w*)|(?P<string>"[^"]*")|(?P<match>=~|!~|!=|==|>=|<=|=)|(?P<sign>[-+*/<>(){},]))""",
    re.VERBOSE,
)
FUNCTIONS = {"rate": True, "increase": True, "avg_over_time": True, "histogram_quantile": False}  # needs a range?
AGGREGATES = {"sum", "max", "min", "avg", "count"}
COMPARISONS = {">", "<", ">=", "<=", "==", "!="}


class Expression:
    """Reads an expression by recursive descent; `selectors` are the metrics in it with the labels asked of them."""

    def __init__(self, text: str) -> None:
        self.tokens = list(self._tokens(text))
        self.selectors: list[tuple[str, set[str]]] = []
        self.grouped: list[str] = []
        self._either()
        assert not self.tokens, f"unexpected {self.tokens[0]!r} in {text}"

    @staticmethod
    def _tokens(text: str) -> Iterator[str]:
        text, at = text.strip(), 0
        while at < len(text):
            found = TOKEN.match(text, at)
            assert found, f"cannot read {text[at:]!r}"
            yield found[0].strip()
            at = found.end()

    def _next(self, *wanted: str) -> str:
        assert self.tokens, f"ends where {wanted or 'more'} must come"
        token = self.tokens.pop(0)
        assert not wanted or token in wanted, f"{token!r} where {wanted} must come"
        return token

    def _ahead(self) -> str:
        return self.tokens[0] if self.tokens else ""

    def _either(self) -> None:
        self._comparison()
        while self._ahead() in ("and", "or", "unless"):
            self._next()
            self._comparison()

    def _comparison(self) -> None:
        self._arithmetic()
        if self._ahead() in COMPARISONS:
            self._next()
            self._arithmetic()

    def _arithmetic(self) -> None:
        self._operand()
        while self._ahead() in ("+", "-", "*", "/"):
            self._next()
            self._operand()

    def _operand(self) -> None:
        token = self._next()
        if token == "(":
            self._either()
            self._next(")")
        elif token in AGGREGATES:
            self._next("by")
            self.grouped += self._labels("(", ")")
            self._next("(")
            self._either()
            self._next(")")
        elif token in FUNCTIONS:
            self._next("(")
            if not FUNCTIONS[token]:
                self._operand()
                self._next(",")
                self._either()
            else:
                self._selector(self._next())
                assert self._next().startswith("["), f"{token} needs a range"
            self._next(")")
        elif not re.fullmatch(r"[\d.]+", token):
            self._selector(token)

    def _selector(self, name: str) -> None:
        assert re.fullmatch(r"[a-z_]\w*", name), f"{name!r} is no metric"
        asked: set[str] = set()
        if self._ahead() == "{":
            self._next()
            while True:
                asked.add(self._next())
                self._next("=", "!=", "=~", "!~")
                assert self._next().startswith('"')
                if self._next(",", "}") == "}":
                    break
        self.selectors.append((name, asked))

    def _labels(self, begin: str, end: str) -> list[str]:
        self._next(begin)
        found = [self._next()]
        while self._next(",", end) == ",":
            found.append(self._next())
        return found


IDS = [f"{where} {number}" for number, (where, _) in enumerate(EXPRESSIONS)]


@pytest.mark.parametrize(("where", "text"), EXPRESSIONS, ids=IDS)
def test_an_expression_parses_and_asks_for_what_is_exported(where, text):
    expression = Expression(text)
    assert expression.selectors, f"{where} asks for no metric"
    for name, asked in expression.selectors:
        assert name in EXPORTED, f"{where}: there is no metric {name}"
        assert asked <= EXPORTED[name], f"{where}: {name} has no label {asked - EXPORTED[name]}"
    known = {"job", "le"}.union(*(EXPORTED[name] for name, _ in expression.selectors))
    assert set(expression.grouped) <= known


@pytest.mark.parametrize(
    "broken",
    [
        "sum by (job) (rate(everkeel_calls_total[5m])",
        "rate(everkeel_calls_total)",
        'everkeel_calls_total{outcome="rejected"',
        "everkeel_calls_total > > 1",
        "sum by () (everkeel_calls_total)",
        "everkeel_calls_total{outcome}",
        "everkeel_calls_total 5",
    ],
)
def test_a_broken_expression_would_be_found(broken):
    with pytest.raises(AssertionError):
        Expression(broken)


def test_every_metric_is_on_the_dashboard():
    shown = {name for _, text in EXPRESSIONS for name, _ in Expression(text).selectors}
    hidden = [
        metric.name
        for metric in METRICS.values()
        if not shown & {metric.prometheus_name, f"{metric.prometheus_name}_bucket"}
    ]
    assert hidden == []


def test_what_is_read_from_stores_is_never_added_up_over_processes():
    gauges = {
        metric.prometheus_name for metric in METRICS.values() if (metric.kind, metric.source) == ("gauge", "store")
    }
    shown = [text for _, text in EXPRESSIONS if any(name in text for name in gauges)]
    assert len(shown) >= len(gauges)
    assert [text for text in shown if not re.match(r"(max|min) by ", text)] == []


def test_there_is_a_dashboard_for_policies_events_and_sagas_each_with_an_id_of_its_own():
    assert list(DASHBOARDS) == ["events", "policies", "sagas"]
    assert len({dashboard["uid"] for dashboard in DASHBOARDS.values()}) == 3


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
def test_panels_do_not_overlap_and_have_ids_of_their_own(dashboard):
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_says_how_bad_it_is_and_what_it_means(rule):
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert "{{ $labels.everkeel_policy_name }}" in rule["annotations"]["summary"]
    assert re.fullmatch(r"\d+m", rule.get("for", "0m"))


def test_alerts_have_names_of_their_own():
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
def test_variables_of_a_dashboard_ask_for_what_is_exported_and_are_used(dashboard):
    (variable,) = [one for one in dashboard["templating"]["list"] if one["name"] != "datasource"]
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()
    assert label in EXPORTED[metric]
    assert f'{label}=~"${variable["name"]}"' in json.dumps(dashboard).replace('\\"', '"')
