"use strict";
// Sorting, filters, copying, a cursor and a choice of steps over the charts, and the choice of rollouts; without this script the page lacks nothing else.
const SVG = "http://www.w3.org/2000/svg";
let stepsChosen = null;
let applyRollouts = () => {};

function make(tag, text, parent) {
  const element = document.createElement(tag);
  element.textContent = text;
  parent.append(element);
  return element;
}

function button(text, parent) {
  const made = make("button", text, parent);
  made.type = "button";
  return made;
}

// Tables sort by a click on a column's head.
for (const table of document.querySelectorAll("table")) {
  table.querySelectorAll("thead th").forEach((head, column) => {
    const text = head.textContent;
    head.textContent = "";
    head.setAttribute("aria-sort", "none");
    button(text, head).addEventListener("click", () => sortBy(table, head, column));
  });
}

function sortBy(table, head, column) {
  const descending = head.getAttribute("aria-sort") === "ascending";
  for (const other of table.querySelectorAll("thead th")) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [key(row.cells[column]), row]);
  const known = rows.filter(([value]) => value !== null);
  known.sort(([a], [b]) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true })));
  if (descending) known.reverse();
  const unknown = rows.filter(([value]) => value === null);
  body.append(...[...known, ...unknown].map(([, row]) => row));
}

// A cell without a number sorts last; a text cell sorts by its text.
function key(cell) {
  if (cell.dataset.sort !== undefined) return Number(cell.dataset.sort);
  return cell.classList.contains("text") && cell.textContent ? cell.textContent : null;
}

// A table of many rows has a filter and its rows as CSV, those that the filter leaves.
for (const box of document.querySelectorAll(".table")) {
  const rows = [...box.querySelectorAll("tbody tr")];
  if (rows.length < 8) continue;
  const tools = document.createElement("div");
  tools.className = "tools";
  box.before(tools);
  const input = make("input", "", tools);
  input.type = "search";
  input.placeholder = "filter " + rows.length + " rows";
  input.setAttribute("aria-label", "filter rows");
  input.addEventListener("input", () => {
    const word = input.value.toLowerCase();
    for (const row of rows) row.classList.toggle("out", !row.textContent.toLowerCase().includes(word));
  });
  button("Save as CSV", tools).addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(box)], { type: "text/csv" }));
    link.download = "table.csv";
    link.click();
    URL.revokeObjectURL(link.href);
  });
}

// Whole numbers where the page rounds; a text that a spreadsheet would take for a formula is led by a quote.
function csv(box) {
  const quoted = (text) => '"' + text.replace(/^(?:[=@\t\r\n]|[+-](?![\d.%, [\]-]+$))/, "'$&").replaceAll('"', '""') + '"';
  const heads = [...box.querySelectorAll("thead th")].map((head) => quoted(head.textContent));
  const rows = [...box.querySelectorAll("tbody tr:not(.out):not([hidden])")].map((row) =>
    [...row.cells].map((cell) => cell.dataset.sort ?? quoted(cell.textContent)),
  );
  return [heads, ...rows].map((row) => row.join(",")).join("\n") + "\n";
}

// Commands are copied by a click; where the browser has no clipboard, they are selected.
for (const command of document.querySelectorAll(".command")) {
  const code = command.querySelector("code");
  const copy = button("Copy", command);
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      copy.textContent = "Selected";
    }
  });
}

// One cursor over all charts of one kind of axis: the numbers of the chart under it, and its line in the others.
const charts = [...document.querySelectorAll("svg[data-over]")].map((svg) => {
  const [low, high, start, end, top, bottom] = svg.dataset.ends.split(" ").map(Number);
  const names = svg.dataset.x.split(" ");
  const spans = names.map((name) => {
    const ends = name.split("-").map(Number);
    return [ends[0], ends[ends.length - 1]];
  });
  const places = spans.map(([a, b]) => start + (((a + b) / 2 - low) / (high - low)) * (end - start));
  return { svg, over: svg.dataset.over, names, spans, places, top, bottom, lines: null };
});

for (const chart of charts) {
  chart.svg.addEventListener("pointermove", (event) => {
    const box = chart.svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * chart.svg.viewBox.baseVal.width;
    show(chart, nearest(chart.places, x));
  });
  chart.svg.addEventListener("pointerleave", clear);
  chart.svg.addEventListener("blur", clear);
  chart.svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    show(chart, Math.min(Math.max((chart.at ?? -1) + by, 0), chart.names.length - 1));
  });
}

// A drag over a chart chooses steps: all charts mark them, tables over steps and the rollouts show no others.
for (const chart of charts) {
  let from = null;
  const at = (event) => {
    const box = chart.svg.getBoundingClientRect();
    return nearest(chart.places, ((event.clientX - box.left) / box.width) * chart.svg.viewBox.baseVal.width);
  };
  chart.svg.addEventListener("pointerdown", (event) => { from = at(event); });
  chart.svg.addEventListener("pointerup", (event) => {
    if (from === null) return;
    const ends = [from, at(event)].sort((a, b) => a - b);
    chooseSteps(chart.over, from === at(event) ? null : [chart.spans[ends[0]][0], chart.spans[ends[1]][1]]);
    from = null;
  });
}
addEventListener("keydown", (event) => { if (event.key === "Escape" && charts.length) chooseSteps(charts[0].over, null); });

function chooseSteps(over, chosen) {
  for (const old of document.querySelectorAll(".chosen")) old.remove();
  const isIn = ([a, b]) => chosen === null || (a <= chosen[1] && b >= chosen[0]);
  for (const chart of charts) {
    const inside = chart.places.filter((_, index) => isIn(chart.spans[index]));
    if (chart.over !== over || chosen === null || !inside.length) continue;
    const mark = document.createElementNS(SVG, "rect");
    mark.setAttribute("class", "chosen");
    mark.setAttribute("x", inside[0] - 2);
    mark.setAttribute("width", inside[inside.length - 1] - inside[0] + 4);
    mark.setAttribute("y", chart.top);
    mark.setAttribute("height", chart.bottom - chart.top);
    chart.svg.append(mark);
  }
  for (const table of document.querySelectorAll(".table table")) {
    if (table.tHead.rows[0].cells[0].textContent !== over) continue;
    for (const row of table.tBodies[0].rows) {
      const ends = row.cells[0].textContent.replaceAll(",", "").split("-").map(Number);
      row.hidden = !isIn([ends[0], ends[ends.length - 1]]);
    }
  }
  stepsChosen = chosen;
  applyRollouts();
}

function nearest(places, x) {
  let best = 0;
  places.forEach((place, index) => {
    if (Math.abs(place - x) < Math.abs(places[best] - x)) best = index;
  });
  return best;
}

function clear() {
  for (const element of document.querySelectorAll(".cursor, .tip")) element.remove();
}

// The rollouts behind a point: of its steps, as many groups as the page holds.
function behind(chart, index) {
  const [low, high] = chart.spans[index];
  const groups = [...document.querySelectorAll(".groups > .group")].filter(({ dataset }) => low <= dataset.step && dataset.step <= high);
  return groups.slice(0, 3).map((group) => group.querySelector("summary").textContent.slice(0, 60));
}

function show(chart, index) {
  clear();
  chart.at = index;
  const step = (chart.spans[index][0] + chart.spans[index][1]) / 2;
  for (const other of charts) {
    if (other.over !== chart.over) continue;
    const at = other === chart ? index : other.spans.findIndex(([a, b]) => a <= step && step <= b);
    if (at < 0) continue;
    const line = document.createElementNS(SVG, "line");
    line.setAttribute("class", "cursor");
    line.setAttribute("x1", other.places[at]);
    line.setAttribute("x2", other.places[at]);
    line.setAttribute("y1", other.top);
    line.setAttribute("y2", other.bottom);
    other.svg.append(line);
  }
  const numbers = [...chart.svg.querySelectorAll("g[data-y]")].map(
    (line) => line.dataset.name + "  " + line.dataset.y.split(" ")[index].replace(/^-$/, "none"),
  );
  const mean = chart.names[index].includes("-") ? ", means" : "";
  const read = chart.over === "step" ? behind(chart, index) : [];
  make("p", [chart.over + " " + chart.names[index] + mean, ...numbers, ...read].join("\n"), chart.svg.parentNode).className = "tip";
}

// Rollouts: chosen by step and kind, sorted as logged or by their part of the gradient, tokens colored when opened.
const filters = document.getElementById("filters");
if (filters) {
  const list = document.querySelector(".groups");
  const groups = [...list.children];
  const values = (name) => [...new Set(groups.map((group) => group.dataset[name]))];
  const choose = (name, options) => {
    const label = make("label", name + " ", filters);
    const select = make("select", "", label);
    for (const option of options) make("option", option, select);
    select.addEventListener("change", apply);
    return select;
  };
  const step = choose("step", ["all", ...values("step")]);
  const kind = choose("kind", ["all", ...values("kind")]);
  const group = choose("group", ["all", ...values("group")]);
  const shared = groups.some((one) => one.dataset.share);
  const order = choose("order", ["as logged", ...(shared ? ["share of the gradient"] : [])]);
  const count = make("span", "", filters);
  count.setAttribute("role", "status");

  function apply() {
    const is = (select, one, name) => select.value === "all" || select.value === one.dataset[name];
    const isChosen = ({ dataset }) => stepsChosen === null || (stepsChosen[0] <= dataset.step && dataset.step <= stepsChosen[1]);
    const share = (element) => Math.abs(Number(element.dataset.share));
    for (const one of groups) one.hidden = !(is(step, one, "step") && is(kind, one, "kind") && is(group, one, "group") && isChosen(one));
    const byShare = order.value !== "as logged";
    list.append(...(byShare ? [...groups].sort((a, b) => share(b) - share(a)) : groups));
    for (const one of groups) {
      one.rollouts ??= [...one.querySelectorAll(".rollout")];
      one.append(...(byShare ? [...one.rollouts].sort((a, b) => share(b) - share(a)) : one.rollouts));
    }
    const shown = groups.filter((one) => !one.hidden).length;
    count.textContent = shown + " of " + groups.length + " groups";
  }
  apply();
  applyRollouts = apply;

  const color = (group) => {
    for (const text of group.querySelectorAll("[data-like]")) {
      const like = document.getElementById(text.dataset.like);
      delete text.dataset.like;
      if (!like) continue;
      text.textContent = "";
      text.className = "text";
      text.append(...[...like.cloneNode(true).childNodes].filter((node) => node.className !== "who"));
    }
  };
  document.querySelector("main").addEventListener("toggle", (event) => color(event.target), true);
  document.querySelectorAll("details.group[open]").forEach(color);
}

// A link opens what it leads to, and what that is folded into.
function reveal() {
  const target = document.getElementById(location.hash.slice(1));
  target?.querySelector(":scope > details")?.setAttribute("open", "");
  for (let fold = target?.closest("details"); fold; fold = fold.parentNode.closest("details")) fold.setAttribute("open", "");
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", reveal);
reveal();

// What folds on the screen is printed where it says something of its own.
addEventListener("beforeprint", () => document.querySelector("#unanswered details")?.setAttribute("open", ""));
