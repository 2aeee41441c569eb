// Two lists that grow: what happens, and who changed what.

import { call, get } from "./api.js";
import { ask, clock, figure, h, say, words } from "./dom.js";
import { of } from "./api.js";
import { events, listen, session } from "./live.js";

export function happening(one, named = true) {
  const details = Object.entries(one.details || {})
    .filter(([name, value]) => value !== null && value !== "" && name !== "error")
    .slice(0, 6)
    .map(([name, value]) => `${words(name)} ${typeof value === "object" ? JSON.stringify(value) : typeof value === "number" ? figure(value) : value}`);
  const link = named && one.name ? h("a", { href: `#/policies/${of(one.type, one.name)}` }, `${words(one.type)} ${one.name}`) : null;
  return h(
    "li",
    {},
    h("time", { datetime: one.time }, clock(one.time)),
    h(
      "span",
      { class: "what" },
      h("strong", {}, words(one.event)),
      one.count > 1 ? ` ×${figure(one.count)}` : "",
      link ? h("span", {}, " · ", link) : "",
      one.key !== null && one.key !== undefined ? ` · key ${one.key}` : "",
      details.length ? h("span", { class: "note" }, ` · ${details.join(", ").slice(0, 200)}`) : "",
    ),
  );
}

export const events_view = {
  title: "Events",
  show(main) {
    const list = h("ul", { class: "feed" });
    const filter = h("input", { type: "search", id: "event-filter", placeholder: "circuit opened, payments, …", oninput: draw });
    const stopped = h("button", { type: "button", "aria-pressed": "false", onclick: () => {
      const on = stopped.getAttribute("aria-pressed") !== "true";
      stopped.setAttribute("aria-pressed", on);
      say(stopped, on ? "Go on" : "Hold still");
      if (!on) draw();
    } }, "Hold still");
    main.replaceChildren(
      h("div", { class: "title" }, h("h1", {}, "Events"), stopped),
      h("div", { class: "tools" }, h("label", { class: "search" }, "Only those that contain", filter)),
      h("section", { class: "card" }, list),
    );
    function draw() {
      if (stopped.getAttribute("aria-pressed") === "true") return;
      const text = filter.value.trim().toLowerCase();
      const fitting = events.filter((one) => !text || `${words(one.event)} ${one.event} ${one.type} ${one.name}`.toLowerCase().includes(text));
      const nothing = text ? "No event contains that." : "Nothing has happened since this page is open. Successful calls are not told.";
      list.replaceChildren(...(fitting.length ? fitting.slice(0, 200).map((one) => happening(one)) : [h("li", {}, h("span"), h("span", { class: "note" }, nothing))]));
    }
    draw();
    return listen((what) => what.kind === "event" && draw());
  },
};

export const audit_view = {
  title: "Audit",
  show(main) {
    const list = h("ul", { class: "feed" });
    const said = h("p", { class: "note", role: "status" });
    main.replaceChildren(h("div", { class: "title" }, h("h1", {}, "Who changed what")), h("section", { class: "card" }, said, list));

    async function back(entry) {
      const about = `${words(entry.type)} ${entry.name}`;
      if (!(await ask(`Take it back?`, `${about} gets the settings it had before: ${JSON.stringify(entry.before)}`, "Take it back"))) return;
      try {
        await call("POST", `audit/${entry.id}/rollback`, {});
        say(said, `${about} has the settings from before again.`);
      } catch (problem) {
        say(said, problem.message);
      }
      read();
    }

    async function read() {
      try {
        const { entries } = await get("audit");
        list.replaceChildren(
          ...(entries.length ? entries.map((entry) => line(entry)) : [h("li", {}, h("span"), h("span", { class: "note" }, "Nothing was changed through the control plane yet."))]),
        );
      } catch (problem) {
        say(said, problem.message);
      }
    }

    function line(entry) {
      const about = entry.type ? h("a", { href: `#/policies/${of(entry.type, entry.name)}` }, `${words(entry.type)} ${entry.name}`) : "";
      const changed = Object.keys(entry.after).map((name) => `${name}: ${JSON.stringify(entry.before[name])} → ${JSON.stringify(entry.after[name])}`);
      return h(
        "li",
        {},
        h("time", { datetime: entry.time }, clock(entry.time)),
        h(
          "span",
          { class: "what" },
          h("strong", {}, entry.who), ` ${words(entry.action)} · `, about,
          changed.length ? h("span", { class: "note mono" }, ` ${changed.slice(0, 8).join("; ")}`) : "",
          entry.can_roll_back && session.role === "admin" ? h("span", {}, " ", h("button", { type: "button", onclick: () => back(entry) }, "Take back")) : "",
        ),
      );
    }

    read();
    return listen((what) => what.kind === "event" && ["reconfigured", "mode_changed"].includes(what.happening.event) && read());
  },
};
