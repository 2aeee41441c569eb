// What a reading means to somebody on call: a word, a shape, a tone, and how urgent it is.

import { h, words } from "./dom.js";
import { total } from "./live.js";

const LOOK = {
  open: ["bad", "▲", "open"],
  half_open: ["warn", "◐", "half open"],
  forced_open: ["bad", "▲", "held open"],
  forced_closed: ["warn", "◆", "held closed"],
  closed: ["good", "●", "closed"],
};

export function look(one) {
  if (one.mode === "off") return ["mute", "○", "off"];
  if (one.state && LOOK[one.state]) {
    const [tone, glyph, text] = LOOK[one.state];
    return one.mode === "shadow" ? [tone, glyph, `shadow: ${text}`] : [tone, glyph, text];
  }
  if (one.mode === "shadow") return ["warn", "◌", "shadow"];
  if (one.state) return ["mute", "●", words(one.state)];
  const calls = total(one.rates);
  const failing = calls ? one.rates.failure / calls : 0;
  if (failing >= 0.5) return ["bad", "▲", "failing"];
  if (calls && one.rates.rejected / calls >= 0.1) return ["warn", "◆", "rejecting"]; // which may be just its job
  if (failing >= 0.1) return ["warn", "◆", "troubled"];
  return ["good", "●", "fine"];
}

export function badge(one) {
  const element = h("span", { class: "badge" }, h("span", { class: "glyph", "aria-hidden": "true" }), h("span"));
  dress(element, one);
  return element;
}

export function dress(element, one) {
  const [tone, glyph, text] = look(one);
  element.dataset.tone = tone;
  if (element.firstChild.textContent !== glyph) element.firstChild.textContent = glyph;
  if (element.lastChild.textContent !== text) element.lastChild.textContent = text;
}

export function troubleShare(one) {
  const calls = total(one.rates);
  return calls > 0 ? (one.rates.failure + one.rates.rejected) / calls : null;
}

// 0 is the most urgent.
export function urgency(one) {
  const [tone] = look(one);
  return { bad: 0, warn: 1, good: 2, mute: 3 }[tone];
}

export function would(one) {
  return Object.entries(one.metrics.would || {}).filter(([, count]) => count > 0);
}
