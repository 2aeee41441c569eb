// Business transactions over several services: which of them need somebody, what each has done, and what can be done.

import { call, get } from "./api.js";
import { ask, clock, figure, h, say, words } from "./dom.js";
import { session } from "./live.js";
import { span, steps } from "./saga_timeline.js";

const EVERY = 3000;
const kept = { type: "", correlation: "", state: "" };
const STATES = {
  compensation_blocked: ["bad", "▲"],
  parked: ["bad", "◆"],
  compensating: ["warn", "↶"],
  running: ["good", "◐"],
  pending: ["mute", "○"],
  completed: ["good", "●"],
  compensated: ["mute", "↩"],
  failed: ["bad", "✕"],
};
const may = () => session.role !== "viewer";

function badge({ state, attention }) {
  // One that has ended needs somebody where a step that was done late could not be undone: its state stays.
  const late = attention && state === "compensated";
  const [tone, glyph] = late ? ["bad", "▲"] : STATES[state] || ["mute", "●"];
  return h("span", { class: "badge", dataset: { tone } }, h("span", { class: "glyph", "aria-hidden": "true" }, glyph), h("span", {}, late ? "late undo failed" : words(state)));
}

function age(saga) {
  const end = saga.ended_at || saga.now;
  return span(Date.parse(end) - Date.parse(saga.created_at));
}

// ------------------------------------------------------------------ all of them

function list(main) {
  const rows = h("ul", { class: "rows sagas" });
  const said = h("p", { class: "note", role: "status" });
  const more = h("button", { type: "button", hidden: true }, "Show more");
  const state = h("select", { onchange: () => choose("state", state.value) }, h("option", { value: "" }, "all"), h("option", { value: "attention" }, "need somebody"), ...Object.keys(STATES).map((value) => h("option", { value }, words(value))));
  state.value = kept.state;
  const type = h("input", { type: "search", id: "saga-type", value: kept.type, onchange: () => choose("type", type.value.trim()) });
  const correlation = h("input", { type: "search", value: kept.correlation, onchange: () => choose("correlation", correlation.value.trim()) });
  main.replaceChildren(
    h("div", { class: "title" }, h("h1", {}, "Sagas")),
    h("p", { class: "note" }, "Transactions over several services. Those that cannot go on without somebody come first."),
    h("div", { class: "tools" }, h("label", {}, "Type", type), h("label", {}, "Correlation", correlation), h("label", {}, "State", state)),
    said, rows, more,
  );
  let pages = 1;
  let reading = 0;

  function choose(what, value) {
    kept[what] = value;
    pages = 1;
    read();
  }

  function query(extra = {}) {
    const wanted = { type: kept.type, correlation: kept.correlation, ...extra };
    if (kept.state === "attention") wanted.attention = "true";
    else if (kept.state) wanted.state = kept.state;
    const text = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value)).toString();
    return text ? `?${text}` : "";
  }

  async function read() {
    const mine = ++reading;
    try {
      // Without a state chosen: first those that need somebody, then the others, so that none is far down the list.
      const first = kept.state ? null : await get(`sagas${query({ attention: "true" })}`);
      const found = [...(first ? first.sagas : [])];
      let next = null;
      for (let page = 0; page < pages && (page === 0 || next); page += 1) {
        const answer = await get(`sagas${query({ ...(first ? { attention: "false" } : {}), ...(next ? { cursor: next } : {}) })}`);
        found.push(...answer.sagas);
        next = answer.next;
      }
      const { count } = await get(`sagas/count${query()}`);
      if (mine !== reading) return; // somebody has chosen otherwise meanwhile
      draw(found);
      const filtered = kept.state || kept.type || kept.correlation;
      const waiting = first && first.sagas.length ? `, ${first.next ? "more than " : ""}${figure(first.sagas.length)} of them need somebody` : "";
      if (count) say(said, `${figure(count)} ${kept.state && kept.state !== "attention" ? words(kept.state) : count === 1 ? "saga" : "sagas"}${waiting}`);
      else say(said, filtered ? "No saga fits. Choose state “all” and empty the filters to see every one." : "No sagas yet: they appear here as soon as one is started.");
      rows.hidden = found.length === 0;
      more.hidden = !next;
    } catch (problem) {
      if (mine === reading) say(said, problem.message);
    }
  }

  more.onclick = () => {
    pages += 1;
    read();
  };

  function draw(found) {
    const at = document.activeElement?.closest?.(".row")?.dataset.id; // whoever goes through the list by keys stays there
    rows.replaceChildren(...found.map(line));
    if (at) [...rows.children].find((row) => row.dataset.id === at)?.firstChild.focus({ preventScroll: true });
  }

  function line(saga) {
    const why = saga.cause ? ` · ${words(saga.cause)}` : "";
    return h(
      "li",
      { class: "row", dataset: { id: saga.id } },
      h(
        "a",
        { href: `#/sagas/${encodeURIComponent(saga.id)}` },
        h("span", { class: "status" }, badge(saga)),
        h("span", { class: "identity" }, h("span", { class: "name" }, saga.type), h("br"), h("span", { class: "type" }, `${saga.id}${why}`)),
        h("span", { class: "at-step" }, saga.step ? `at ${saga.step.split(",").join(", ")}` : ""),
        h("span", { class: "figure" }, age(saga)),
        h("time", { class: "figure", datetime: saga.created_at }, clock(saga.created_at)),
      ),
    );
  }

  read();
  const timer = setInterval(() => !document.querySelector("dialog[open]") && read(), EVERY);
  return () => {
    clearInterval(timer);
    reading += 1;
  };
}

// ------------------------------------------------------------------ one of them

const ACTIONS = {
  "retry-compensation": { label: "Try to undo it again", done: "It is being undone again.", ask: null },
  "mark-done": { label: "It was undone by hand", done: "It is marked as undone.", ask: ["Mark as undone?", "Nobody will undo it any more. Do this when you have undone it yourself."] },
  "skip-step": { label: "Leave it as it is", done: "It stays as it is.", ask: ["Leave it as it is?", "What this step did stays done, and nobody will undo it."] },
  cancel: { label: "Cancel", done: "It is turning back.", ask: ["Cancel this saga?", "It turns back: what its steps have done is undone."] },
  resume: { label: "Resume", done: "It goes on.", ask: null },
  fail: { label: "Give up", done: "It is given up on.", ask: ["Give up on this saga?", "Nothing more is done for it, and nothing more is undone. It cannot be taken back."] },
};

function one(main, id) {
  const path = `sagas/${encodeURIComponent(id)}`;
  const crumbs = () => h("p", { class: "crumbs" }, h("a", { href: "#/sagas" }, "← All sagas"));
  const said = h("p", { class: "note", role: "status" });
  const reason = h("input", { id: "saga-reason", placeholder: "kept in its timeline", autocomplete: "off", maxlength: "500" });
  const reasoned = h("label", { class: "reasoned", for: "saga-reason" }, "Reason", reason);
  const places = Object.fromEntries(["head", "steps", "actions", "facts", "data", "letters", "timeline"].map((name) => [name, h("div", {})]));
  let saga = null;
  let left = false;
  let drawn = "";

  main.replaceChildren(
    crumbs(), places.head,
    h(
      "div",
      { class: "columns" },
      h("div", { class: "stack" },
        h("section", { class: "card" }, h("h2", {}, "Steps"), places.steps),
        h("section", { class: "card" }, h("h2", {}, "What can be done"), places.actions, reasoned, said),
        h("section", { class: "card" }, h("h2", {}, "Its data"), h("p", { class: "note" }, "Hidden fields are hidden."), places.data),
      ),
      h("div", { class: "stack" },
        h("section", { class: "card" }, h("h2", {}, "About it"), places.facts, places.letters),
        h("section", { class: "card" }, h("h2", {}, "Timeline"), places.timeline),
      ),
    ),
  );

  async function read() {
    try {
      const found = await get(path);
      if (left) return;
      saga = found;
      const { now, ...rest } = saga;
      const same = JSON.stringify(rest);
      if (same !== drawn || !saga.ended_at) draw(same !== drawn);
      drawn = same;
    } catch (problem) {
      if (left) return;
      if (saga) say(said, problem.message); // what it knew stays on the page
      else main.replaceChildren(crumbs(), h("p", { class: "error" }, problem.message));
    }
  }

  async function act(action, step) {
    const { ask: question, done } = ACTIONS[action.action];
    const why = reason.value.trim();
    if (action.reason === "required" && !why) {
      reason.setAttribute("aria-invalid", "true");
      reason.focus();
      return say(said, "Say why: it is kept in the timeline.");
    }
    reason.removeAttribute("aria-invalid");
    // A running saga changes all the time, and cancelling means any of its moments; a stopped one is acted on as it was seen.
    const seen = action.action === "cancel" ? {} : { "If-Match": `"${saga.revision}"` };
    if (question && !(await ask(question[0], question[1], ACTIONS[action.action].label))) return;
    try {
      await call("POST", `${path}/${action.action}`, { ...(step ? { step } : {}), ...(why ? { reason: why } : {}) }, seen);
      reason.value = "";
      say(said, done);
    } catch (problem) {
      say(said, problem.status === 412 ? `Somebody was faster: ${problem.message}. Look again.` : problem.message);
    }
    await read();
  }

  function buttons() {
    if (!may()) return [h("p", { class: "note" }, "Acting needs the role operator; you are viewer.")];
    const danger = new Set(["cancel", "fail", "skip-step"]);
    const button = (action, step) => h("button", { type: "button", class: danger.has(action.action) ? "danger" : "", dataset: { action: action.action, step: step || "" }, onclick: () => act(action, step) }, ACTIONS[action.action].label);
    const stuck = [...new Set(saga.actions.flatMap((action) => action.steps || []))];
    const whole = saga.actions.filter((action) => !action.steps);
    return [
      ...stuck.map((step) => h("div", { class: "stuck" }, h("h3", {}, `Undoing “${step}” has failed`), h("div", { class: "actions" }, ...saga.actions.filter((action) => action.steps?.includes(step)).map((action) => button(action, step))))),
      whole.length ? h("div", { class: "actions" }, ...whole.map((action) => button(action, null))) : null,
      saga.actions.length ? null : h("p", { class: "note" }, saga.ended_at ? "It has ended: nothing more to do." : "It is past its pivot, or turning back: it goes on by itself."),
    ].filter(Boolean);
  }

  function draw(changed) {
    places.steps.replaceChildren(...steps(saga));
    if (!changed) return; // only time has passed: leave buttons and selections alone
    places.head.replaceChildren(h("div", { class: "title" }, h("h1", {}, saga.type), badge(saga), h("code", {}, saga.id)));
    const chosen = places.actions.contains(document.activeElement) ? document.activeElement.dataset : null;
    places.actions.replaceChildren(...buttons());
    if (chosen) [...places.actions.querySelectorAll("button")].find((one) => one.dataset.action === chosen.action && one.dataset.step === chosen.step)?.focus();
    reasoned.hidden = !may() || !saga.actions.length;
    const moment = (text) => (text ? new Date(text).toLocaleString() : null);
    const facts = [
      ["definition", `version ${saga.version}, ${saga.kind}`], ["revision", saga.revision], ["why", saga.cause && words(saga.cause)], ["error", saga.error], ["at step", saga.failed_step || saga.step],
      ["correlation", saga.correlation_id], ["started", moment(saga.created_at)], ["changed", moment(saga.updated_at)], ["deadline", moment(saga.deadline_at)], ["ended", moment(saga.ended_at)],
      ["timed out", saga.timed_out ? "yes" : null], ["past its pivot", saga.committed ? "yes" : null], ["worked on by", saga.owner],
    ].filter(([, value]) => value !== null && value !== undefined && value !== "");
    places.facts.replaceChildren(h("table", { class: "facts" }, ...facts.map(([name, value]) => h("tr", {}, h("th", {}, name), h("td", {}, String(value))))));
    places.letters.replaceChildren(...(saga.dead_letters?.length ? [h("h3", {}, "Dead letters"), h("ul", { class: "feed" }, ...saga.dead_letters.map((letter) => h("li", {}, h("span", {}, letter.status), h("a", { class: "what", href: `#/dead-letters/${encodeURIComponent(letter.id)}` }, `${letter.event_type} in ${letter.consumer}`))))] : []));
    const parts = [["input", saga.untrusted.input], ["state", saga.untrusted.data], ["result", saga.untrusted.result], ...Object.entries(saga.untrusted.results).map(([name, value]) => [`result of ${name}`, value])];
    const empty = (value) => value === null || value === undefined || JSON.stringify(value) === "{}";
    const shown = parts.filter(([, value]) => !empty(value));
    places.data.replaceChildren(...(shown.length ? shown.flatMap(([name, value]) => [h("h3", {}, name), h("pre", { class: "mono wrap" }, JSON.stringify(value, null, 2))]) : [h("p", { class: "note" }, "It has none.")]));
    places.timeline.replaceChildren(
      h("ul", { class: "feed" }, ...[...saga.timeline].reverse().map((entry) => h("li", {}, h("time", { datetime: entry.at }, clock(entry.at)), h("span", { class: "what" }, h("strong", {}, words(entry.what)), entry.step ? ` ${entry.step}` : "", entry.attempt > 1 ? `, try ${entry.attempt}` : "", entry.actor ? ` by ${entry.actor}` : "", entry.detail ? `: ${entry.detail}` : "")))),
    );
  }

  read();
  const timer = setInterval(() => !document.querySelector("dialog[open]") && read(), EVERY); // an ended one, too: late answers come
  return () => {
    left = true;
    clearInterval(timer);
  };
}

export const view = { title: "Sagas", show: (main, ...id) => (id.length ? one(main, id.join("/")) : list(main)) };
