// What is known about the service: a snapshot, then changes, over one stream. Views listen; nothing polls.

import { address, get } from "./api.js";
import { announce, words } from "./dom.js";

const KEPT = 90; // readings of each policy, about a second apart
const KEPT_EVENTS = 500;
const FREQUENT = /^(call_|retry|would_|timed_out|fell_back|hedge_|cache_|wait_|feature_|chaos_injected)/; // ten seconds of these are one line

export const policies = new Map(); // "type/name" -> the last reading
export const history = new Map(); // "type/name" -> [{calls, trouble}]
export const phases = new Map(); // "type/name" -> [{at, state}], for what has a state
export const events = []; // newest first
export const session = { name: "", role: "" };

const listeners = new Set();
let source = null;
let waiting = null;
let pause = 1000;
let complete = false;

export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell(what) {
  for (const listener of [...listeners]) listener(what);
}

export const key = (one) => `${one.type}/${one.name}`;

export function total(rates) {
  return rates.success + rates.failure + rates.ignored + rates.rejected;
}

function take(one, at) {
  const id = key(one);
  const before = policies.get(id);
  policies.set(id, one);
  if (one.state && one.state !== before?.state) {
    const known = phases.get(id) || [];
    known.push({ at, state: one.state });
    if (known.length > 200) known.shift();
    phases.set(id, known);
  }
  return before;
}

// Every policy gets a point each second, also the quiet ones: a flat line is information.
function mark() {
  for (const [id, one] of policies) {
    let points = history.get(id);
    if (!points) history.set(id, (points = []));
    points.push({ calls: total(one.rates), trouble: one.rates.failure + one.rates.rejected });
    if (points.length > KEPT) points.shift();
  }
}

setInterval(() => {
  if (complete) {
    mark();
    tell({ kind: "tick" });
  }
}, 1000);

function status(state, text) {
  const place = document.getElementById("link-state");
  place.dataset.state = state;
  place.textContent = text;
  const banner = document.getElementById("banner");
  banner.hidden = state !== "lost";
  if (state === "lost") {
    banner.textContent = "The connection to the service is lost. What you see is the last that was known; it is tried again by itself.";
  }
}

export function connect(onSignedOut) {
  disconnect();
  status("waiting", "connecting");
  source = new EventSource(address("stream"));
  let pieces = new Map();
  source.addEventListener("snapshot", (message) => {
    const data = JSON.parse(message.data);
    for (const one of data.policies) pieces.set(key(one), one);
    if (!data.complete) return;
    const now = Date.now();
    for (const id of [...policies.keys()]) if (!pieces.has(id)) policies.delete(id);
    for (const one of pieces.values()) take(one, now);
    pieces = new Map();
    complete = true;
    pause = 1000;
    status("live", "live");
    tell({ kind: "all" });
  });
  source.addEventListener("changes", (message) => {
    const data = JSON.parse(message.data);
    const now = Date.parse(data.time);
    const changed = data.policies.map((one) => {
      const before = take(one, now);
      if (before && before.state !== one.state) announce(`${words(one.type)} ${one.name} is now ${words(one.state || "")}`);
      return key(one);
    });
    const gone = data.gone.map(key);
    for (const id of gone) {
      policies.delete(id);
      history.delete(id);
    }
    tell({ kind: "changes", changed, gone, added: changed.some((id) => !history.has(id)) });
  });
  source.addEventListener("happened", (message) => {
    const happening = JSON.parse(message.data);
    const last = events.find((one) => key(one) === key(happening) && one.event === happening.event && one.key === happening.key);
    if (last && happening.count > 0 && FREQUENT.test(happening.event) && Date.parse(happening.time) - Date.parse(last.since || last.time) < 10000) {
      Object.assign(last, { count: last.count + happening.count, since: last.since || last.time, details: happening.details });
    } else {
      events.unshift(happening);
      if (events.length > KEPT_EVENTS) events.pop();
    }
    tell({ kind: "event", happening });
  });
  for (const end of ["bye", "dropped"]) source.addEventListener(end, () => again(onSignedOut));
  source.onerror = () => again(onSignedOut);
}

export function disconnect() {
  clearTimeout(waiting);
  source?.close();
  source = null;
  complete = false;
}

// The browser would try again by itself, but not tell a lost service from a session that is over.
function again(onSignedOut) {
  disconnect();
  status("lost", "disconnected");
  waiting = setTimeout(async () => {
    pause = Math.min(pause * 2, 15000);
    try {
      if (!(await get("whoami")).name) return onSignedOut("The session is over: sign in again.");
    } catch {
      return again(onSignedOut);
    }
    connect(onSignedOut);
  }, pause);
}
