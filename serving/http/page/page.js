// The chat page of `kvc serve`: the list of chats, the conversation, the composer.
//
//     composer -> chats.js (a tree of messages) -> answers.js -> server.js -> the server
//       messages.js, markdown.js <- pieces of the answer
//
// Everything stays in this browser, except what an answer needs.

import { write } from "./answers.js";
import { add, choose, forget, isKeyOfChat, keep, keepSettings, keptChats, newChat, path }
  from "./chats.js";
import { byId, element, fit, iconButton, isSending, notice } from "./elements.js";
import { viewOf } from "./messages.js";
import { Pictures } from "./pictures.js";
import { business, listModels } from "./server.js";
import { isAnySet, openSettings } from "./settings.js";

const MODEL = "kvc.model";
const NEAR = 48; // pixels from the end at which the reader still counts as at the end

let chats = keptChats();
let chat = newChat();
let models = [];
let views = new Map(); // of the messages of the shown chat, by id
const running = new Map(); // what stops the answer of a chat, by the chat's id

const message = byId("message"), scroll = byId("scroll"), thread = byId("thread");
const pictures = new Pictures(showComposer);

// ---- the conversation ------------------------------------------------------------------

let wasAtEnd = true, height = 0; // before the room for the conversation changed

const isAtEnd = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR;

function toEnd() {
  scroll.scrollTop = scroll.scrollHeight;
  byId("to-end").hidden = wasAtEnd = true;
}

/** Change what is in the conversation; follow its end if the reader is there. */
function following(change) {
  const follow = isAtEnd();
  change();
  if (follow) toEnd();
  else byId("to-end").hidden = isAtEnd();
}

function isRunning(node) {
  return running.get(chat.id)?.node === node;
}

function showThread() {
  const shown = path(chat);
  const wanted = shown.map((node) => {
    if (!views.has(node.id)) views.set(node.id, viewOf(chat, node, actions));
    const view = views.get(node.id);
    view.show(isRunning(node));
    return view.place;
  });
  for (const place of [...thread.children]) if (!wanted.includes(place)) place.remove();
  wanted.forEach((place, i) => {
    if (thread.children[i] !== place) thread.insertBefore(place, thread.children[i] ?? null);
  });
  byId("empty").hidden = shown.length > 0;
  document.body.classList.toggle("is-empty", shown.length === 0);
}

/** Draw messages anew whose versions or other buttons have changed. */
function redraw(nodes) {
  for (const node of nodes) {
    views.get(node.id)?.place.remove();
    views.delete(node.id);
  }
}

const childrenOf = (parent) => Object.values(chat.nodes).filter((one) =>
  one.parent === (parent?.id ?? "root"));

function open(other) {
  chat = other;
  views = new Map();
  thread.setAttribute("aria-live", "off"); // an old chat is not news
  thread.replaceChildren();
  showAll();
  toEnd();
  setTimeout(() => thread.setAttribute("aria-live", "polite"), 500);
  showSide(false);
}

// ---- answering -------------------------------------------------------------------------

/** Let the model answer a message of the shown chat. */
async function answer(parent) {
  const own = chat, stopper = new AbortController();
  const node = add(own, parent, { role: "assistant", text: "", model: byId("model").value });
  redraw(childrenOf(parent));
  running.set(own.id, { node, stopper });
  save(own);
  following(showAll);
  const draw = drawing(own, node);
  await write(own, node, stopper.signal, draw);
  running.delete(own.id);
  if (chats.includes(own)) save(own); // else it was deleted in the meantime
  if (own === chat) following(showAll);
  else showChats();
  look();
}

/** Return what draws an answer, at most once a frame, and less often when it is slow. */
function drawing(own, node) {
  let waits = false;
  const draw = () => {
    const begun = performance.now();
    if (own === chat) following(() => views.get(node.id)?.show(isRunning(node)));
    const rest = Math.min(500, 3 * (performance.now() - begun));
    setTimeout(() => { waits = false; }, rest);
  };
  return () => {
    if (waits || !isRunningIn(own, node)) return;
    waits = true;
    requestAnimationFrame(draw);
  };
}

const isRunningIn = (own, node) => running.get(own.id)?.node === node;

const parentOf = (node) => chat.nodes[node.parent] ?? null;

const actions = {
  edit(node, text) {
    if (running.has(chat.id)) return;
    const { pictures: urls } = node;
    const edited = add(chat, parentOf(node), { role: "user", text, pictures: urls });
    redraw(childrenOf(parentOf(node)));
    answer(edited);
    message.focus();
  },
  again(node) {
    if (running.has(chat.id)) return;
    if (node.error && !node.text) delete chat.nodes[node.id];
    answer(parentOf(node));
    message.focus();
  },
  choose(node) {
    if (running.has(chat.id)) return;
    choose(chat, node);
    save(chat);
    following(showAll);
    views.get(node.id).place.querySelector(".versions button:enabled")
      ?.focus({ preventScroll: true });
  },
  results(node, texts) {
    if (running.has(chat.id)) return;
    let last = node;
    node.calls.forEach(({ id, name }, i) => {
      last = add(chat, last, { role: "tool", call: id, name, text: texts[i] });
    });
    redraw([node]);
    answer(last);
    message.focus();
  },
};

function stop() {
  running.get(chat.id)?.stopper.abort();
}

function send() {
  const text = message.value.trim();
  if (running.has(chat.id) || !models.length || !(text || pictures.urls.length)) return;
  const node = add(chat, path(chat).at(-1), { role: "user", text, pictures: pictures.take() });
  message.value = "";
  fit(message);
  answer(node);
  toEnd();
}

function save(one) {
  const lost = keep(one);
  if (lost) notice(`The browser has no room to keep ${lost}. Delete some chats.`);
  chats = [one, ...chats.filter(({ id }) => id !== one.id)]
    .filter(({ nodes }) => Object.keys(nodes).length)
    .sort((a, b) => b.changed - a.changed);
}

// ---- the list of chats -----------------------------------------------------------------

function showChats() {
  byId("chats").replaceChildren(...chats.map((one) => {
    const current = one.id === chat.id ? { "aria-current": "page" } : {};
    const onclick = () => open(one);
    const title = one.title || "Chat";
    const choice = element("button", { type: "button", class: "chat", ...current, onclick },
                           title);
    if (running.has(one.id)) choice.append(element("i", { class: "busy", role: "img",
                                                          "aria-label": "being answered" }));
    const remove = iconButton("delete", `Delete the chat ${title}`, () => drop([one]));
    return element("li", {}, choice, remove);
  }));
  byId("delete-all").hidden = chats.length < 2;
}

function drop(dropped) {
  for (const one of dropped) {
    running.get(one.id)?.stopper.abort();
    forget(one);
  }
  chats = chats.filter((one) => !dropped.includes(one));
  if (dropped.includes(chat)) open(newChat());
  else showChats();
  const words = dropped.length === 1 ? "Chat deleted" : `${dropped.length} chats deleted`;
  notice(words, { label: "Undo", run() {
    dropped.forEach(save);
    showChats();
  } });
  byId("new").focus();
}

function showSide(isOpen) {
  document.body.classList.toggle("side-is-open", isOpen);
  byId("side-open").setAttribute("aria-expanded", String(isOpen));
  if (isOpen) byId("side-close").focus();
}

// ---- the rest --------------------------------------------------------------------------

function showComposer() {
  const busy = running.has(chat.id);
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
  const something = message.value.trim() !== "" || pictures.urls.length > 0;
  byId("send").disabled = !something || !models.length;
}

function showAll() {
  showThread();
  showChats();
  showComposer();
  byId("settings-mark").hidden = !isAnySet(chat.settings);
  document.title = chat.title ? `${chat.title} - kvc` : "kvc";
}

async function loadModels() {
  const select = byId("model"), trouble = byId("trouble");
  try {
    models = await listModels();
  } catch (error) {
    const again = element("button", { type: "button", class: "plain", onclick: loadModels },
                          "Try again");
    trouble.replaceChildren(element("span", {}, error.message), again);
    trouble.hidden = false;
    return;
  }
  trouble.hidden = true;
  const before = localStorage.getItem(MODEL);
  select.replaceChildren(...models.map(({ id }) => element("option", { value: id }, id)));
  if (!models.length) select.append(element("option", {}, "no model"));
  if (models.some(({ id }) => id === before)) select.value = before;
  select.disabled = models.length < 2;
  modelChosen();
}

function modelChosen() {
  const model = models.find(({ id }) => id === byId("model").value);
  pictures.allow(Boolean(model?.pictures));
  showComposer();
}

let looking = 0;

/** Show how busy the server is, now and from time to time. */
async function look() {
  clearTimeout(looking);
  if (!document.hidden) await showServer();
  looking = setTimeout(look, running.size ? 2000 : 10000);
}

async function showServer() {
  const place = byId("server"), words = [];
  try {
    const { ready, memory, caches, running: runs, waiting } = await business();
    place.className = `server ${ready ? "ready" : "starting"}`;
    if (!ready) words.push("not ready");
    if (memory) words.push(sizeOf(memory));
    else if (caches) words.push(`${sizeOf(caches)} of caches`);
    if (runs || waiting) words.push(`${runs} running`, `${waiting} waiting`);
    else if (runs === 0) words.push("idle");
  } catch {
    place.className = "server away";
    words.push("server not reached");
  }
  byId("server-facts").textContent = words.join(" · ") || "ready";
}

const sizeOf = (nbytes) => nbytes < 1e9
  ? `${Math.round(nbytes / 1e6)} MB` : `${(nbytes / 1e9).toFixed(1)} GB`;

function editSettings() {
  openSettings(chat.settings, (settings) => {
    chat.settings = settings;
    keepSettings(settings);
    save(chat);
    byId("settings-mark").hidden = !isAnySet(settings);
  });
}

// ---- listening -------------------------------------------------------------------------

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
const byTouch = matchMedia("(hover: none) and (pointer: coarse)"); // Enter is a line
message.enterKeyHint = byTouch.matches ? "enter" : "send";
message.addEventListener("keydown", (event) => {
  if (!isSending(event) || byTouch.matches) return;
  event.preventDefault();
  send();
});
message.addEventListener("input", () => {
  fit(message);
  showComposer();
});
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (document.body.classList.contains("side-is-open")) {
    showSide(false);
    byId("side-open").focus();
  } else {
    stop();
  }
});
byId("stop").onclick = () => {
  stop();
  message.focus();
};
byId("new").onclick = () => {
  open(newChat());
  message.focus();
};
byId("delete-all").onclick = () => drop(chats);
byId("side-open").onclick = () => showSide(true);
byId("side-close").onclick = byId("shade").onclick = () => {
  showSide(false);
  byId("side-open").focus();
};
byId("settings-open").onclick = editSettings;
byId("to-end").onclick = toEnd;
byId("model").onchange = () => {
  localStorage.setItem(MODEL, byId("model").value);
  modelChosen();
};
scroll.addEventListener("scroll", () => {
  if (scroll.clientHeight === height) wasAtEnd = isAtEnd();
  byId("to-end").hidden = isAtEnd();
});
new ResizeObserver(() => { // a turned phone, a keyboard, a message of many lines
  if (wasAtEnd) toEnd();
  height = scroll.clientHeight;
}).observe(scroll);
document.addEventListener("visibilitychange", look);
addEventListener("pagehide", () => {
  for (const [id, { node }] of running) {
    node.finish = "stopped";
    keep(chats.find((one) => one.id === id));
  }
});
addEventListener("storage", ({ key }) => {
  if (!isKeyOfChat(key)) return;
  const known = new Map(chats.map((one) => [one.id, one]));
  const own = (id) => id === chat.id || running.has(id);
  chats = keptChats().map((one) => (own(one.id) ? known.get(one.id) ?? one : one));
  showChats();
});

showAll();
loadModels();
look();
if (matchMedia("(hover: hover)").matches) message.focus();
