// Elements of the page. Text of models, users and servers becomes text nodes only: no
// module of this page gives text to a parser of HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** Make an element; an attribute `onclick` and its like is a function that listens. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) {
      made.setAttribute(name, value);
    }
  }
  made.append(...children.filter((child) => child !== "" && child !== null));
  return made;
}

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

export function iconButton(name, label, onclick) {
  const attributes = { type: "button", class: "icon", "aria-label": label, title: label };
  return element("button", { ...attributes, onclick }, icon(name));
}

/** A button that copies a text, and shows for a moment that it has. */
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    const copied = await copy(text());
    button.replaceChildren(icon(copied ? "done" : "close"));
    notice(copied ? "Copied" : "The browser did not allow copying");
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text); // pages over plain HTTP of another host
  }
}

function copyBySelection(text) {
  const field = element("textarea", { class: "unseen", "aria-hidden": "true" });
  const before = document.activeElement;
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  before?.focus();
  return copied;
}

let noticeEnds = 0;

/** Say something for some seconds, with one thing to do about it. */
export function notice(text, action = null) {
  const place = byId("notice");
  const hide = () => { place.hidden = true; };
  place.replaceChildren(element("span", {}, text));
  if (action) {
    const onclick = () => { hide(); action.run(); };
    place.append(element("button", { type: "button", onclick }, action.label));
  }
  place.hidden = false;
  clearTimeout(noticeEnds);
  noticeEnds = setTimeout(hide, action ? 8000 : 2000);
}

/** Make a text field as high as its text. */
export function fit(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + field.offsetHeight - field.clientHeight}px`;
}

/** Whether a key press is Enter alone, and not the end of a word of an input method. */
export const isSending = (event) =>
  event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229;
