// An answer while it is being written: pieces of the stream become fields of a message.

import { messagesBefore } from "./chats.js";
import { answer } from "./server.js";
import { bodyOf } from "./settings.js";

/** Write the answer into `node`; call `changed` after each piece. Never throws. */
export async function write(chat, node, signal, changed) {
  const clock = { begun: performance.now(), first: 0, last: 0, pieces: 0 };
  const messages = messagesBefore(chat, node);
  const body = { model: node.model, messages, ...bodyOf(chat.settings) };
  node.isJson = "response_format" in body;
  try {
    for await (const chunk of answer(body, signal)) {
      take(node, chunk, clock);
      changed();
    }
  } catch (error) {
    if (signal.aborted) node.finish = "stopped";
    else node.error = error.message;
  }
  node.figures = figures(clock, node.usage);
  delete node.usage;
}

function take(node, chunk, clock) {
  if (chunk.usage) node.usage = chunk.usage;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { content, tool_calls: calls, ...rest } = choice.delta ?? {};
  const reasoning = rest.reasoning_content ?? rest.reasoning;
  if (content || reasoning || calls?.length) {
    clock.last = performance.now();
    clock.first ||= clock.last;
    clock.pieces += 1;
  }
  if (content) node.text += content;
  if (reasoning) node.reasoning = (node.reasoning ?? "") + reasoning;
  for (const call of calls ?? []) takeCall(node, call);
  if (choice.finish_reason) node.finish = choice.finish_reason;
}

function takeCall(node, { index = 0, id, function: told = {} }) {
  node.calls ??= [];
  let call = node.calls.find((one) => one.index === index);
  if (!call) {
    call = { index, id: `call_${index}`, name: "", arguments: "" };
    node.calls.push(call);
  }
  if (id) call.id = id;
  call.name += told.name ?? "";
  call.arguments += told.arguments ?? "";
}

function figures({ begun, first, last, pieces }, usage) {
  if (!first) return null;
  const tokens = usage?.completion_tokens ?? pieces, seconds = (last - first) / 1000;
  const rate = tokens > 1 && seconds > 0.02 ? (tokens - 1) / seconds : 0;
  return { first: (first - begun) / 1000, tokens, rate, about: !usage };
}
