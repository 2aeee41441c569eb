// Small pictures: what a policy did in the last minute and a half, and the states of a circuit.

import { figure, h, svg, words } from "./dom.js";

const WIDTH = 120;
const HEIGHT = 30;

export function sparkline() {
  const calls = svg("path", { class: "calls", d: "" });
  const trouble = svg("path", { class: "trouble", d: "" });
  const base = svg("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 });
  const picture = svg("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, base, trouble, calls);
  return {
    picture,
    draw(points, kept = 90) {
      const highest = Math.max(1, ...points.map((point) => point.calls));
      const step = WIDTH / (kept - 1);
      const start = WIDTH - (points.length - 1) * step;
      const height = (value) => (HEIGHT - 1 - (value / highest) * (HEIGHT - 4)).toFixed(1);
      const line = points.map((point, index) => `${index ? "L" : "M"}${(start + index * step).toFixed(1)} ${height(point.calls)}`);
      const bars = points.flatMap((point, index) =>
        point.trouble > 0 ? `M${(start + index * step - step / 2).toFixed(1)} ${HEIGHT - 1}V${height(point.trouble)}h${step.toFixed(1)}V${HEIGHT - 1}Z` : [],
      );
      calls.setAttribute("d", line.join(""));
      trouble.setAttribute("d", bars.join(""));
      const last = points.at(-1);
      picture.setAttribute("aria-label", last ? `${last.calls.toFixed(1)} calls a second, ${last.trouble.toFixed(1)} of them in trouble` : "no calls yet");
    },
  };
}

// A band of states over the last minutes. An open stretch is hatched too, for those who see no red.
export function timeline(phases, now, minutes = 10) {
  const width = 600;
  const from = now - minutes * 60000;
  const x = (at) => ((Math.max(at, from) - from) / (now - from)) * width;
  const picture = svg("svg", { class: "timeline", viewBox: `0 0 ${width} 26`, preserveAspectRatio: "none", role: "img" });
  const spoken = [];
  const first = phases[0]?.at ?? now;
  if (first > from) picture.append(svg("rect", { class: "unknown", x: 0, y: 0, width: x(first), height: 26 }));
  phases.forEach((phase, index) => {
    const end = phases[index + 1]?.at ?? now;
    if (end < from) return;
    const left = x(phase.at);
    const wide = Math.max(1, x(end) - left);
    picture.append(svg("rect", { class: phase.state, x: left, y: 0, width: wide, height: 26 }));
    if (phase.state === "open") {
      for (let at = left + 6; at < left + wide; at += 10) {
        picture.append(svg("line", { class: "hatch", x1: at, x2: Math.min(at + 5, left + wide), y1: 26, y2: 0 }));
      }
    }
    spoken.push(`${words(phase.state)} since ${new Date(phase.at).toLocaleTimeString()}`);
  });
  picture.setAttribute("aria-label", spoken.slice(-6).join("; ") || "no state known yet");
  const marks = [0, 0.25, 0.5, 0.75].map((share) => h("span", {}, `−${figure(minutes * (1 - share))} min`));
  return [picture, h("p", { class: "scale", "aria-hidden": "true" }, ...marks, h("span", {}, "now"))];
}
