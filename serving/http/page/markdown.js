// Markdown of answers, as elements: paragraphs, headings, lists, quotes, code, tables.
//
// In: text of a model, which may be anything, and may end anywhere. Out: elements whose
// text is in text nodes. Links lead to the web and to mail only; pictures of other hosts
// become links. Time grows with the length of the text, whatever is in it.

import { copyButton, element } from "./elements.js";

const MAX_DEPTH = 8;

// ---- blocks ----------------------------------------------------------------------------

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*))?$/;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(?:(\s+)|$)/;
const DELIMITER = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const isBlank = (line) => line.trim() === "";
const indentOf = (line) => line.length - line.trimStart().length;

function startsBlock(lines, at) {
  const line = lines[at];
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line)
    || /^ {0,3}>/.test(line) || startsItem(line) || startsTable(lines, at);
}

function startsItem(line) {
  const item = ITEM.exec(line);
  return item !== null && item[1].length < 4 && item[0].length < line.length;
}

function startsTable(lines, at) {
  return at + 1 < lines.length && lines[at].includes("|") && lines[at + 1].includes("-")
    && DELIMITER.test(lines[at + 1])
    && cellsOf(lines[at]).length === cellsOf(lines[at + 1]).length;
}

/** Return the blocks of some lines; each tells from which line to which it goes. */
export function blocksOf(lines, depth = 0) {
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const block = blockAt(lines, at, depth);
    blocks.push({ ...block, from: at });
    at = block.to;
  }
  return blocks;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line)) return codeAt(lines, at);
  const heading = HEADING.exec(line);
  if (heading) return headingOf(heading, at);
  if (RULE.test(line)) return { kind: "rule", to: at + 1 };
  if (depth < MAX_DEPTH && /^ {0,3}>/.test(line)) return quoteAt(lines, at, depth);
  if (depth < MAX_DEPTH && startsItem(line)) return listAt(lines, at, depth);
  if (startsTable(lines, at)) return tableAt(lines, at);
  return paragraphAt(lines, at);
}

function codeAt(lines, at) {
  const [, indent, fence, language] = FENCE.exec(lines[at]);
  const isEnd = (line) => {
    const text = line.trim();
    return text.length >= fence.length && text === fence[0].repeat(text.length);
  };
  let to = at + 1;
  while (to < lines.length && !isEnd(lines[to])) to += 1;
  const inside = lines.slice(at + 1, to).map((line) =>
    line.slice(Math.min(indent.length, indentOf(line))));
  const text = inside.join("\n");
  return { kind: "code", language: language.trim(), text, to: Math.min(to + 1, lines.length) };
}

function headingOf([, marks, text = ""], at) {
  return { kind: "heading", level: marks.length, text: text.replace(/\s+#+\s*$/, ""),
           to: at + 1 };
}

function quoteAt(lines, at, depth) {
  let to = at;
  while (to < lines.length && /^ {0,3}>/.test(lines[to])) to += 1;
  const inside = lines.slice(at, to).map((line) => line.replace(/^ {0,3}> ?/, ""));
  return { kind: "quote", blocks: blocksOf(inside, depth + 1), to };
}

function listAt(lines, at, depth) {
  const [, outer, marker] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(marker), items = [];
  let to = at;
  while (to < lines.length && continuesList(lines[to], outer.length, marker)) {
    const item = itemAt(lines, to);
    items.push(blocksOf(item.lines, depth + 1));
    to = item.to;
    const next = nextText(lines, to);
    if (next < lines.length && continuesList(lines[next], outer.length, marker)) to = next;
  }
  return { kind: "list", ordered, start: parseInt(marker, 10), items, to };
}

function continuesList(line, outer, marker) {
  const item = ITEM.exec(line);
  if (!item || RULE.test(line) || Math.abs(item[1].length - outer) > 1) return false;
  return /\d/.test(marker) ? /\d/.test(item[2]) : item[2] === marker;
}

function nextText(lines, at) {
  while (at < lines.length && isBlank(lines[at])) at += 1;
  return at;
}

function itemAt(lines, at) {
  const [all, outer, marker, space = " "] = ITEM.exec(lines[at]);
  const wide = outer.length + marker.length + (space.length > 4 ? 1 : space.length);
  const inside = [lines[at].slice(Math.min(wide, all.length))];
  let to = at + 1;
  for (; to < lines.length; to += 1) {
    const line = lines[to];
    if (isBlank(line)) {
      const next = nextText(lines, to);
      if (next === lines.length || indentOf(lines[next]) < outer.length + 2) break;
      inside.push("");
    } else if (indentOf(line) >= outer.length + 2) {
      inside.push(line.slice(Math.min(wide, indentOf(line))));
    } else if (ITEM.test(line) || startsBlock(lines, to)) {
      break;
    } else {
      inside.push(line.trimStart());
    }
  }
  return { lines: inside, to };
}

function tableAt(lines, at) {
  const aligns = cellsOf(lines[at + 1]).map((cell) =>
    ({ ":-": "start", "-:": "end", "::": "middle" })[cell[0] + cell.at(-1)] ?? "start");
  let to = at + 2;
  while (to < lines.length && lines[to].includes("|") && !isBlank(lines[to])) to += 1;
  const rows = lines.slice(at + 2, to).map(cellsOf);
  return { kind: "table", head: cellsOf(lines[at]), aligns, rows, to };
}

function cellsOf(line) {
  const cells = [""];
  const inside = line.trim().replace(/^\|/, "");
  for (const part of inside.match(/\\.|`[^`]*`|\||[^\\`|]+|./gs) ?? []) {
    if (part === "|") cells.push("");
    else cells[cells.length - 1] += part === "\\|" ? "|" : part;
  }
  if (cells.length > 1 && isBlank(cells.at(-1))) cells.pop();
  return cells.map((cell) => cell.trim());
}

function paragraphAt(lines, at) {
  let to = at + 1;
  while (to < lines.length && !isBlank(lines[to]) && !startsBlock(lines, to)) to += 1;
  const text = lines.slice(at, to).map((line) => line.trimStart()).join("\n").trimEnd();
  return { kind: "paragraph", text, to };
}

// ---- elements of blocks ----------------------------------------------------------------

const DRAW = {
  code: drawCode,
  heading: ({ level, text }) => element(`h${Math.min(level + 2, 6)}`, {}, ...inline(text)),
  list: ({ ordered, start, items }) => element(
    ordered ? "ol" : "ul", ordered && start !== 1 ? { start } : {},
    ...items.map((blocks) => element("li", {}, ...drawItem(blocks)))),
  paragraph: ({ text }) => element("p", {}, ...inline(text)),
  quote: ({ blocks }) => element("blockquote", {}, ...blocks.map(draw)),
  rule: () => element("hr"),
  table: drawTable,
};

export const draw = (block) => DRAW[block.kind](block);

function drawItem(blocks) {
  const [first, ...rest] = blocks;
  if (first?.kind !== "paragraph" || rest.some(({ kind }) => kind === "paragraph")) {
    return blocks.map(draw);
  }
  return [...inline(first.text), ...rest.map(draw)];
}

function drawCode({ language, text }) {
  const word = language.split(/\s/)[0].slice(0, 30);
  const head = element("div", { class: "code-head" }, element("span", {}, word || "text"),
                       copyButton("Copy the code", () => text));
  const label = `Code${word ? ` in ${word}` : ""}`;
  const code = element("pre", { tabindex: "0", "aria-label": label },
                       element("code", {}, text));
  return element("div", { class: "code-block" }, head, code);
}

function drawTable({ head, aligns, rows }) {
  const row = (cells, tag) => element("tr", {}, ...aligns.map((align, i) =>
    element(tag, { class: align }, ...inline(cells[i] ?? ""))));
  const table = element("table", {},
    element("thead", {}, row(head, "th")),
    element("tbody", {}, ...rows.map((cells) => row(cells, "td"))));
  return element("div", { class: "table", tabindex: "0", role: "group",
                          "aria-label": "Table" }, table);
}

// ---- inside a line ---------------------------------------------------------------------

const LINK = /(!?)\[([^[\]\n]{0,400})\]\(\s{0,9}<?([^\s()<>]{1,2000}(?:\([^\s()<>]{0,200}\)[^\s()<>]{0,200}){0,4})>?(?:\s{1,9}"[^"\n]{0,300}")?\s{0,9}\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`|\\^{}]{1,2000}/y;
const MARK = /(\*\*\*|\*\*|\*|~~|__|_)/y;
const TAGS = { "**": ["strong"], "__": ["strong"], "*": ["em"], _: ["em"], "~~": ["del"],
               "***": ["strong", "em"] };
const SAFE = new Set(["http:", "https:", "mailto:"]);
const isWord = (character) => character !== undefined && /[\p{L}\p{N}_]/u.test(character);
const isSpace = (character) => character === undefined || /\s/.test(character);

/** Return the nodes of a text: marks, code, links, and breaks of lines. */
export function inline(text) {
  const marked = { text, codes: codesOf(text), linked: false };
  return nodesOf(marked, 0, text.length, 0);
}

/** Return where code is: pairs of begin and end, marks included. */
function codesOf(text) {
  const codes = new Map(), runs = new Map();
  const all = [...text.matchAll(/\\`|`+/g)].filter(([run]) => run[0] === "`");
  for (const { 0: run, index } of all) {
    if (!runs.has(run.length)) runs.set(run.length, []);
    runs.get(run.length).push(index);
  }
  let end = 0;
  const used = new Map();
  for (const { 0: run, index } of all) {
    if (index < end) continue;
    const places = runs.get(run.length);
    let next = used.get(run.length) ?? 0;
    while (next < places.length && places[next] <= index) next += 1;
    used.set(run.length, next);
    if (next === places.length) continue;
    end = places[next] + run.length;
    codes.set(index, { end, size: run.length });
  }
  return codes;
}

function nodesOf(marked, from, to, depth) {
  const nodes = [], dead = new Set();
  let plain = "";
  const push = (...made) => {
    if (plain) nodes.push(plain);
    plain = "";
    nodes.push(...made);
  };
  for (let at = from; at < to;) {
    const found = nodeAt(marked, at, to, depth, dead);
    if (found.nodes) push(...found.nodes);
    else plain += found.plain;
    at = found.to;
  }
  push();
  return nodes;
}

const TURNS = /[\\`[!*_~\nh]/g; // characters at which something else than text may begin

function nodeAt(marked, at, to, depth, dead) {
  const { text } = marked, character = text[at];
  const found = special(marked, at, to, depth, dead, character);
  if (found) return found;
  TURNS.lastIndex = at + 1;
  const next = Math.min(TURNS.exec(text)?.index ?? to, to);
  return { plain: text.slice(at, next), to: next };
}

function special(marked, at, to, depth, dead, character) {
  const { text } = marked;
  switch (character) {
    case "\n":
      return { nodes: [element("br")], to: at + 1 };
    case "\\":
      return /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "") && at + 1 < to
        ? { plain: text[at + 1], to: at + 2 } : null;
    case "`":
      return codeAtMark(marked, at, to);
    case "[":
    case "!":
      return linkAt(marked, at, to, depth);
    case "h":
      return addressAt(marked, at, to);
    default:
      return "*_~".includes(character) ? markAt(marked, at, to, depth, dead) : null;
  }
}

function codeAtMark({ text, codes }, at, to) {
  const code = codes.get(at);
  if (!code || code.end > to) {
    const [run] = /`+/y.exec(text.slice(at, Math.min(to, at + 1000))) ?? ["`"];
    return { plain: run, to: at + run.length };
  }
  let inside = text.slice(at + code.size, code.end - code.size).replaceAll("\n", " ");
  if (/^ .*[^ ].* $/.test(inside)) inside = inside.slice(1, -1);
  return { nodes: [element("code", {}, inside)], to: code.end };
}

function linkAt(marked, at, to, depth) {
  LINK.lastIndex = at;
  const found = marked.linked ? null : LINK.exec(marked.text);
  if (!found || LINK.lastIndex > to) return null;
  const [all, , words, address] = found;
  const url = safeUrl(address);
  if (!url) return { plain: all, to: at + all.length };
  const inside = depth < MAX_DEPTH
    ? inlineOfLink(words || address) : [words || address];
  return { nodes: [anchor(url, inside)], to: at + all.length };
}

function inlineOfLink(words) {
  return nodesOf({ text: words, codes: codesOf(words), linked: true }, 0, words.length,
                 MAX_DEPTH - 1);
}

function addressAt({ text, linked }, at, to) {
  if (linked || isWord(text[at - 1])) return null;
  ADDRESS.lastIndex = at;
  let [address] = ADDRESS.exec(text) ?? [""];
  address = address.slice(0, to - at).replace(/[.,;:!?*_~]+$/, "");
  if (address.endsWith(")") && !address.includes("(")) address = address.slice(0, -1);
  const url = address && safeUrl(address);
  return url ? { nodes: [anchor(url, [address])], to: at + address.length } : null;
}

function safeUrl(address) {
  try {
    const url = new URL(address);
    return SAFE.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

const anchor = (href, nodes) =>
  element("a", { href, target: "_blank", rel: "noopener noreferrer" }, ...nodes);

function markAt(marked, at, to, depth, dead) {
  const { text } = marked;
  MARK.lastIndex = at;
  const [mark] = MARK.exec(text) ?? [];
  if (!mark) return null;
  const end = at + mark.length;
  const opens = end < to && !isSpace(text[end]) && depth < MAX_DEPTH && !dead.has(mark)
    && !(mark[0] === "_" && isWord(text[at - 1]));
  const close = opens ? closeOf(marked, mark, end, to) : -1;
  if (opens && close < 0) dead.add(mark);
  if (close < 0) return { plain: mark, to: end };
  const nodes = nodesOf(marked, end, close, depth + 1);
  const made = TAGS[mark].reduceRight((inside, tag) => [element(tag, {}, ...inside)], nodes);
  return { nodes: made, to: close + mark.length };
}

/** Return where a mark is closed before an end; -1 if nowhere. */
function closeOf({ text, codes }, mark, from, to) {
  for (let at = from; at < to;) {
    const code = codes.get(at);
    if (code) {
      at = code.end;
    } else if (text[at] === "\\") {
      at += 2;
    } else if (text[at] !== mark[0]) {
      at += 1;
    } else {
      const size = runAt(text, at, to);
      if (closes(text, at, size, mark, from)) return at + size - mark.length;
      at += size;
    }
  }
  return -1;
}

function runAt(text, at, to) {
  let end = at;
  while (end < to && text[end] === text[at]) end += 1;
  return end - at;
}

function closes(text, at, size, mark, from) {
  if (at === from || isSpace(text[at - 1])) return false;
  if (mark[0] === "_" && isWord(text[at + size])) return false;
  return size === mark.length || (size === 3 && mark[0] !== "~");
}
