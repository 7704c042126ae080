// Small helpers: making elements, words for numbers, the line that says what has happened, dialogs.

import { thumbnail } from "./server.js";

export const $ = (id) => document.getElementById(id);

export function element(tag, { text, ...attributes } = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined) made.setAttribute(name, value);
  }
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

export const button = (text, onclick, attributes = {}) => element("button", { type: "button", text, onclick, ...attributes });

// Writes a text only where it is another one: the same text, too, would be laid out again, with all that follows it.
export function setText(made, text) {
  if (made.textContent !== text) made.textContent = text;
}

export function percent(share) {
  const shown = 100 * share;
  const text = shown > 99 && shown < 100 ? "> 99 %" : shown < 1 && shown > 0 ? "< 1 %" : `${Math.round(shown)} %`;
  return text.replaceAll(" ", "\u00a0");
}

export const pluralize = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;

let toastTimer;
// A line for everyone; one that the page shows elsewhere is for screen readers only.
export function say(text, { bad = false, seen = false } = {}) {
  const box = $("status");
  box.textContent = text;
  box.className = `toast${seen ? "" : " on"}${bad ? " bad" : ""}`;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => box.classList.remove("on"), bad ? 8000 : 4500);
}

export function showError(error) {
  const hint = error.body && error.body.hint ? ` (${error.body.hint})` : "";
  say(`${error.message}${hint}`, { bad: true });
}

// Images are fetched when they come near the screen: a page may hold thousands.
const waiting = new WeakMap(); // what is taken off the page before it was near the screen is forgotten
const observer = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    observer.unobserve(entry.target);
    const load = waiting.get(entry.target);
    if (load) load();
  }
}, { rootMargin: "400px" });

export function thumbnailElement(image, alt) {
  const made = element("img", { alt, decoding: "async" });
  waiting.set(made, () => thumbnail(image).then((address) => { made.src = address; }).catch(() => {}));
  observer.observe(made);
  return made;
}

// Asks in a dialog; resolves to the value of the chosen button, or null. choices: [text, value, class] each. A choice
// with the value "text" resolves to the text of the field.
export function ask(title, { words = "", field = null, choices }) {
  return new Promise((resolve) => {
    const box = $("ask");
    const input = field && element("input", { id: "ask-text", maxlength: "80", list: field.list, value: field.value || "", "aria-label": field.label, placeholder: field.label, required: true, autocomplete: "off" });
    const finish = (value) => { box.onclose = null; box.close(); resolve(value); };
    const buttons = choices.map(([text, value, kind]) => button(text, () => {
      if (value !== "text") return finish(value);
      if (input.reportValidity()) finish(input.value);
    }, { class: kind || "" }));
    const form = element("form", { onsubmit: (event) => { event.preventDefault(); buttons[0].click(); } }, ...(input ? [input] : []), element("div", { class: "row" }, ...buttons, button("Cancel", () => finish(null), { class: "plain" })));
    box.replaceChildren(element("h2", { text: title, id: "ask-title" }), ...(words ? [element("p", { class: "quiet", text: words })] : []), form);
    box.onclose = () => resolve(null);
    box.showModal();
    if (input) { input.focus(); input.select(); }
  });
}
