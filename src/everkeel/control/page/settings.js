// The settings of one policy: what is in force, where it comes from, and a change that is checked by the service itself.

import { call, get, of } from "./api.js";
import { announce, h, say } from "./dom.js";
import { session } from "./live.js";

const plain = (value) => value === null || ["string", "number", "boolean"].includes(typeof value);

export function settings(type, name) {
  const place = h("section", { class: "card" }, h("h2", {}, "Settings"), h("p", { class: "note" }, "reading…"));
  const path = `config/${of(type, name)}`;
  const may = session.role === "admin";
  let known = null;

  async function read() {
    try {
      known = await get(path);
      draw();
    } catch (problem) {
      place.replaceChildren(h("h2", {}, "Settings"), h("p", { class: "error" }, problem.message));
    }
  }

  function draw(said = "") {
    const fields = Object.entries(known.settings).map(([setting, value]) => field(setting, value, known.sources[setting]));
    const chosen = fields.filter((one) => one.source !== "default");
    const rest = fields.filter((one) => one.source === "default");
    const message = h("p", { class: "note", role: "status" }, said);
    const save = h("button", { class: "primary", disabled: true }, "Apply");
    const back = h("button", { type: "button", disabled: true, onclick: () => draw() }, "Discard");
    const form = h(
      "form",
      {
        oninput: () => {
          const changed = fields.some((one) => one.changed());
          save.disabled = back.disabled = !changed;
        },
        onsubmit: async (event) => {
          event.preventDefault();
          const changes = {};
          for (const one of fields) {
            one.complain("");
            if (one.changed()) changes[one.setting] = one.value();
          }
          save.disabled = true;
          try {
            known = await call("PUT", path, changes, { "If-Match": `"${known.version}"` });
            draw(`In force: ${Object.keys(changes).join(", ")}.`);
            announce("settings are in force");
          } catch (problem) {
            save.disabled = false;
            if (problem.status === 412) {
              await read();
              draw("Somebody else changed these settings meanwhile. They are read again: look, then apply yours.");
              return;
            }
            let placed = false;
            for (const error of problem.errors) {
              const one = fields.find((each) => `/${each.setting}` === error.pointer);
              if (one) {
                one.complain(error.detail);
                one.element.closest("details")?.setAttribute("open", "");
                placed = true;
              }
            }
            say(message, placed ? "Nothing was changed: see above." : problem.message);
          }
        },
      },
      ...chosen.map((one) => one.element),
      rest.length ? h("details", { open: chosen.length === 0 }, h("summary", {}, `${rest.length} more, at their defaults`), ...rest.map((one) => one.element)) : null,
      may ? h("div", { class: "actions" }, save, back) : null,
      message,
    );
    const why = may ? "A change holds at once and keeps the state; a restart forgets it." : `Changing settings needs the role admin; you are ${session.role}.`;
    place.replaceChildren(h("h2", {}, "Settings"), h("p", { class: "note" }, why), form);
  }

  function field(setting, value, source) {
    const id = `setting-${setting}`;
    let input;
    if (typeof value === "boolean") {
      input = h("input", { type: "checkbox", id, checked: value, disabled: !may });
    } else if (plain(value)) {
      input = h("input", { id, value: value === null ? "" : String(value), placeholder: value === null ? "none" : "", readOnly: !may, spellcheck: "false", autocomplete: "off" });
    } else {
      input = h("textarea", { id, rows: 2, readOnly: !may, spellcheck: "false" });
      input.value = JSON.stringify(value);
    }
    const error = h("p", { class: "error", id: `${id}-error` });
    const first = input.type === "checkbox" ? input.checked : input.value;
    const now = () => (input.type === "checkbox" ? input.checked : input.value);
    return {
      setting,
      source,
      element: h("div", { class: "setting" }, h("label", { for: id, class: "mono" }, setting), input, h("span", { class: "source" }, `from ${source}`), error),
      changed: () => now() !== first,
      value() {
        if (input.type === "checkbox") return input.checked;
        const text = input.value.trim();
        if (text === "" || text === "none" || text === "null") return null;
        if (!plain(value) || /^[[{"]/.test(text)) {
          try {
            return JSON.parse(text);
          } catch {
            return text;
          }
        }
        return text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
      },
      complain(text) {
        say(error, text);
        input.setAttribute("aria-invalid", text ? "true" : "false");
        if (text) input.setAttribute("aria-describedby", error.id);
        else input.removeAttribute("aria-describedby");
      },
    };
  }

  read();
  return { element: place, read };
}
