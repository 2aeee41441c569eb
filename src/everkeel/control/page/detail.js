// One policy: its state and history, what can be done about it, its settings, its numbers.

import { call, get, of } from "./api.js";
import { announce, ask, figure, h, percent, say, words } from "./dom.js";
import { sparkline, timeline } from "./draw.js";
import { happening } from "./feeds.js";
import { events, history, key, listen, phases, policies, session, total } from "./live.js";
import { settings } from "./settings.js";
import { badge, dress, troubleShare, would } from "./states.js";

// path below control/{type}/{name}/, words on the button, what the question says (none: no question)
const ACTS = {
  circuit_breaker: [
    ["force_open", "Hold open", "Every call will be rejected until it is reset."],
    ["force_closed", "Hold closed", "Every call will pass, however many fail, until it is reset."],
    ["half_open", "Probe now", null],
    ["reset", "Reset", null],
  ],
  fail_fast: [
    ["force_open", "Hold open", "Every call will be rejected until it is reset."],
    ["reset", "Reset", null],
  ],
  feature_toggle: [
    ["turn_on", "Turn the feature on", null],
    ["turn_off", "Turn the feature off", "Nobody will have the feature any more."],
  ],
  rate_limit: [["drain", "Drain", "What is left of the limit is taken away: callers wait until it is filled again."]],
  cache: [["clear", "Clear", "Every answer is forgotten and must be fetched again."]],
  chaos: [["stop", "Stop", null], ["resume", "Resume", "Faults will be injected again."]],
};
const MODES = [
  ["enable", "enforce", "Enforce", null],
  ["shadow", "shadow", "Only watch", "It will count what it would have done, and touch no call."],
  ["disable", "off", "Switch off", "Calls will pass as if it were not there."],
];

export function show(main, type, name) {
  const id = `${type}/${name}`;
  const state = h("span");
  const spark = sparkline();
  const numbers = h("p", { class: "note" });
  const acts = h("div", { class: "actions" });
  const said = h("p", { class: "note", role: "status" });
  const band = h("div", { class: "stack" });
  const facts = h("table", { class: "facts" });
  const shadow = h("section", { class: "card", hidden: true });
  const list = h("ul", { class: "feed" });
  const part = settings(type, name);
  const keys = h("section", { class: "card", hidden: true });
  let mark = null;
  let drawnMode = null;
  let keyed = false;

  main.replaceChildren(
    h("p", { class: "crumbs" }, h("a", { href: "#/policies" }, "← All policies")),
    h("div", { class: "title" }, h("h1", {}, name), h("span", { class: "note" }, words(type)), state),
    h(
      "div",
      { class: "columns" },
      h(
        "div",
        { class: "stack" },
        h("section", { class: "card" }, h("h2", {}, "Now"), numbers, spark.picture, band, acts, said),
        shadow,
        keys,
        h("section", { class: "card" }, h("h2", {}, "What happened"), list),
        h("section", { class: "card" }, h("h2", {}, "Numbers"), facts),
      ),
      h("div", { class: "stack" }, part.element),
    ),
  );

  async function act(word, text, question) {
    if (question && !(await ask(`${text}: ${name}?`, question, text))) return;
    say(said, "…");
    try {
      const body = keyed && type !== "feature_toggle" ? keyOf() : {};
      if (body === null) return say(said, "");
      await call("POST", `control/${of(type, name)}/${word}`, body);
      say(said, `Done: ${text.toLowerCase()}.`);
      announce(`${text} done`);
      part.read();
      more();
    } catch (problem) {
      say(said, problem.message);
    }
  }

  function keyOf() {
    const chosen = keys.querySelector("input")?.value.trim();
    if (!chosen) {
      say(said, "It has a state for each key: say which one, below.");
      return null;
    }
    return { key: chosen };
  }

  function buttons(one) {
    if (drawnMode === one.mode + session.role) return;
    drawnMode = one.mode + session.role;
    if (session.role === "viewer") {
      acts.replaceChildren(h("p", { class: "note" }, "Acting needs the role operator; you are viewer."));
      return;
    }
    acts.replaceChildren(
      ...(ACTS[type] || []).map(([word, text, question]) => h("button", { class: question ? "danger" : null, onclick: () => act(word, text, question) }, text)),
      ...MODES.filter(([, mode]) => mode !== one.mode).map(([word, , text, question]) => h("button", { onclick: () => act(word, text, question) }, text)),
      h("button", { class: "quiet", onclick: resetNumbers }, "Reset numbers"),
    );
  }

  async function resetNumbers() {
    try {
      await call("DELETE", `metrics/${of(type, name)}`);
      say(said, "The numbers begin at zero.");
    } catch (problem) {
      say(said, problem.message);
    }
  }

  async function more() {
    try {
      const one = await get(`policies/${of(type, name)}`);
      keyed = one.keyed;
      keys.hidden = !keyed;
      if (keyed) {
        const before = keys.querySelector("input")?.value || "";
        const shut = Object.entries(one.shut_keys);
        keys.replaceChildren(
          h("h2", {}, "Keys"),
          h("p", { class: "note" }, shut.length ? "Not closed now:" : "It has a state for each key. None is in trouble."),
          shut.length ? h("table", { class: "facts" }, ...shut.map(([each, phase]) => h("tr", {}, h("th", {}, each), h("td", {}, words(phase))))) : null,
          h("label", {}, "Act on the key", h("input", { value: before, autocomplete: "off" })),
        );
      }
    } catch {
      // the list above says that it is gone
    }
  }

  function fill() {
    const one = policies.get(id);
    if (!one) {
      say(numbers, "This policy is not there, or no longer.");
      return;
    }
    if (!mark) state.replaceWith((mark = badge(one)));
    dress(mark, one);
    buttons(one);
    say(numbers, `${figure(total(one.rates))} calls a second, ${percent(troubleShare(one))} in trouble, ${figure(one.rates.rejected)} rejected a second`);
    const counts = would(one);
    shadow.hidden = one.mode !== "shadow" && counts.length === 0;
    if (!shadow.hidden) {
      const rows = counts.map(([what, count]) => h("tr", {}, h("th", {}, `would ${words(what.replace(/^would_/, ""))}`), h("td", {}, figure(count))));
      shadow.replaceChildren(
        h("h2", {}, "In shadow"),
        h("p", { class: "note" }, "What it would have done, had it been enforcing:"),
        rows.length ? h("table", { class: "facts" }, ...rows) : h("p", {}, "Nothing so far."),
      );
    }
    const flat = flatten(one.metrics);
    facts.replaceChildren(...flat.map(([what, value]) => h("tr", {}, h("th", {}, words(what)), h("td", {}, value))));
  }

  function pictures() {
    spark.draw(history.get(id) || []);
    const known = phases.get(id);
    if (!known) return;
    band.replaceChildren(
      h("h3", {}, "State, last 10 minutes"),
      ...timeline(known, Date.now()),
      h("p", { class: "legend" }, h("span", {}, "● closed"), h("span", {}, "▲ open (hatched)"), h("span", {}, "◐ half open")),
    );
  }

  function told() {
    const mine = events.filter((one) => key(one) === id).slice(0, 30);
    list.replaceChildren(...(mine.length ? mine.map((one) => happening(one, false)) : [h("li", {}, h("span"), h("span", { class: "note" }, "Nothing since this page is open."))]));
  }

  fill();
  pictures();
  told();
  more();
  return listen((what) => {
    if (what.kind === "tick") pictures();
    else if (what.kind === "all" || (what.kind === "changes" && (what.changed.includes(id) || what.gone.includes(id)))) fill();
    else if (what.kind === "event" && key(what.happening) === id) {
      told();
      if (keyed) more();
    }
  });
}

function flatten(metrics, before = "") {
  return Object.entries(metrics).flatMap(([name, value]) => {
    if (name === "would") return [];
    if (value && typeof value === "object" && !Array.isArray(value)) return flatten(value, `${before}${name} `);
    const text = typeof value === "number" ? figure(value) : Array.isArray(value) ? JSON.stringify(value) : String(value ?? "–");
    return [[before + name, text]];
  });
}
