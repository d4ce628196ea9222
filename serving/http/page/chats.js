// Chats, and where they are kept: one item of localStorage for each.
//
// A chat is a tree of messages. A changed message, or an answer made again, is another
// child of the same parent; `chosen` tells which child the reader sees.

const PREFIX = "kvc.chat.", LAST_SETTINGS = "kvc.settings";
const ROOT = "root";

/** A name that no other message or chat has; `crypto.randomUUID` wants HTTPS. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newChat() {
  const settings = parsed(localStorage.getItem(LAST_SETTINGS)) ?? {};
  return { id: newId(), title: "", changed: Date.now(), settings, nodes: {}, chosen: {} };
}

// ---- the tree --------------------------------------------------------------------------

/** Return the messages that the reader sees, first to last. */
export function path(chat) {
  const shown = [];
  for (let id = chat.chosen[ROOT]; chat.nodes[id]; id = chat.chosen[id]) {
    shown.push(chat.nodes[id]);
  }
  return shown;
}

export function siblings(chat, node) {
  return Object.values(chat.nodes).filter((one) => one.parent === node.parent);
}

/** Add a message after another one, or as the first, and choose it. */
export function add(chat, parent, message) {
  const node = { ...message, id: newId(), parent: parent?.id ?? ROOT };
  chat.nodes[node.id] = node;
  choose(chat, node);
  if (!chat.title && node.role === "user") chat.title = titleOf(node);
  return node;
}

export function choose(chat, node) {
  chat.chosen[node.parent] = node.id;
  chat.changed = Date.now();
}

function titleOf(node) {
  const words = node.text.trim().replace(/\s+/g, " ");
  if (!words) return "Pictures";
  return words.length > 60 ? `${words.slice(0, 59)}…` : words;
}

// ---- what the server is sent -----------------------------------------------------------

/** Return the messages before an answer in the form of OpenAI's HTTP. */
export function messagesBefore(chat, node) {
  const messages = [];
  const before = path(chat);
  for (const one of before.slice(0, before.indexOf(node))) messages.push(wire(one));
  const system = chat.settings.system?.trim();
  return system ? [{ role: "system", content: system }, ...messages] : messages;
}

function wire(node) {
  if (node.role === "tool") {
    return { role: "tool", tool_call_id: node.call, content: node.text };
  }
  if (node.role === "assistant") return wireAnswer(node);
  if (!node.pictures?.length) return { role: "user", content: node.text };
  const parts = node.pictures.map((url) => ({ type: "image_url", image_url: { url } }));
  if (node.text) parts.push({ type: "text", text: node.text });
  return { role: "user", content: parts };
}

function wireAnswer({ text, calls }) {
  if (!calls?.length) return { role: "assistant", content: text };
  const told = calls.map(({ id, name, arguments: given }) =>
    ({ id, type: "function", function: { name, arguments: given } }));
  return { role: "assistant", content: text || null, tool_calls: told };
}

// ---- keeping ---------------------------------------------------------------------------

const parsed = (text) => {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
};

const isChat = (one) => typeof one?.id === "string" && typeof one.title === "string"
  && [one.nodes, one.chosen, one.settings].every((part) => part && typeof part === "object");

/** Return all chats that this browser keeps, the last changed first. */
export function keptChats() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
  const chats = keys.map((key) => parsed(localStorage.getItem(key))).filter(isChat);
  return chats.sort((a, b) => b.changed - a.changed);
}

/** Keep a chat, without its pictures if need be; return what had no room, "" if all had. */
export function keep(chat) {
  if (!Object.keys(chat.nodes).length) return "";
  if (stored(PREFIX + chat.id, chat)) return "";
  const nodes = Object.entries(chat.nodes).map(([id, { pictures, ...rest }]) =>
    [id, pictures?.length ? { ...rest, lost: pictures.length } : rest]);
  const bare = { ...chat, nodes: Object.fromEntries(nodes) };
  return stored(PREFIX + chat.id, bare) ? "the pictures of this chat" : "this chat";
}

export function keepSettings(settings) {
  stored(LAST_SETTINGS, settings);
}

function stored(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false; // the browser's limit, or storage is not allowed
  }
}

export function forget(chat) {
  localStorage.removeItem(PREFIX + chat.id);
}

export const isKeyOfChat = (key) => key === null || key.startsWith(PREFIX);
