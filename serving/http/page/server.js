// The server: models, answers as they come, and how busy it is. Errors have the server's
// own sentence.

import { byId } from "./elements.js";

const KEY = "kvc.key";

export class ServerError extends Error {
  constructor(sentence, status = 0) {
    super(sentence);
    this.status = status;
  }
}

// ---- requests --------------------------------------------------------------------------

function headers(more = {}) {
  const key = sessionStorage.getItem(KEY);
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

/** Ask the server; if it wants a key, ask the user for one, and ask again. */
async function ask(path, options = {}) {
  for (;;) {
    const response = await reach(path, options);
    if (response.ok) return response;
    const error = await refusal(response);
    if (response.status !== 401 || !(await askForKey(error.message))) throw error;
    options.signal?.throwIfAborted();
  }
}

async function reach(path, options) {
  try {
    return await fetch(path, { ...options, headers: headers(options.headers) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached. Is it still running?");
  }
}

async function refusal(response) {
  const text = await response.text();
  let told = null;
  try {
    told = JSON.parse(text);
  } catch {
    // not JSON: a proxy's page, or nothing
  }
  const fallback = `The server answered ${response.status} ${response.statusText}`.trim();
  return new ServerError(sentenceOf(told) || text.slice(0, 500).trim() || fallback,
                         response.status);
}

function sentenceOf(told) {
  const error = told?.error ?? told?.detail ?? told;
  if (typeof error === "string") return error;
  return typeof error?.message === "string" ? error.message : "";
}

let asking = null;

function askForKey(sentence) {
  asking ??= new Promise((done) => {
    const dialog = byId("key"), field = byId("key-value");
    byId("key-sentence").textContent = sentence;
    field.value = "";
    dialog.returnValue = "";
    byId("key-cancel").onclick = () => dialog.close();
    dialog.addEventListener("close", () => {
      asking = null;
      const key = field.value.trim();
      const given = dialog.returnValue === "use" && key !== "";
      if (given) sessionStorage.setItem(KEY, key);
      field.value = "";
      done(given);
    }, { once: true });
    dialog.showModal();
    field.focus();
  });
  return asking;
}

// ---- models ----------------------------------------------------------------------------

export async function listModels() {
  const response = await ask("v1/models");
  const { data = [] } = await response.json();
  return data.map((model) => ({ id: String(model.id), pictures: takesPictures(model) }));
}

function takesPictures(model) {
  const told = [model.input_modalities, model.architecture?.input_modalities,
                model.capabilities].filter(Array.isArray).flat();
  return ["image", "vision", "multimodal"].some((word) => told.includes(word));
}

// ---- answers ---------------------------------------------------------------------------

/** Yield what the server sends for a chat, one object of JSON after the other. */
export async function* answer(body, signal) {
  const told = { include_usage: true, continuous_usage_stats: true };
  const whole = { ...body, stream: true, stream_options: told };
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(whole),
    signal,
  });
  for await (const text of events(response.body)) {
    if (text === "[DONE]") return;
    const chunk = parsed(text);
    if (chunk.error) throw new ServerError(sentenceOf(chunk) || "The answer failed");
    yield chunk;
  }
  throw new ServerError("The connection ended before the answer did.");
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new ServerError(`The server sent what is not JSON: ${text.slice(0, 200)}`);
  }
}

/** Yield the data of server-sent events, wherever the stream is cut into pieces. */
export async function* events(stream) {
  let data = [];
  for await (const line of linesOf(stream)) {
    if (line === "") {
      if (data.length) yield data.join("\n");
      data = [];
    } else if (line.startsWith("data:")) {
      data.push(line.slice(line[5] === " " ? 6 : 5));
    }
  }
  if (data.length) yield data.join("\n");
}

async function* linesOf(stream) {
  const reader = stream.getReader(), decoder = new TextDecoder();
  let rest = [];
  try {
    for (;;) {
      const { done, value } = await read(reader);
      const text = done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = text.split("\n");
      for (const line of lines.slice(0, -1)) {
        yield [...rest, line].join("").replace(/\r$/, "");
        rest = [];
      }
      rest.push(lines.at(-1));
      if (done) break;
    }
    yield rest.join("");
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The connection broke before the answer ended.");
  }
}

// ---- how busy it is --------------------------------------------------------------------

const FACTS = {
  memory: /^process_resident_memory_bytes$/,
  caches: /^kvc_cache_bytes$/,
  running: /^kvc_running$/,
  waiting: /^kvc_waiting$/,
};

/** Return whether the server is `ready`, and as far as it tells more: bytes of `memory` and
 * of `caches`, how many requests are `running` and `waiting`. */
export async function business() {
  const response = await fetch("metrics", { headers: headers() });
  if (!response.ok) return { ready: (await fetch("health")).ok }; // that needs no key
  const facts = { ready: true };
  for (const line of (await response.text()).split("\n")) {
    const [, name, value] = /^([\w:]+)(?:\{.*\})? ([-+.\deE]+)/.exec(line) ?? [];
    for (const [fact, pattern] of Object.entries(FACTS)) {
      if (name && pattern.test(name)) facts[fact] = (facts[fact] ?? 0) + Number(value);
    }
  }
  return facts;
}
