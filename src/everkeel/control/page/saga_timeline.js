// What a saga's steps did, drawn: a band for each step, and below it one for what undid it.

import { h, svg, words } from "./dom.js";

const WIDE = 1000;
const HIGH = 22;

// A status: its tone, its shape, its word. Colour is never the only one to say it.
const STEPS = {
  ready: ["mute", "○", "ready"],
  running: ["warn", "◐", "running"],
  done: ["good", "●", "done"],
  skipped: ["mute", "⤼", "skipped"],
  rejected: ["bad", "✕", "rejected"],
  unknown: ["warn", "?", "unknown"],
  late_done: ["warn", "◑", "late done"],
  undoing: ["warn", "↶", "undoing"],
  undone: ["mute", "↩", "undone"],
  undo_failed: ["bad", "▲", "undo failed"],
  undo_skipped: ["warn", "◆", "left as it is"],
};

export function stepBadge(status) {
  const [tone, glyph, text] = STEPS[status] || ["mute", "●", words(status)];
  return h("span", { class: "badge", dataset: { tone } }, h("span", { class: "glyph", "aria-hidden": "true" }, glyph), h("span", {}, text));
}

const FORWARD = { step_done: "done", late_done: "late", step_failed: "failed", step_rejected: "rejected" };
const BACK = { step_undone: "undone", undo_failed: "undo-failed", mark_done: "undone", skip: "left" };

// The tries of every step, and of every compensation, from what the timeline says about them.
function tries(saga, end) {
  const found = new Map(saga.steps.map((step) => [step.name, { forward: [], back: [] }]));
  const open = (list, at, kind) => list.push({ from: at, to: null, kind });
  const close = (list, at, kind, since) => {
    const last = list.at(-1);
    if (last && last.to === null) Object.assign(last, { to: at, kind });
    else list.push({ from: !last && since ? Date.parse(since) : at, to: at, kind }); // others' work: nobody said that it began
  };
  const since = new Map(saga.steps.map((step) => [step.name, step.started_at]));
  for (const entry of saga.timeline) {
    const at = Date.parse(entry.at);
    for (const name of (entry.step || "").split(",")) {
      const step = found.get(name);
      if (!step) continue;
      if (entry.what === "step_started") open(step.forward, at, "running");
      else if (entry.what === "undoing") open(step.back, at, "undoing");
      else if (FORWARD[entry.what]) close(step.forward, at, FORWARD[entry.what], since.get(name));
      else if (BACK[entry.what]) close(step.back, at, BACK[entry.what], null);
    }
  }
  for (const step of saga.steps) {
    const { forward, back } = found.get(step.name);
    if (!forward.length && step.started_at) {
      const to = step.ended_at ? Date.parse(step.ended_at) : null;
      forward.push({ from: Date.parse(step.started_at), to, kind: to ? "done" : "running" });
    }
    for (const one of [...forward, ...back]) {
      if (one.to !== null) continue;
      const under_way = one.kind === "running" ? step.status === "running" : step.status === "undoing";
      one.to = under_way ? end : Math.max(one.from, Date.parse(saga.updated_at));
      if (!under_way) one.kind = "unknown";
    }
  }
  return found;
}

function band(parts, x, spoken) {
  const picture = svg("svg", { class: "band", viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": spoken });
  for (const one of parts) {
    const left = Math.min(x(one.from), WIDE - 8);
    const wide = Math.max(8, x(one.to) - left);
    picture.append(svg("rect", { class: `try ${one.kind}`, x: left, y: 2, width: wide, height: HIGH - 4 }));
    if (["failed", "rejected", "undo-failed"].includes(one.kind)) {
      for (let at = left + 4; at < left + wide; at += 10) picture.append(svg("line", { class: "hatch", x1: at, x2: Math.min(at + 5, left + wide), y1: HIGH - 2, y2: 2 }));
    }
    if (["undone", "undoing", "left"].includes(one.kind)) picture.append(svg("line", { class: "hatch", x1: left, x2: left + wide, y1: HIGH / 2, y2: HIGH / 2 }));
  }
  return picture;
}

function said(parts, none) {
  return parts.length ? parts.map((one) => `${words(one.kind.replace("-", "_"))} after ${span(one.to - one.from)}`).join(", ") : none;
}

export function span(milliseconds) {
  const seconds = Math.max(0, milliseconds) / 1000;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 90) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 48 * 3600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

export function steps(saga) {
  const start = Date.parse(saga.created_at);
  // Where nothing moves, time stands still: else what happened would shrink to nothing while it waits for somebody.
  const moving = !saga.ended_at && !["compensation_blocked", "parked"].includes(saga.state);
  const end = Math.max(start + 1, Date.parse(moving ? saga.now : saga.updated_at), ...saga.timeline.map((entry) => Date.parse(entry.at)));
  const x = (at) => (Math.max(0, at - start) / (end - start)) * WIDE;
  const found = tries(saga, end);
  const rows = saga.steps.map((step) => {
    const { forward, back } = found.get(step.name);
    return h(
      "li",
      { class: "step", dataset: { step: step.name, status: step.status } },
      h("span", { class: "who-did" }, h("span", { class: "name" }, step.name), " ", stepBadge(step.status)),
      h(
        "span",
        { class: "bands" },
        band(forward, x, `${step.name}: ${said(forward, "not begun")}`),
        back.length ? band(back, x, `undoing ${step.name}: ${said(back, "not begun")}`) : null,
      ),
      step.error ? h("span", { class: "step-error" }, step.error) : null,
    );
  });
  return [
    h("ol", { class: "steps" }, ...rows),
    h("p", { class: "scale steps-scale", "aria-hidden": "true" }, h("span", {}, "0"), h("span", {}, span((end - start) / 2)), h("span", {}, moving ? `${span(end - start)} (now)` : span(end - start))),
    h("p", { class: "legend" }, h("span", {}, "solid: done"), h("span", {}, "hatched: failed"), h("span", {}, "with a line through it: undone, below the step it undoes")),
  ];
}
