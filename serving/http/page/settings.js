// Settings of a chat: a dialog of fields, and what of them goes into a request.

import { byId, fit } from "./elements.js";

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
const form = () => byId("settings").querySelector("form");
const fields = () => [...form().elements].filter((field) => field.name);

/** Show the dialog; call back with each change that makes sense. */
export function openSettings(settings, changed) {
  for (const field of fields()) {
    field.value = settings[field.name] ?? "";
    judge(field);
    field.oninput = () => {
      if (!judge(field)) return;
      settings = { ...settings, [field.name]: field.value };
      changed(settings);
    };
  }
  byId("settings-clear").onclick = () => {
    for (const field of fields()) {
      field.value = "";
      judge(field);
    }
    settings = {};
    changed(settings);
  };
  byId("settings").showModal();
  for (const area of form().querySelectorAll("textarea")) fit(area);
}

/** Say beside a field what is wrong with it; return whether nothing is. */
function judge(field) {
  const wrong = wrongWith(field);
  let told = field.parentElement.querySelector(".wrong");
  if (!told) {
    told = document.createElement("span");
    told.className = "wrong";
    told.id = `wrong-${field.name}`;
    told.setAttribute("role", "status");
    field.after(told);
    field.setAttribute("aria-describedby", told.id);
  }
  told.textContent = wrong;
  field.setAttribute("aria-invalid", String(wrong !== ""));
  return wrong === "";
}

function wrongWith(field) {
  const text = field.value.trim();
  if (text === "") return "";
  if (field.dataset.json) return wrongJson(text, field.dataset.json);
  return NUMBERS.includes(field.name) ? wrongNumber(Number(text), field.dataset) : "";
}

function wrongNumber(value, { low, high, whole }) {
  if (Number.isNaN(value)) return "not a number";
  if (whole !== undefined && !Number.isSafeInteger(value)) return "not a whole number";
  if (value < Number(low)) return `less than ${low}`;
  return high !== undefined && value > Number(high) ? `more than ${high}` : "";
}

function wrongJson(text, kind) {
  try {
    const value = JSON.parse(text);
    const fits = kind === "list" ? Array.isArray(value)
      : typeof value === "object" && value !== null && !Array.isArray(value);
    return fits ? "" : `not a JSON ${kind}`;
  } catch (error) {
    return `not JSON: ${error.message}`;
  }
}

export const isAnySet = (settings) =>
  Object.values(settings).some((value) => String(value).trim() !== "");

/** Return the part of a request's body that settings are for. */
export function bodyOf(settings) {
  const body = {};
  for (const name of NUMBERS) {
    const text = String(settings[name] ?? "").trim();
    if (text !== "" && !Number.isNaN(Number(text))) body[name] = Number(text);
  }
  const schema = json(settings.schema);
  if (schema) {
    const told = { name: "answer", strict: true, schema };
    body.response_format = { type: "json_schema", json_schema: told };
  }
  const tools = json(settings.tools);
  if (tools?.length) body.tools = tools;
  const given = json(settings.arguments);
  if (given) body.chat_template_kwargs = given;
  return body;
}

function json(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null; // empty: the dialog keeps nothing that is not JSON
  }
}
