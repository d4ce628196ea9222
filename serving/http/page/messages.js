// Messages as the reader sees them: text, reasoning, tools, figures, and what can be done.

import { siblings } from "./chats.js";
import { copyButton, element, fit, icon, iconButton, isSending } from "./elements.js";
import { blocksOf, draw } from "./markdown.js";
import { thumbnail } from "./pictures.js";

/** Text in Markdown that grows: only blocks that changed are drawn again. */
class Growing {
  constructor() {
    this.place = element("div", { class: "text" });
    this.shown = "";
    this.keys = [];
  }

  show(text) {
    if (text === this.shown) return;
    this.shown = text;
    const lines = text.replaceAll("\r\n", "\n").split("\n");
    const blocks = blocksOf(lines);
    const keys = blocks.map(({ kind, from, to }) => kind + lines.slice(from, to).join("\n"));
    let same = 0;
    while (same < keys.length && keys[same] === this.keys[same]) same += 1;
    while (this.place.childNodes.length > same) this.place.lastChild.remove();
    this.place.append(...blocks.slice(same).map(draw));
    this.keys = keys;
  }
}

// ---- messages of the user --------------------------------------------------------------

function userView(chat, node, actions) {
  const pictures = (node.pictures ?? []).map((url, i) => thumbnail(url, `Picture ${i + 1}`));
  if (node.lost) pictures.push(element("p", { class: "soft" },
    "The browser had no room to keep the pictures of this message."));
  const text = element("div", { class: "bubble" }, node.text);
  const body = element("div", { class: "said" }, text);
  const edit = iconButton("edit", "Edit this message", () =>
    body.replaceChildren(...editor(node, actions, () => {
      body.replaceChildren(text);
      edit.focus();
    })));
  const row = element("div", { class: "actions" }, versions(chat, node, actions),
                      copyButton("Copy this message", () => node.text), edit);
  const place = element("article", { class: "user", "aria-label": "You" });
  if (pictures.length) place.append(element("div", { class: "shown-pictures" }, ...pictures));
  place.append(...(node.text ? [body] : []), row);
  return { place, show() {} };
}

function editor(node, actions, leave) {
  const field = element("textarea", { "aria-label": "Your message", rows: "1" });
  const send = () => {
    if (field.value.trim() !== "") actions.edit(node, field.value.trim());
  };
  field.value = node.text;
  field.addEventListener("input", () => fit(field));
  field.addEventListener("keydown", (event) => {
    if (isSending(event)) {
      event.preventDefault();
      send();
    } else if (event.key === "Escape") {
      event.stopPropagation();
      leave();
    }
  });
  queueMicrotask(() => {
    fit(field);
    field.focus();
  });
  const buttons = element("div", { class: "row" },
    element("button", { type: "button", class: "quiet", onclick: leave }, "Cancel"),
    element("button", { type: "button", class: "plain", onclick: send }, "Send"));
  return [field, buttons];
}

function versions(chat, node, actions) {
  const all = siblings(chat, node), at = all.indexOf(node);
  if (all.length < 2) return "";
  const turn = (name, label, other) => {
    const button = iconButton(name, label, () => actions.choose(other));
    button.disabled = !other;
    return button;
  };
  return element("span", { class: "versions" },
    turn("before", "The version before", all[at - 1]),
    element("span", { "aria-label": `Version ${at + 1} of ${all.length}` },
            `${at + 1}/${all.length}`),
    turn("after", "The version after", all[at + 1]));
}

// ---- answers ---------------------------------------------------------------------------

function answerView(chat, node, actions) {
  const reasoning = new Growing(), text = new Growing();
  const summary = element("summary", {});
  const fold = element("details", { class: "reasoning", hidden: true }, summary,
                       reasoning.place);
  const calls = element("div", { class: "calls" });
  const waiting = element("p", { class: "waiting" }, element("i"), element("i"),
                          element("i"), element("span", { class: "unseen" }, "Waiting"));
  const error = element("div", { class: "error", hidden: true });
  const foot = element("div", { class: "actions" });
  const place = element("article", { class: "answer", "aria-label": "Answer" }, fold,
                        text.place, calls, waiting, error, foot);
  let drawn = null;

  function show(isRunning) {
    place.setAttribute("aria-busy", String(isRunning));
    fold.hidden = !node.reasoning;
    summary.textContent = isRunning && !node.text ? "Reasoning…" : "Reasoning";
    if (!isRunning || fold.open || !drawn) reasoning.show(node.reasoning ?? "");
    text.show(node.isJson ? fenced(node.text) : node.text);
    waiting.hidden = !isRunning || Boolean(node.text || node.calls?.length);
    const state = JSON.stringify([isRunning, node.calls, node.error, node.finish]);
    if (state === drawn) return;
    drawn = state;
    const views = (node.calls ?? []).map((call) => callView(call));
    calls.replaceChildren(...views, resultsForm(chat, node, actions, isRunning));
    showError(error, node, actions);
    foot.replaceChildren(...(isRunning ? [] : footOf(chat, node, actions)));
  }

  fold.addEventListener("toggle", () => reasoning.show(node.reasoning ?? ""));
  return { place, show };
}

/** JSON as Markdown of code; no JSON has a line of so many backticks. */
function fenced(text) {
  const fence = "`".repeat(20);
  return text && `${fence}json\n${pretty(text)}\n${fence}`;
}

function showError(place, node, actions) {
  place.hidden = !node.error;
  if (!node.error) return;
  const again = () => actions.again(node);
  place.replaceChildren(
    element("p", {}, node.error),
    element("button", { type: "button", class: "plain", onclick: again }, "Try again"));
}

const ENDINGS = {
  length: "The answer ended at the limit of its length.",
  content_filter: "The server withheld the rest.",
  stopped: "Stopped.",
};

function footOf(chat, node, actions) {
  const parts = [versions(chat, node, actions)];
  if (node.text) parts.push(copyButton("Copy this answer", () => node.text));
  if (!node.error) {
    parts.push(iconButton("again", "Answer again", () => actions.again(node)));
  }
  const mixed = siblings(chat, node).some(({ model }) => model !== node.model);
  const told = [mixed ? `${node.model}:` : "", ENDINGS[node.finish],
                figuresOf(node.figures)].filter(Boolean).join(" ");
  if (told) parts.push(element("span", { class: "figures" }, told));
  return parts;
}

function figuresOf(figures) {
  if (!figures) return "";
  const words = [];
  if (figures.tokens) words.push(`${figures.about ? "about " : ""}${figures.tokens} tokens`);
  if (figures.rate) words.push(`${figures.rate.toFixed(1)} tokens/s`);
  if (figures.first) words.push(`first after ${secondsOf(figures.first)}`);
  return words.join(" · ");
}

const secondsOf = (seconds) =>
  seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;

// ---- tools -----------------------------------------------------------------------------

function callView({ name, arguments: given }) {
  return element("div", { class: "call" },
    element("p", {}, icon("tool"), element("b", {}, name || "…")),
    element("pre", { tabindex: "0", "aria-label": "Arguments" }, pretty(given)));
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // it is still being written, or is not JSON
  }
}

/** Fields in which the reader writes what the called tools returned. */
function resultsForm(chat, node, actions, isRunning) {
  const answered = Object.values(chat.nodes).some((one) => one.parent === node.id);
  if (isRunning || answered || !node.calls?.length) return "";
  const fields = node.calls.map(() => element("textarea", { rows: "2", class: "code" }));
  const labels = fields.map((field, i) => element("label", { class: "field" },
    `What ${node.calls[i].name} returns`, field));
  const onsubmit = (event) => {
    event.preventDefault();
    actions.results(node, fields.map(({ value }) => value));
  };
  return element("form", { class: "results", onsubmit }, ...labels,
    element("div", { class: "row" },
      element("button", { class: "plain" }, "Send results")));
}

function toolView(chat, node) {
  return { place: element("article", { class: "tool", "aria-label": "Result of a tool" },
    element("p", {}, icon("tool"), element("b", {}, `${node.name} returned`)),
    element("pre", { tabindex: "0" }, pretty(node.text))), show() {} };
}

// ----------------------------------------------------------------------------------------

const VIEWS = { user: userView, assistant: answerView, tool: toolView };

/** Make the view of a message: its element, and `show(isRunning)` after a change. */
export const viewOf = (chat, node, actions) => VIEWS[node.role](chat, node, actions);
