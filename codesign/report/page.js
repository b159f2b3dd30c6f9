"use strict";
// The page's behaviour: data is unpacked, charts are drawn, and one set of choices drives all of them.
(async function () {
  const root = document.documentElement;
  root.classList.add("js");
  const $ = (id) => document.getElementById(id);
  const all = (query, from) => Array.from((from || document).querySelectorAll(query));

  function trouble(text) {
    const box = $("trouble");
    box.textContent = text;
    box.hidden = false;
    root.dataset.state = "failed";
  }

  async function inflate(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  let data;
  try {
    data = await inflate($("data").textContent.trim());
  } catch (error) {
    root.classList.remove("js");
    trouble("This browser cannot unpack the page's data (" + error + "): charts are missing, the answers stand below.");
    return;
  }

  // Rows are made anew for every chart, since the drawing library writes into them.
  function unpack(name, keep) {
    const table = data.tables[name];
    if (!table) return [];
    const names = Object.keys(table.columns);
    const get = names.map((n) => {
      const c = table.columns[n];
      return Array.isArray(c) ? (i) => c[i] : (i) => c.words[c.codes[i]];
    });
    const rows = [];
    const selector = Object.keys(keep).filter((n) => names.includes(n)).map((n) => [get[names.indexOf(n)], keep[n]]);
    for (let i = 0; i < table.n; i++) {
      if (!selector.every(([f, v]) => f(i) === v)) continue;
      const row = {};
      names.forEach((n, j) => { row[n] = get[j](i); });
      rows.push(row);
    }
    return rows;
  }

  const state = Object.assign({}, data.state);
  const problems = new Map(); // problem -> {case, target}
  unpack("answers", {}).forEach((r) => problems.set(r.problem, { case: r.case, target: r.target }));

  const narrow = () => window.innerWidth < 720;

  function selection(scope) {
    const keep = {};
    if (scope === "setting" || scope === "arch") {
      keep.arch = state.chosen_arch;
      if (scope === "setting") keep.setting = state.chosen_setting;
      return keep;
    }
    if (scope !== "study") keep.case = state.chosen_case;
    if (scope === "problem" || scope === "part") keep.problem = state.chosen_problem;
    if (scope === "part") keep.part = state.chosen_part;
    return keep;
  }

  // Figures of a case hold panels of a problem beside those of a case: a table with problems is then cut by the chart itself.
  function rowsFor(figure, name) {
    return unpack(name, selection(figure.scope));
  }

  const signals = () => ({
    chosen_case: state.chosen_case, chosen_problem: state.chosen_problem, chosen_part: state.chosen_part,
    chosen_arch: state.chosen_arch, chosen_setting: state.chosen_setting,
    shown: state.shown.slice(), narrow: narrow(),
  });

  // ---- charts
  const views = []; // {figure, view, tables}
  const tooltip = { theme: matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light" };

  function finished(figure, panel) {
    const datasets = {};
    figure.tables.forEach((name) => { datasets[name] = rowsFor(figure, name); });
    const values = signals();
    return Object.assign({}, panel, {
      config: Object.assign({}, data.config, narrow() ? {
        legend: Object.assign({}, data.config.legend, { columns: 4 }), axisY: Object.assign({}, data.config.axisY, { labelLimit: 0.48 * window.innerWidth }),
      } : {}),
      datasets,
      params: Object.keys(values).map((name) => ({ name, value: values[name] })),
    });
  }

  async function draw(place) {
    const figure = data.figures[place.dataset.figure];
    const boxes = all(".panel", place);
    for (let i = 0; i < boxes.length; i++) {
      const spec = finished(figure, figure.panels[i]);
      const options = { mode: "vega-lite", renderer: "svg", actions: false, tooltip, logLevel: 1 };
      const result = await window.vegaEmbed(boxes[i], spec, options);
      const svg = boxes[i].querySelector("svg");
      if (svg) { svg.setAttribute("role", "img"); svg.setAttribute("aria-label", figure.title); }
      views.push({ figure, view: result.view, place });
    }
    empty(place, figure);
    tools(place, figure);
  }

  function empty(place, figure) {
    const any = figure.tables.some((name) => rowsFor(figure, name).some((row) => row.value !== null));
    place.querySelector(".panels").hidden = !any;
    place.querySelector(".empty").hidden = any;
  }

  async function redraw() {
    const values = signals();
    for (const { figure, view } of views) {
      for (const name of Object.keys(values)) view.signal(name, values[name]);
      figure.tables.forEach((name) => {
        try { view.data(name, rowsFor(figure, name)); } catch (error) { /* a panel that does not draw this table */ }
      });
      await view.runAsync();
    }
    all("figure.chart").forEach((place) => empty(place, data.figures[place.dataset.figure]));
  }

  function save(name, type, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    URL.revokeObjectURL(link.href);
  }

  function csv(rows) {
    if (!rows.length) return "";
    const names = Object.keys(rows[0]);
    const quote = (v) => (v === null || v === undefined ? "" : /[",\n]/.test(v) ? '"' + String(v).replace(/"/g, '""') + '"' : String(v));
    return [names.join(","), ...rows.map((r) => names.map((n) => quote(r[n])).join(","))].join("\n") + "\n";
  }

  function tools(place, figure) {
    const box = document.createElement("span");
    box.className = "tools";
    const add = (text, label, act) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.setAttribute("aria-label", label);
      button.addEventListener("click", act);
      box.append(button);
    };
    add("CSV", "Save the data of " + figure.title, () => figure.tables.forEach((name) => save(figure.name + "-" + name + ".csv", "text/csv", csv(rowsFor(figure, name)))));
    add("SVG", "Save " + figure.title + " as an image", async () => {
      const ink = getComputedStyle(root).getPropertyValue("--ink").trim();
      const own = views.filter((v) => v.figure === figure);
      for (let i = 0; i < own.length; i++) {
        const text = (await own[i].view.toSVG()).replaceAll("currentColor", ink);
        save(figure.name + (own.length > 1 ? "-" + (i + 1) : "") + ".svg", "image/svg+xml", text);
      }
    });
    place.querySelector("h3").append(box);
  }

  // ---- tables
  const dash = "–";
  function digits(value, n) {
    if (value === 0) return "0";
    const short = Number(value.toPrecision(n));
    return Math.abs(short) >= 10 ** (n - 1) ? Math.round(short).toLocaleString("en-US") : String(short);
  }
  function written(value, kind) {
    if (value === null || value === undefined || value === "") return dash;
    if (["text", "name", "range", "words", "long"].includes(kind)) return String(value);
    if (kind === "flag") return value ? "yes" : "no";
    if (kind === "ms") return Number(value.toPrecision(3)) + " ms";
    if (kind === "percent") return (value * 100).toFixed(1) + " %";
    return digits(value, 3) + (kind === "ratio" ? " ×" : "");
  }

  function fill(table) {
    const view = data.views[table.dataset.view];
    const body = table.tBodies[0];
    body.replaceChildren();
    for (const row of unpack(table.dataset.view, selection(view.scope))) {
      const line = body.insertRow();
      if ("feasible" in row && !row.feasible) line.className = "infeasible";
      if (view.scope === "case" && row.problem === state.chosen_problem) line.className = "chosen";
      if (view.scope === "problem" && row.part === state.chosen_part) line.className = "chosen";
      for (const column of view.columns) {
        const cell = line.insertCell();
        cell.className = column.kind;
        cell.textContent = written(row[column.key], column.kind);
        if (typeof row[column.key] === "number") cell.dataset.value = row[column.key];
      }
    }
    const sorted = table.querySelector("th[aria-sort]");
    if (sorted) order(table, sorted.cellIndex, sorted.getAttribute("aria-sort"));
  }

  function order(table, column, direction) {
    const body = table.tBodies[0];
    const sign = direction === "ascending" ? 1 : -1;
    const number = (cell) => {
      if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
      return /^[-−\d]/.test(cell.textContent) ? parseFloat(cell.textContent.replace(/,/g, "").replace("−", "-")) : NaN;
    };
    const lines = Array.from(body.rows);
    lines.sort((a, b) => {
      const x = a.cells[column], y = b.cells[column];
      const missing = (x.textContent === dash) - (y.textContent === dash);
      if (missing) return missing;
      const m = number(x), n = number(y);
      return sign * (Number.isNaN(m) || Number.isNaN(n) ? x.textContent.localeCompare(y.textContent) : m - n);
    });
    body.append(...lines);
  }

  all("th button").forEach((button) => button.addEventListener("click", () => {
    const cell = button.closest("th");
    const direction = cell.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
    all("th[aria-sort]", cell.closest("table")).forEach((other) => other.removeAttribute("aria-sort"));
    cell.setAttribute("aria-sort", direction);
    order(cell.closest("table"), cell.cellIndex, direction);
  }));

  // ---- choices
  function texts() {
    all(".answer").forEach((box) => box.classList.toggle("on", box.dataset.problem === state.chosen_problem));
    all("table[data-view]").forEach(fill);
  }

  function show() {
    const found = /^c(\d+)-(.*)$/.exec(state.chosen_case) || [];
    if (found[1]) { $("context").value = found[1]; $("precision").value = found[2]; }
    const at = problems.get(state.chosen_problem);
    if (at) all("#target option").forEach((o) => { o.selected = Math.abs(Number(o.value) * 1e3 - at.target) < 1e-6 * at.target; });
    $("part").value = state.chosen_part;
  }

  function read() {
    state.chosen_case = "c" + $("context").value + "-" + $("precision").value;
    const target = Number($("target").value) * 1e3;
    let found = "";
    problems.forEach((p, key) => { if (p.case === state.chosen_case && Math.abs(p.target - target) < 1e-6 * target) found = key; });
    state.chosen_problem = found;
    state.chosen_part = $("part").value;
  }

  // The choices stand in the address, so that a view can be kept or sent.
  function remember() {
    const query = new URLSearchParams();
    ["context", "precision", "target", "part"].forEach((id) => query.set(id, $(id).value));
    try { history.replaceState(null, "", "?" + query + location.hash); } catch (error) { /* not allowed here: no loss */ }
  }

  function recall() {
    const query = new URLSearchParams(location.search);
    let any = false;
    ["context", "precision", "target", "part"].forEach((id) => {
      if (all("option", $(id)).some((o) => o.value === query.get(id))) { $(id).value = query.get(id); any = true; }
    });
    if (any) read();
  }

  let pending = Promise.resolve();
  function changed() {
    texts();
    pending = pending.then(redraw).catch((error) => trouble("A chart could not be drawn: " + error));
  }

  ["context", "precision", "target", "part"].forEach((id) => $(id).addEventListener("change", () => { read(); remember(); changed(); }));
  ["arch", "setting"].forEach((id) => { if ($(id)) $(id).addEventListener("change", () => { state["chosen_" + id] = $(id).value; changed(); }); });
  all(".key button").forEach((button) => button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    const label = button.dataset.label;
    state.shown = on ? state.shown.concat(label) : state.shown.filter((x) => x !== label);
    changed();
  }));

  let was = narrow();
  window.addEventListener("resize", () => { if (narrow() !== was) { was = narrow(); changed(); } });
  let closed = [];
  window.addEventListener("beforeprint", () => { closed = all("details:not([open])"); closed.forEach((d) => { d.open = true; }); });
  window.addEventListener("afterprint", () => closed.forEach((d) => { d.open = false; }));

  show();
  recall();
  texts();
  try {
    for (const place of all("figure.chart")) await draw(place);
    root.dataset.state = "drawn";
  } catch (error) {
    trouble("A chart could not be drawn: " + error);
    throw error;
  }
})();
