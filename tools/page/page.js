// The page of a bundle: draws what the JSON in the element `content` says.
//
// Every name in it may come from a stranger's file, so that text becomes text nodes only:
// `element` makes all elements, and libraries are given elements, never HTML.
"use strict";

const content = JSON.parse(document.getElementById("content").textContent);
const report = content.report;
const byId = (id) => document.getElementById(id);

// ---- words ----------------------------------------------------------------------------

function size(nbytes) {
  let value = nbytes, unit = "B";
  for (unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (value < 999.5) break;
    value /= 1000;
  }
  if (unit === "B") return `${nbytes} B`;
  return `${value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0)} ${unit}`;
}

const count = (number) => number.toLocaleString("en-US");
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
const percent = (part, whole) => `${(whole ? (100 * part) / whole : 0).toFixed(1)}%`;
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const bare = (op) => op.replace(/^(kvc|aten)::/, "");

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== ""));
  return made;
}

// ---- colours --------------------------------------------------------------------------

const PALETTE = ["#3b76c9", "#2f9077", "#c77b2b", "#8a5cc2", "#c24d63", "#5a8f2e",
                 "#b0559b", "#2a8aa5", "#9a7a1d"];
const OTHER = "#7d8796";

function colours(names) {
  const known = new Map(names.map((name, i) => [name, PALETTE[i] || OTHER]));
  return (name) => known.get(name) || OTHER;
}

function drawLegend(list, names, colour) {
  const shown = names.slice(0, PALETTE.length).map((name) => [bare(name), colour(name)]);
  if (names.length > PALETTE.length) shown.push(["others", OTHER]);
  list.replaceChildren(...shown.map(([name, one]) =>
    element("li", {}, element("i", { style: `background:${one}` }), name)));
}

const backends = [...new Set(content.code.flatMap((c) => c.steps.map((s) => s.backend)))]
  .filter((name) => name).sort();
const colourOfBackend = colours(backends);

function themed() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  return { ink: value("--ink"), soft: value("--soft"), line: value("--line"),
           paper: value("--paper"), panel: value("--panel"), mark: value("--mark") };
}

function tooltip() {
  const theme = themed();
  return { confine: true, backgroundColor: theme.paper, borderColor: theme.line,
           textStyle: { color: theme.ink } };
}

function tip(title, ...lines) {
  const rows = lines.filter((line) => line).map((line) => element("div", {}, line));
  return element("div", { class: "tip" }, element("b", {}, title), ...rows);
}

// ---- overview -------------------------------------------------------------------------

function drawOverview() {
  const cost = content.cost;
  const whole = report.file.nbytes + sum(report.size.data_files.map((f) => f.nbytes));
  const steps = content.code.flatMap((c) => c.steps).filter((s) => s.computes);
  const inside = steps.filter((step) => step.backend).length;
  const copied = report.updates.filter((update) => update.verdict === "COPY");
  const sizes = Object.entries(cost.sizes).map(([name, n]) => `${name} = ${count(n)}`);
  const at = sizes.length ? ` at ${sizes.join(", ")}` : "";
  byId("cost").textContent = `${size(whole)} on disk, ${size(content.total)} in memory` +
    `${at}, ${percent(inside, steps.length)} of instructions run by backends.`;
  const cards = [
    [size(whole), "bundle" + (report.size.data_files.length ? " and data files" : "")],
    [size(cost.weights), "weights, pages of files"],
    ...(cost.packed ? [[size(cost.packed), "weights as a library packs them"]] : []),
    [size(cost.states), cost.tokens
      ? `states of a session with ${plural(cost.tokens, "token")}, ${size(cost.token)} each`
      : "states of a session"],
    [size(cost.scratch + cost.backends), "scratch while a method runs"],
    [size(cost.process), "about: the process itself"],
    copied.length
      ? [`${copied.length} of ${report.updates.length}`, "writes of states copy", "bad"]
      : [plural(report.updates.length, "write"), "of states, all in place", "good"],
  ];
  byId("cards").replaceChildren(...cards.map(([number, text, kind]) =>
    element("div", { class: `card ${kind || ""}` }, element("b", {}, number),
            element("span", {}, text))));
  const titles = ["method", "takes", "returns", "instructions", "run by"];
  const head = element("tr", {}, ...titles.map((t) => element("th", { scope: "col" }, t)));
  const rows = report.methods.map((method) => {
    const typed = (one) => (one.name ? `${one.name}: ${one.type}` : one.type);
    const cells = [
      method.name + (method.role && method.role !== method.name ? ` (${method.role})` : ""),
      method.inputs.map(typed).join(", ") || "nothing",
      method.outputs.map(typed).join(", ") || "nothing",
      count(method.computing) + (method.instructions > method.computing
        ? ` (${count(method.instructions)} with views)` : ""),
      runners(method),
    ];
    return element("tr", {}, ...cells.map((text, i) =>
      element("td", { "data-title": titles[i] }, text)));
  });
  byId("methods").replaceChildren(element("thead", {}, head),
                                  element("tbody", {}, ...rows));
  const file = report.file;
  byId("origin").textContent = `Recipe ${file.recipe}, kvc ${file.kvc_version}, torch ` +
    `${file.torch_version}, digest ${file.digest}`;
}

function runners(method) {
  const left = sum(Object.values(method.left));
  const own = [...new Set(method.backends)];
  if (left) own.push(`PyTorch: ${count(left)}`);
  return own.join(", ");
}

// ---- memory plan ----------------------------------------------------------------------

const arenas = [...content.arenas].sort((a, b) => b.nbytes - a.nbytes);
let arenaChart;

function drawArena() {
  const arena = arenas[byId("arena").value];
  if (!arena) {
    byId("memory").hidden = true;
    return;
  }
  const totals = new Map();
  for (const one of arena.regions) {
    totals.set(one.op, (totals.get(one.op) || 0) + one.nbytes);
  }
  const ops = [...totals.keys()].sort((a, b) => totals.get(b) - totals.get(a));
  const colour = colours(ops);
  drawLegend(byId("arena-ops"), ops, colour);
  const over = arena.peak ? percent(arena.nbytes - arena.peak, arena.peak) : "0.0%";
  byId("arena-facts").textContent = `${size(arena.nbytes)} planned, at most ` +
    `${size(arena.peak)} alive at one time: ${over} more; ` +
    `${plural(arena.regions.length, "value")}, ` +
    `${plural(arena.steps, "instruction")} with views`;
  const theme = themed();
  arenaChart ||= echarts.init(byId("arena-chart"));
  byId("arena-chart").setAttribute("aria-label",
    `Memory plan of ${arena.name}. ${byId("arena-facts").textContent}`);
  const axis = { axisLine: { lineStyle: { color: theme.line } },
                 axisLabel: { color: theme.soft }, nameTextStyle: { color: theme.soft },
                 splitLine: { lineStyle: { color: theme.line, opacity: 0.5 } } };
  arenaChart.setOption({
    animation: false,
    grid: { left: 74, right: 24, top: 24, bottom: 64 },
    tooltip: { ...tooltip(), formatter: ({ data, seriesType }) =>
      seriesType === "custom" ? regionTip(arena, data.value[4]) : "" },
    xAxis: { ...axis, type: "value", min: 0, max: arena.steps, name: "instruction",
             nameLocation: "middle", nameGap: 26, minInterval: 1 },
    yAxis: { ...axis, type: "value", min: 0, max: arena.nbytes,
             axisLabel: { color: theme.soft, formatter: (n) => size(Math.round(n)) } },
    dataZoom: [{ type: "inside", xAxisIndex: 0, filterMode: "none" },
               { type: "inside", yAxisIndex: 0, filterMode: "none", zoomOnMouseWheel: "shift" },
               { type: "slider", xAxisIndex: 0, filterMode: "none", height: 16, bottom: 8,
                 borderColor: theme.line, textStyle: { color: theme.soft } }],
    series: [{
      type: "custom",
      clip: true,
      encode: { x: [0, 1], y: [2, 3] },
      renderItem: drawRegion(theme.paper),
      data: arena.regions.map((one, i) => ({
        value: [one.first, one.last + 1, one.offset, one.offset + one.nbytes, i],
        itemStyle: { color: colour(one.op) } })),
      markLine: { silent: true, symbol: "none", lineStyle: { color: theme.mark },
                  label: { color: theme.mark, position: "insideEndTop",
                           formatter: "most alive at one time" },
                  data: [{ yAxis: arena.peak }] },
    }],
  }, true);
}

function drawRegion(edge) {
  return (params, api) => {
    const [left, top] = api.coord([api.value(0), api.value(3)]);
    const [right, bottom] = api.coord([api.value(1), api.value(2)]);
    const shape = { x: left, y: top, width: Math.max(right - left, 1),
                    height: Math.max(bottom - top, 1) };
    const seen = echarts.graphic.clipRectByRect(shape, params.coordSys);
    const stroke = shape.width > 3 && shape.height > 3 ? edge : undefined;
    return seen && { type: "rect", shape: seen, style: { fill: api.visual("color"), stroke },
                     emphasis: { style: { opacity: 0.75 } } };
  };
}

function regionTip(arena, index) {
  const one = arena.regions[index];
  const last = one.first === one.last ? "" : ` to ${count(one.last)}`;
  return tip(bare(one.op), `${one.type}: ${size(one.nbytes)}`,
             `bytes ${count(one.offset)} to ${count(one.offset + one.nbytes)}`,
             `alive in instruction ${count(one.first)}${last}`, one.module, one.line);
}

// ---- file -----------------------------------------------------------------------------

let sizeChart;

function drawSize() {
  const totals = new Map();
  for (const piece of content.pieces) {
    totals.set(piece.kind, (totals.get(piece.kind) || 0) + piece.nbytes);
  }
  const kinds = [...totals.keys()].sort((a, b) => totals.get(b) - totals.get(a));
  const colour = colours(kinds);
  const whole = sum([...totals.values()]);
  byId("size-kinds").replaceChildren(...kinds.map((kind) =>
    element("li", {}, element("i", { style: `background:${colour(kind)}` }),
            `${kind}: ${size(totals.get(kind))} (${percent(totals.get(kind), whole)})`)));
  const theme = themed();
  sizeChart ||= echarts.init(byId("size-chart"));
  byId("size-chart").setAttribute("aria-label",
    `Parts of the file by size. ${byId("size-kinds").textContent}`);
  sizeChart.setOption({
    animation: false,
    tooltip: { ...tooltip(), formatter: ({ treePathInfo, data }) =>
      tip(treePathInfo.slice(1).map((one) => one.name).filter((name) => name).join(".")
          || "all of it",
          `${count(data.value)} bytes (${percent(data.value, whole)})`, data.kind || "") },
    series: [{
      type: "treemap", roam: false, nodeClick: "zoomToNode", leafDepth: 3,
      left: 8, right: 8, top: 8, bottom: 40, name: "all", visibleMin: 40,
      breadcrumb: { bottom: 6, itemStyle: { color: theme.panel, borderColor: theme.line,
                    textStyle: { color: theme.ink } } },
      // No icon before names: it takes the room of the number of a layer.
      drillDownIcon: "",
      label: { show: true, color: "#fff", overflow: "truncate", padding: 1 },
      upperLabel: { show: true, height: 20, color: theme.ink },
      itemStyle: { borderColor: theme.paper, gapWidth: 1 },
      levels: [{ upperLabel: { show: false } },
               { itemStyle: { borderColor: theme.line, borderWidth: 3, gapWidth: 3 } },
               { itemStyle: { borderColor: theme.panel, borderWidth: 2, gapWidth: 2 } }],
      data: tree(content.pieces, colour),
    }],
  }, true);
}

function tree(pieces, colour) {
  const root = new Map();
  for (const piece of pieces) {
    let level = root;
    piece.path.forEach((part, depth) => {
      const last = depth === piece.path.length - 1;
      if (!level.has(part)) {
        level.set(part, { name: part, value: 0, blobs: [], inside: new Map() });
      }
      const node = level.get(part);
      node.value += piece.nbytes;
      if (last) node.blobs.push(piece);
      level = node.inside;
    });
  }
  // A blob whose name is also the beginning of others' lies beside these.
  const box = (name, piece) => ({ name, value: piece.nbytes, kind: piece.kind,
                                  itemStyle: { color: colour(piece.kind) } });
  const plain = (level) => [...level.values()].map(({ blobs, inside, ...node }) =>
    joined(node, [...blobs.map((piece) => box("", piece)), ...plain(inside)]));
  // A part that holds just one other part is one box with both names; one that is too
  // small for what is in it has the colour of the largest of that.
  const joined = (node, children) => {
    if (children.length === 1) {
      const [only] = children;
      return { ...only, name: only.name ? `${node.name}.${only.name}` : node.name };
    }
    const largest = children.reduce((a, b) => (a.value >= b.value ? a : b));
    return { ...node, children, kind: "", itemStyle: largest.itemStyle };
  };
  return plain(root);
}

// ---- methods --------------------------------------------------------------------------

let codeTable;

function rowOf(step, number) {
  return { number, what: bare(step.op), type: step.type, backend: step.backend,
           states: [...step.writes.map((name) => `writes ${name}`),
                    ...step.reads.map((name) => `reads ${name}`)].join(", "),
           copied: step.copied, line: step.line, module: step.module, steps: 1,
           indent: step.inside };
}

function shownSteps() {
  const code = content.code[byId("method").value];
  const views = byId("views").checked;
  return code.steps.map(rowOf).filter((row, i) => views || code.steps[i].computes);
}

// Rows in running order below the modules that they are in; a module that is left and
// entered again has a row for each time.
function folded(rows) {
  const top = [];
  let open = [];
  for (const row of rows) {
    const path = row.module ? row.module.split(".") : [];
    let shared = 0;
    while (shared < open.length && shared < path.length &&
           open[shared].what === path[shared]) shared++;
    open = open.slice(0, shared);
    for (const part of path.slice(shared)) {
      const parent = open.length ? open[open.length - 1]._children : top;
      const row_ = { what: part, isModule: true, steps: 0, _children: [], backends: new Set(),
                     written: 0, copied: 0, type: "", line: "", module: "" };
      parent.push(row_);
      open.push(row_);
    }
    for (const outer of open) {
      outer.steps += 1;
      outer.backends.add(row.backend || "PyTorch");
      outer.written += row.states.includes("writes ");
      outer.copied += row.copied;
    }
    (open.length ? open[open.length - 1]._children : top).push(row);
  }
  const finish = (row) => {
    if (!row._children) return row;
    const only = row._children.length === 1 && row._children[0];
    if (only && only.isModule) return finish({ ...only, what: `${row.what}.${only.what}` });
    row._children = row._children.map(finish);
    row.backend = [...row.backends].join(", ");
    row.states = row.written ? plural(row.written, "write") : "";
    delete row.backends;
    return row;
  };
  return top.map(finish);
}

function whatCell(cell) {
  const row = cell.getData();
  if (row.isModule) {
    return element("span", { class: "module" }, row.what);
  }
  return element("span", { style: `padding-left:${row.indent}em` }, row.what);
}

function backendCell(cell) {
  const names = cell.getValue() || "PyTorch";
  const chips = names.split(", ").map((name) => element("span",
    { class: "chip", style: `background:${colourOfBackend(name)}` }, name));
  return element("span", {}, ...chips.flatMap((chip) => [chip, " "]));
}

function statesCell(cell) {
  const row = cell.getData();
  const text = element("span", { class: row.states.includes("write") ? "writes" : "" },
                       row.states);
  const copied = row.copied
    ? element("span", { class: "copies" }, ` copies ${size(row.copied)}`) : "";
  return element("span", {}, text, copied);
}

// Where there is no room for all of it, its end is shown, which tells more.
function lineCell(cell) {
  return element("span", { class: "end" },
                 element("bdi", { dir: "ltr" }, cell.getValue()));
}

function drawCode() {
  const wanted = byId("find").value.trim().toLowerCase();
  const rows = shownSteps();
  const found = rows.filter((row) => [row.what, row.module, row.states, row.line, row.type,
    row.backend || "PyTorch"].some((text) => text.toLowerCase().includes(wanted)));
  byId("code-facts").textContent = wanted
    ? `${count(found.length)} of ${plural(rows.length, "instruction")}`
    : plural(rows.length, "instruction");
  const data = wanted ? found : folded(rows);
  byId("unfold").textContent = "Unfold all";
  if (codeTable) {
    codeTable.replaceData(data);
    return;
  }
  codeTable = new Tabulator(byId("code-table"), {
    data, height: 460, layout: "fitColumns", dataTree: true, dataTreeStartExpanded: false,
    placeholder: "nothing found", headerSortElement: "", headerSort: false,
    columnDefaults: { minWidth: NARROWEST },
    columns: [
      { title: "module, operator", field: "what", widthGrow: 3, minWidth: 200, formatter: whatCell,
        tooltip: (event, cell) => hint(cell.getData().module || cell.getValue()) },
      { title: "steps", field: "steps", width: 80, minWidth: 60, hozAlign: "right",
        formatter: (cell) => count(cell.getValue()) },
      { title: "makes", field: "type", widthGrow: 2, formatter: "plaintext" },
      { title: "run by", field: "backend", width: 120, formatter: backendCell },
      { title: "states", field: "states", widthGrow: 2, formatter: statesCell },
      { title: "line of the model", field: "line", widthGrow: 2, formatter: lineCell,
        tooltip: (event, cell) => cell.getValue() && hint(cell.getValue()) },
    ],
  });
}

const hint = (text) => element("span", {}, text);

function unfoldAll() {
  const open = byId("unfold").textContent === "Unfold all";
  const walk = (rows) => rows.forEach((row) => {
    if (!row.getTreeChildren) return;
    const children = row.getTreeChildren();
    if (!children.length) return;
    if (open) row.treeExpand(); else row.treeCollapse();
    walk(children);
  });
  codeTable.blockRedraw();
  walk(codeTable.getRows());
  codeTable.restoreRedraw();
  byId("unfold").textContent = open ? "Fold all" : "Unfold all";
}

// ---- tables ---------------------------------------------------------------------------

// Below it a column says nothing; where there is no room for all, the table scrolls.
const NARROWEST = 110;

const bytesColumn = (title, field) => ({
  title, field, hozAlign: "right", sorter: "number", width: 130,
  formatter: (cell) => count(cell.getValue()) });
const textColumn = (title, field, more = {}) => ({
  title, field, formatter: "plaintext", headerFilter: "input",
  headerFilterPlaceholder: "find", widthGrow: 2,
  tooltip: (event, cell) => hint(cell.getValue()), ...more });

function drawTable(id, data, columns) {
  return new Tabulator(byId(id), {
    data, columns, layout: "fitColumns", maxHeight: 420, placeholder: "none",
    columnDefaults: { minWidth: NARROWEST } });
}

function drawTables() {
  const position = report.position;
  const limit = position && position.capacity !== null
    ? `, at most ${plural(position.capacity, "token")}` : "";
  byId("states-facts").textContent = position
    ? `The position: ${position.source || position.kind}${limit}. ` +
      "Sizes are those of one session, with every size at its upper bound."
    : "Nothing in this program counts tokens.";
  const window_ = (state) => state.window
    ? `, window ${[].concat(state.window).join(" ")}` : "";
  drawTable("states-table", report.states.map((state) => ({
    ...state, kind: state.kind + window_(state),
    reads: state.reads.join(", "), writes: state.writes.join(", ") })), [
    textColumn("state", "name", { widthGrow: 3 }), textColumn("type", "type"),
    textColumn("kind", "kind"), bytesColumn("bytes", "nbytes"),
    textColumn("read by", "reads"), textColumn("written by", "writes"),
    textColumn("starts as", "initial")]);
  drawTable("blobs-table", report.blobs.map((blob) => ({
    name: blob.names.map((one) => one.name).join(", "),
    type: [...new Set(blob.names.map((one) => one.type))].join(", "),
    methods: blob.methods.join(", "), nbytes: blob.nbytes, file: blob.file || "the bundle",
    digest: blob.digest })), [
    textColumn("names", "name", { widthGrow: 4 }), textColumn("type", "type"),
    bytesColumn("bytes", "nbytes"), textColumn("used by", "methods"),
    textColumn("file", "file"), textColumn("SHA-256", "digest")]);
  drawTable("operators-table", report.operators.map((one) => ({
    method: one.method, op: one.op, backend: one.backend || "PyTorch", count: one.count,
    why: Object.entries(one.reasons).map(([name, why]) => `${name}: ${why}`).join("; ") })), [
    textColumn("method", "method"), textColumn("operator", "op", { widthGrow: 3 }),
    textColumn("run by", "backend", { formatter: backendCell }),
    bytesColumn("instructions", "count"),
    textColumn("why no backend runs it", "why", { widthGrow: 4 })]);
}

// ---- the page -------------------------------------------------------------------------

function choose(select, names) {
  select.replaceChildren(...names.map((name, i) => element("option", { value: i }, name)));
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  drawArena();
  drawSize();
}

choose(byId("arena"), arenas.map((arena) => `${arena.name} (${size(arena.nbytes)})`));
choose(byId("method"), content.code.map((code) => code.method));
drawOverview();
setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
drawCode();
drawTables();

byId("theme").addEventListener("click", () =>
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
byId("arena").addEventListener("change", drawArena);
for (const id of ["method", "views"]) byId(id).addEventListener("change", drawCode);
byId("find").addEventListener("input", drawCode);
byId("unfold").addEventListener("click", unfoldAll);
addEventListener("resize", () => { arenaChart?.resize(); sizeChart.resize(); });
