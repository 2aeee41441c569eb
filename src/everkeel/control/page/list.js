// All policies: what needs attention first, live, to be filtered and searched.

import { figure, h, percent, say, words } from "./dom.js";
import { sparkline } from "./draw.js";
import { history, key, listen, policies, total } from "./live.js";
import { badge, dress, troubleShare, urgency, would } from "./states.js";
import { of } from "./api.js";

const kept = { text: "", type: "", show: "" }; // what was chosen stays chosen when one comes back

export const title = "Policies";

export function show(main) {
  const rows = new Map();
  const visible = new Set();
  const tiles = Object.fromEntries(["policies", "calls", "trouble", "rejected", "open"].map((name) => [name, tile()]));
  const search = h("input", { type: "search", id: "search", placeholder: "name or type", value: kept.text, oninput: () => choose("text", search.value) });
  const types = h("select", { onchange: () => choose("type", types.value) });
  const shows = h(
    "select",
    { onchange: () => choose("show", shows.value) },
    ...[["", "all"], ["attention", "needs attention"], ["shadow", "in shadow mode"], ["off", "switched off"]].map(([value, text]) => h("option", { value }, text)),
  );
  shows.value = kept.show;
  const list = h("ul", { class: "rows" });
  const empty = h("div", { class: "card empty", hidden: true });
  const count = h("p", { class: "note", role: "status" });
  const heads = h(
    "div",
    { class: "heads", "aria-hidden": "true" },
    h("span", {}, "state"), h("span", {}, "policy"), h("span", { class: "figure" }, "calls / s"),
    h("span", { class: "figure" }, "in trouble"), h("span", { class: "figure" }, "rejected / s"), h("span", {}, "last 90 s"),
  );
  main.replaceChildren(
    h("h1", { class: "visually-hidden" }, "Policies"),
    h("div", { class: "tiles" }, ...Object.values(tiles).map((one) => one.element)),
    h(
      "div",
      { class: "tools" },
      h("label", { class: "search", for: "search" }, "Search (press /)", search),
      h("label", {}, "Type", types),
      h("label", {}, "Show", shows),
    ),
    count, heads, list, empty,
  );

  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const id = entry.target.dataset.id;
      if (entry.isIntersecting) {
        visible.add(id);
        picture(id);
      } else visible.delete(id);
    }
  }, { rootMargin: "200px" });

  function choose(what, value) {
    kept[what] = value;
    arrange();
  }

  function fits(one) {
    const text = kept.text.trim().toLowerCase();
    if (text && !`${one.name} ${one.type} ${words(one.type)}`.toLowerCase().includes(text)) return false;
    if (kept.type && one.type !== kept.type) return false;
    if (kept.show === "attention") return urgency(one) < 2;
    if (kept.show === "shadow") return one.mode === "shadow";
    if (kept.show === "off") return one.mode === "off";
    return true;
  }

  function make(one) {
    const spark = sparkline();
    const parts = {
      badge: badge(one),
      calls: h("span", { class: "figure" }),
      trouble: h("span", { class: "figure" }),
      rejected: h("span", { class: "figure" }),
      shadow: h("span", { class: "type" }),
      spark,
    };
    const element = h(
      "li",
      { class: "row", dataset: { id: key(one) } },
      h(
        "a",
        { href: `#/policies/${of(one.type, one.name)}` },
        h("span", { class: "status" }, parts.badge),
        h("span", { class: "identity" }, h("span", { class: "name" }, one.name), h("br"), h("span", { class: "type" }, words(one.type)), parts.shadow),
        parts.calls, parts.trouble, parts.rejected,
        h("span", { class: "picture" }, spark.picture),
      ),
    );
    watcher.observe(element);
    const row = { element, parts, rank: -1 };
    rows.set(key(one), row);
    fill(one, row);
    return row;
  }

  function cell(element, value, unit) {
    if (!element.firstChild) element.append("", h("small", {}, unit));
    if (element.firstChild.data !== value) element.firstChild.data = value;
  }

  function fill(one, row) {
    dress(row.parts.badge, one);
    cell(row.parts.calls, figure(total(one.rates)), "calls / s");
    cell(row.parts.trouble, percent(troubleShare(one)), "in trouble");
    cell(row.parts.rejected, figure(one.rates.rejected), "rejected / s");
    const shadows = would(one).map(([what, number]) => `would ${words(what.replace(/^would_/, ""))} ${figure(number)}`);
    say(row.parts.shadow, one.mode === "shadow" && shadows.length ? ` · ${shadows.join(", ")}` : "");
  }

  function picture(id) {
    const row = rows.get(id);
    if (row) row.parts.spark.draw(history.get(id) || []);
  }

  function arrange() {
    const shown = [...policies.values()].filter(fits);
    shown.sort((a, b) => urgency(a) - urgency(b) || a.name.localeCompare(b.name) || a.type.localeCompare(b.type));
    const wanted = shown.map((one) => (rows.get(key(one)) || make(one)).element);
    const focused = document.activeElement?.closest?.(".row");
    if (wanted.length !== list.children.length || wanted.some((element, index) => list.children[index] !== element)) {
      list.replaceChildren(...wanted);
      if (focused?.isConnected) focused.firstChild.focus({ preventScroll: true });
    }
    for (const one of shown) rows.get(key(one)).rank = urgency(one);
    for (const id of [...rows.keys()]) {
      if (policies.has(id)) continue;
      watcher.unobserve(rows.get(id).element);
      rows.delete(id);
      visible.delete(id);
    }
    const known = [...new Set([...policies.values()].map((one) => one.type))].sort();
    if (types.dataset.known !== known.join()) {
      types.dataset.known = known.join();
      types.replaceChildren(h("option", { value: "" }, "all"), ...known.map((type) => h("option", { value: type }, words(type))));
      types.value = known.includes(kept.type) ? kept.type : "";
    }
    say(count, shown.length === policies.size ? "" : `${shown.length} of ${policies.size} policies`);
    list.hidden = heads.hidden = shown.length === 0;
    empty.hidden = shown.length !== 0;
    if (!empty.hidden) nothing();
  }

  function nothing() {
    if (policies.size) {
      empty.replaceChildren(h("h2", {}, "No policy fits"), h("p", { class: "note" }, "Change the search or the filters above."));
      return;
    }
    empty.replaceChildren(
      h("h2", {}, "No policies yet"),
      h("p", { class: "note" }, "Every policy with a name, and every decorated function, appears here by itself:"),
      h("code", {}, '@retry(on=ConnectionError, attempts=3)\nasync def fetch(url): ...'),
    );
  }

  function summarise() {
    const all = [...policies.values()];
    const calls = all.reduce((sum, one) => sum + total(one.rates), 0);
    const trouble = all.reduce((sum, one) => sum + one.rates.failure + one.rates.rejected, 0);
    const open = all.filter((one) => one.state && !["closed", "forced_closed"].includes(one.state) && urgency(one) < 2).length;
    const quiet = all.filter((one) => one.mode !== "enforce").length;
    tiles.policies.say(figure(all.length), quiet ? `policies, ${quiet} not enforcing` : "policies");
    tiles.calls.say(figure(calls), "guarded calls / s");
    tiles.trouble.say(calls ? percent(trouble / calls) : "–", "of them in trouble", calls > 0 && trouble / calls >= 0.1);
    tiles.rejected.say(figure(all.reduce((sum, one) => sum + one.rates.rejected, 0)), "rejected / s");
    tiles.open.say(figure(open), open === 1 ? "circuit or gate is not closed" : "circuits and gates not closed", open > 0);
  }

  function everything() {
    for (const [id, row] of rows) if (policies.has(id)) fill(policies.get(id), row);
    arrange();
    summarise();
  }

  everything();
  const stop = listen((what) => {
    if (what.kind === "tick") visible.forEach(picture);
    else if (what.kind === "all") everything();
    else if (what.kind === "changes") {
      let moved = what.gone.length > 0;
      for (const id of what.changed) {
        const row = rows.get(id);
        if (!row) moved = true;
        else {
          fill(policies.get(id), row);
          if (row.rank !== urgency(policies.get(id))) {
            moved = true;
            row.element.dataset.fresh = "true";
            setTimeout(() => delete row.element.dataset.fresh, 1700);
          }
        }
      }
      if (moved || kept.show) arrange();
      summarise();
    }
  });
  return () => {
    stop();
    watcher.disconnect();
  };
}

function tile() {
  const number = h("strong");
  const text = h("span");
  const element = h("div", { class: "tile" }, number, text);
  return {
    element,
    say(value, what, alarm = false) {
      say(number, value);
      say(text, what);
      element.dataset.alarm = alarm;
    },
  };
}
