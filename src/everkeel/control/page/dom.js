// Elements from data. Text is always set as text: nothing a service says can become markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Changes text only where it differs, so that a reader's selection and a screen reader's place survive.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function announce(text) {
  say(document.getElementById("announce"), text);
}

export function words(name) {
  return name.replaceAll("_", " ");
}

export function figure(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value !== 0 && Math.abs(value) < 0.1) return value.toFixed(2);
  if (Math.abs(value) < 100 && !Number.isInteger(value)) return value.toFixed(1);
  return Math.round(value).toLocaleString("en");
}

export function percent(share) {
  return share === null ? "–" : `${figure(share * 100)} %`;
}

export function clock(moment) {
  return new Date(moment).toLocaleTimeString([], { hour12: false });
}

// A question before something that callers will feel. Answers true or false.
export function ask(title, text, yes, dangerous = true) {
  return new Promise((answer) => {
    const dialog = h(
      "dialog",
      { "aria-labelledby": "dialog-title" },
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: "dialog-title" }, title),
        h("p", {}, text),
        h(
          "div",
          { class: "actions" },
          h("button", { value: "no" }, "Cancel"),
          h("button", { value: "yes", class: dangerous ? "danger" : "primary" }, yes),
        ),
      ),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      answer(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
