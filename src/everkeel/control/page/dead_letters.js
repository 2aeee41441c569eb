// Events that were given up on: find them, look inside, send them again or discard them with a reason.

import { call, get } from "./api.js";
import { announce, ask, clock, figure, h, say, words } from "./dom.js";
import { session } from "./live.js";

const kept = { status: "pending", consumer: "", type: "" };
const TONES = { pending: "bad", parked: "warn", replayed: "warn", resolved: "good", superseded: "mute", discarded: "mute" };
const GLYPHS = { pending: "▲", parked: "◆", replayed: "◐", resolved: "●", superseded: "○", discarded: "○" };
const may = () => session.role !== "viewer";

function badge(status) {
  return h("span", { class: "badge", dataset: { tone: TONES[status] } }, h("span", { class: "glyph", "aria-hidden": "true" }, GLYPHS[status]), h("span", {}, status));
}

// What came behind a letter, or behind the letters of a plan, in the same key.
function behind({ handled, waiting, exact }, whom = "it") {
  const since = handled ? `${exact ? "" : "at least "}${figure(handled)} handled since` : exact ? "none was handled since" : "not known whether any was handled since";
  return waiting ? `${since}, ${figure(waiting)} waiting behind ${whom}` : since;
}

// The corrected data goes out as it was written: to parse it would round numbers that JavaScript has no room for.
function replayBody(body, text) {
  const start = JSON.stringify(body).slice(0, -1);
  return `${start}${start === "{" ? "" : ","}"edit":${text}}`;
}

function query(cursor) {
  const parts = new URLSearchParams(Object.entries(kept).filter(([, value]) => value));
  if (cursor) parts.set("cursor", cursor);
  const text = parts.toString();
  return text ? `?${text}` : "";
}

function list(main) {
  const rows = h("ul", { class: "rows letters" });
  const said = h("p", { class: "note", role: "status" });
  const outbox = h("p", { class: "note" });
  const more = h("button", { type: "button", hidden: true }, "Show more");
  const field = (name, label, input) => h("label", {}, label, input);
  const status = h("select", { onchange: () => choose("status", status.value) }, h("option", { value: "" }, "all"), ...Object.keys(TONES).map((value) => h("option", { value }, value)));
  status.value = kept.status;
  const consumer = h("input", { type: "search", id: "consumer", value: kept.consumer, onchange: () => choose("consumer", consumer.value.trim()) });
  const type = h("input", { type: "search", value: kept.type, onchange: () => choose("type", type.value.trim()) });
  const all = h("button", { type: "button", onclick: replayAll }, "Replay all that fit");
  main.replaceChildren(
    h("div", { class: "title" }, h("h1", {}, "Dead letters"), may() ? all : null),
    h("p", { class: "note" }, "Events that a consumer, or the outbox, gave up on. Nothing here is lost: it waits for you."),
    outbox,
    h("div", { class: "tools" }, field("consumer", "Consumer", consumer), field("type", "Type of event", type), field("status", "Status", status)),
    said, rows, more,
  );

  function choose(what, value) {
    kept[what] = value;
    read();
  }

  async function read(cursor = null) {
    try {
      const [page, { count }] = await Promise.all([get(`dlq${query(cursor)}`), get(`dlq/count${query()}`)]);
      const lines = page.letters.map(line);
      if (cursor) rows.append(...lines);
      else rows.replaceChildren(...lines);
      say(said, count ? `${figure(count)} ${kept.status || "in all"}` : "");
      rows.hidden = count === 0;
      if (!count) said.textContent = kept.status || kept.consumer || kept.type ? "No dead letter fits. Choose status “all” to see those that are dealt with." : "No dead letters: every event was handled.";
      more.hidden = !page.next;
      more.onclick = () => read(page.next);
    } catch (problem) {
      say(said, problem.message);
    }
    get("outbox/stats").then(
      (stats) => say(outbox, `Outbox: ${figure(stats.depth)} waiting, the oldest for ${figure(stats.oldest_age)} s, ${figure(stats.parked)} parked${stats.relay?.paused ? ", paused" : ""}.`),
      () => {},
    );
  }

  function line(letter) {
    return h(
      "li",
      { class: "row", dataset: { id: letter.id } },
      h(
        "a",
        { href: `#/dead-letters/${encodeURIComponent(letter.id)}` },
        h("span", { class: "status" }, badge(letter.status)),
        h("span", { class: "identity" }, h("span", { class: "name" }, letter.event.type), h("br"), h("span", { class: "type" }, `${letter.consumer} · ${letter.untrusted.error.split("\n")[0].slice(0, 140)}`)),
        h("span", { class: "figure" }, `${letter.attempts} tries`),
        h("span", { class: "figure" }, `${letter.replays} replays`),
        h("time", { class: "figure", datetime: letter.failed_at }, clock(letter.failed_at)),
      ),
    );
  }

  async function replayAll() {
    const filter = Object.fromEntries(Object.entries(kept).filter(([name, value]) => value && name !== "status"));
    try {
      const plan = await call("POST", "dlq/replay", { filter });
      const about = Object.entries(plan.by_type).map(([name, count]) => `${count} × ${name}`).join(", ");
      if (!plan.count) return say(said, "No pending letter fits that may be replayed.");
      if (!(await ask(`Replay ${plan.count} letters?`, `${about}. Newer events on the same keys: ${behind(plan.newer, "them")}. Ten a second; no more once three have failed again.`, "Replay", false))) return;
      await call("POST", "dlq/replay", { filter, dry_run: false });
      say(said, `${plan.count} letters are being replayed.`);
      announce("replay has begun");
      setTimeout(read, 1500);
    } catch (problem) {
      say(said, problem.message);
    }
  }

  read();
  const timer = setInterval(() => rows.children.length <= 50 && !document.querySelector("dialog[open]") && read(), 5000);
  return () => clearInterval(timer);
}

function one(main, id) {
  const said = h("p", { class: "note", role: "status" });
  const path = `dlq/${encodeURIComponent(id)}`;
  let letter = null;

  async function read(text = "") {
    try {
      letter = await get(path);
      const { entries } = await get(`${path}/audit`);
      draw(entries, text);
    } catch (problem) {
      main.replaceChildren(h("p", { class: "crumbs" }, h("a", { href: "#/dead-letters" }, "← All dead letters")), h("p", { class: "error" }, problem.message));
    }
  }

  async function act(method, address, body, done) {
    try {
      await call(method, address, body, { "If-Match": `"${letter.version}"` });
      announce(done);
      await read(done);
    } catch (problem) {
      say(said, problem.status === 412 || problem.status === 409 ? `${problem.message}` : problem.message);
      if (problem.status === 412) await read(problem.message);
    }
  }

  function draw(entries, text) {
    const data = h("textarea", { rows: 10, spellcheck: "false", readOnly: !may(), id: "letter-data" });
    data.value = letter.untrusted.text;
    const first = data.value;
    const key = h("input", { id: "letter-key", autocomplete: "off" });
    key.value = letter.key ?? "";
    const reason = h("input", { id: "letter-reason", placeholder: "kept in its history", autocomplete: "off" });
    const open = ["pending", "parked"].includes(letter.status);
    const replay = h("button", { class: "primary", type: "button", onclick: () => {
      let body = reason.value.trim() ? { reason: reason.value.trim() } : {};
      if (letter.status === "parked") body.force = true;
      if (key.value.trim() && key.value.trim() !== letter.key) body.key = key.value.trim();
      if (data.value !== first) {
        try {
          JSON.parse(data.value);
        } catch (error) {
          return say(said, `The data is no longer JSON: ${error.message}`);
        }
        body = replayBody(body, data.value);
      }
      act("POST", `${path}/replay`, body, "It is on its way again.");
    } }, "Replay");
    const discard = h("button", { class: "danger", type: "button", onclick: async () => {
      if (!reason.value.trim()) {
        reason.setAttribute("aria-invalid", "true");
        reason.focus();
        return say(said, "Say why: a discarded event is not handled any more.");
      }
      if (await ask("Discard this event?", "It will not be handled any more. Those that wait behind it go on.", "Discard")) {
        act("DELETE", `${path}?reason=${encodeURIComponent(reason.value.trim())}`, undefined, "It is discarded.");
      }
    } }, "Discard");
    const reopen = h("button", { type: "button", onclick: () => {
      if (!reason.value.trim()) {
        reason.focus();
        return say(said, "Say why you think that its replay got lost.");
      }
      act("POST", `${path}/reopen`, { reason: reason.value.trim() }, "It waits again.");
    } }, "Its replay got lost");
    const replayed = letter.status === "replayed";
    const facts = [
      ["event", `${letter.event.type} ${letter.event.id}`], ["source", letter.event.source], ["consumer", letter.consumer], ["topic", letter.topic], ["key", letter.key],
      ["why", words(letter.reason)], ["error", letter.error_type], ["tries", letter.attempts], ["replays", letter.replays],
      ["first failed", new Date(letter.first_failed_at).toLocaleString()], ["failed last", new Date(letter.failed_at).toLocaleString()],
      ["saga", letter.saga_id], ["correlation", letter.correlation_id], ["waits behind", letter.behind],
      ["newer of its key", letter.key === null ? null : behind(letter.newer)],
    ].filter(([, value]) => value !== null && value !== "");
    say(said, text);
    main.replaceChildren(
      h("p", { class: "crumbs" }, h("a", { href: "#/dead-letters" }, "← All dead letters")),
      h("div", { class: "title" }, h("h1", {}, letter.event.type), badge(letter.status)),
      h(
        "div",
        { class: "columns" },
        h(
          "div",
          { class: "stack" },
          h("section", { class: "card" }, h("h2", {}, "What went wrong"), h("pre", { class: "mono wrap" }, [letter.untrusted.error, letter.untrusted.traceback].filter(Boolean).join("\n\n"))),
          h(
            "section",
            { class: "card" },
            h("h2", {}, h("label", { for: "letter-data" }, "Its data")),
            h("p", { class: "note" }, may() && open ? "Correct it here if that is what it needs, then replay." : "As it was sent; hidden fields are hidden."),
            data,
            open && may() ? h("label", {}, "Key", key) : null,
            (open || replayed) && may() ? h("label", {}, "Reason", reason) : null,
            may() ? (open ? h("div", { class: "actions" }, replay, discard) : replayed ? h("div", { class: "actions" }, reopen) : h("p", { class: "note" }, "It is dealt with: nothing more to do.")) : h("p", { class: "note" }, "Replaying and discarding need the role operator; you are viewer."),
            said,
          ),
        ),
        h(
          "div",
          { class: "stack" },
          h("section", { class: "card" }, h("h2", {}, "About it"), h("table", { class: "facts" }, ...facts.map(([name, value]) => h("tr", {}, h("th", {}, name), h("td", {}, String(value)))))),
          h(
            "section",
            { class: "card" },
            h("h2", {}, "History"),
            h("ul", { class: "feed" }, ...entries.map((entry) => h("li", {}, h("time", { datetime: entry.at }, clock(entry.at)), h("span", { class: "what" }, h("strong", {}, `${entry.before || "new"} → ${entry.after || "deleted"}`), ` by ${entry.actor}`, entry.reason ? `: ${entry.reason}` : "")))),
          ),
        ),
      ),
    );
  }

  read();
  return null;
}

export const view = { title: "Dead letters", show: (main, id) => (id ? one(main, id) : list(main)) };
