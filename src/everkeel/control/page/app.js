// Signs in, chooses the view by the address, and leaves the rest to the views.

import { call, get } from "./api.js";
import { h } from "./dom.js";
import * as detail from "./detail.js";
import { audit_view, events_view } from "./feeds.js";
import * as list from "./list.js";
import { connect, disconnect, session } from "./live.js";

// A view: its title, the section of the control plane it needs (none: always there), and `show(main, ...parts)`,
// which answers what to do when it is left. Further ones are imported where their section is there.
const VIEWS = {
  policies: { title: list.title, show: (main, type, ...name) => (type ? detail.show(main, type, name.join("/")) : list.show(main)) },
  events: events_view,
  audit: audit_view,
};
const MORE = { "dead-letters": ["dead_letters", "./dead_letters.js"], sagas: ["sagas", "./sagas.js"] };

const main = document.getElementById("main");
let leave = null;

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  const [name, ...rest] = parts.length ? parts : ["policies"];
  const view = VIEWS[name] || VIEWS.policies;
  leave?.();
  leave = view.show(main, ...rest) || null;
  document.title = [rest.slice(1).join("/") || view.title, "Everkeel"].join(" · ");
  for (const link of document.querySelectorAll("#tabs a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

function tabs() {
  const place = document.getElementById("tabs");
  place.replaceChildren(...Object.entries(VIEWS).map(([name, view]) => h("a", { href: `#/${name}`, dataset: { view: name } }, view.title)));
}

async function further() {
  const { tags } = await get("openapi.json");
  const there = new Set((tags || []).map((tag) => tag.name));
  for (const [name, [section, module]] of Object.entries(MORE)) {
    if (there.has(section) && !VIEWS[name]) VIEWS[name] = (await import(module)).view;
  }
}

async function begin(who) {
  Object.assign(session, who);
  document.getElementById("who").textContent = `${who.name} (${who.role})`;
  document.getElementById("top").hidden = false;
  await further().catch(() => {}); // without the document there are the views of this file
  tabs();
  connect(signIn);
  window.onhashchange = route;
  route();
}

function signIn(said = "") {
  disconnect();
  leave?.();
  leave = null;
  window.onhashchange = null;
  document.getElementById("top").hidden = true;
  document.getElementById("banner").hidden = true;
  const error = h("p", { class: "error", role: "alert" }, typeof said === "string" ? said : "");
  const token = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true });
  const form = h(
    "form",
    {
      class: "card sign-in",
      onsubmit: async (event) => {
        event.preventDefault();
        error.textContent = "";
        try {
          await begin(await call("POST", "session", { token: token.value.trim() }));
        } catch (problem) {
          error.textContent = problem.status === 401 ? "This token is not known to the service." : problem.message;
          token.select();
        }
      },
    },
    h("h1", {}, "Everkeel"),
    h("p", { class: "note" }, "The control plane of this service is closed to strangers. Sign in with one of its tokens."),
    h("input", { type: "text", autocomplete: "username", value: "everkeel", hidden: true }),
    h("label", { for: "token" }, "Token", token),
    error,
    h("button", { class: "primary" }, "Sign in"),
    h("p", { class: "note" }, "No token? Whoever runs the service sets them: ", h("code", {}, "EVERKEEL_CONTROL_TOKENS=name:role:secret"), ". Roles are viewer, operator and admin."),
  );
  main.replaceChildren(form);
  document.title = "Sign in · Everkeel";
  token.focus();
}

// ------------------------------------------------------------------ theme and keys

const THEMES = ["auto", "light", "dark"];

function theme(choice) {
  if (choice === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  document.getElementById("theme").textContent = `Theme: ${choice}`;
  try {
    localStorage.setItem("everkeel-theme", choice);
  } catch {
    // a browser that keeps nothing: the choice holds for this page
  }
}

let chosen = "auto";
try {
  chosen = localStorage.getItem("everkeel-theme") || "auto";
} catch {
  chosen = "auto";
}
theme(THEMES.includes(chosen) ? chosen : "auto");
document.getElementById("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme || "auto";
  theme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
document.getElementById("sign-out").addEventListener("click", async () => {
  await call("DELETE", "session").catch(() => {});
  signIn("You are signed out.");
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, dialog");
  if (event.key === "Escape" && location.hash.split("/").length > 2 && !document.querySelector("dialog[open]")) location.hash = `#/${location.hash.split("/")[1]}`;
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const search = document.querySelector("input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
  if (["j", "k", "ArrowDown", "ArrowUp"].includes(event.key)) {
    const links = [...document.querySelectorAll(".rows a")];
    if (!links.length) return;
    const at = links.indexOf(document.activeElement);
    if (at < 0 && event.key.startsWith("Arrow")) return; // the page scrolls until a row is chosen
    event.preventDefault();
    const step = event.key === "j" || event.key === "ArrowDown" ? 1 : -1;
    links[Math.min(Math.max(at + step, 0), links.length - 1)].focus();
  }
});

get("whoami")
  .then((who) => (who.name ? who : who.application ? call("POST", "session", {}) : null)) // the application may know whom it is
  .then((who) => (who ? begin(who) : signIn()))
  .catch((problem) => signIn(problem.status === 401 ? "" : problem.message));
