// The window: frames on the left, views of what is chosen on the right, keys.

const PAGE = JSON.parse(document.getElementById("data").textContent);

function stored(name, otherwise) {
  try { return JSON.parse(localStorage.getItem(`magneto report ${name}`)) ?? otherwise; } catch { return otherwise; }
}
function store(name, value) {
  try { localStorage.setItem(`magneto report ${name}`, JSON.stringify(value)); } catch { /* a page that may not store forgets */ }
}

const VIEWS = [
  { name: "code", title: "Code", make: (app) => new CodeView(app) },
  { name: "fusion", title: "Fusion", make: (app) => new FusionView(app) },
  { name: "memory", title: "Memory", make: (app) => new MemoryView(app) },
  { name: "kernels", title: "Kernels", make: (app) => new KernelView(app) },
  { name: "guards", title: "Guards", make: (app) => new GuardView(app) },
  { name: "history", title: "Recompiles", make: (app) => new HistoryView(app) },
  { name: "time", title: "Time", make: (app) => new TimeView(app) },
  { name: "texts", title: "Texts", make: (app) => new TextView(app) },
];

const KEYS = [
  ["↑ ↓ PgUp PgDn Home End", "move in a list or in the tree"],
  ["Enter", "choose the row: what belongs to it lights up in all views"],
  ["← →", "in code: the neighbouring level, at what belongs to the chosen row; in trees: close, open"],
  ["n p", "in code: the next, the previous lit row"],
  ["Esc", "nothing is chosen any more; back from a zoom"],
  ["[ ]", "the previous, the next compile"],
  ["1 … 8", "the views of a compile"],
  ["o", "the overview of the program"],
  ["t", "to the tree of frames"],
  ["/", "filter the tree"],
  ["Tab", "to the next part; on the border of two columns ← → move it"],
  ["d", "dark, light, as the system has it"],
  ["?", "this list"],
];

class App {
  constructor(data) {
    this.data = data;
    this.lit = null;
    this.views = {};
    this.view = "code";
    this.run = data.runs[0];
    this.links_ = new Map();
    this.tree = new Tree(this);
    this.title = h("h1", {}, h("span", { class: "brand" }, "magneto"), " report ", h("span", { class: "dim script", title: data.command }, data.title));
    this.runs = h("select", { "aria-label": "process", onchange: () => { this.select(data.runs[this.runs.selectedIndex]); this.overview(); } }, data.runs.map((run) => h("option", {}, run.label)));
    this.runs.hidden = data.runs.length < 2;
    this.counts = h("div", { class: "counts" });
    this.theme = h("button", { class: "icon", onclick: () => this.nextTheme() });
    this.tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "views" });
    this.phases = h("select", { class: "phases", "aria-label": "forward or backward", onchange: () => this.setPhase(this.phases.selectedIndex) });
    this.opener = h("button", { class: "icon opener", "aria-label": "frames", "aria-expanded": "false", title: "frames (t)", onclick: () => this.showTree(!this.layout.classList.contains("open")) }, "☰");
    this.head = h("div", { class: "subject" });
    this.main = h("main", { id: "main" });
    this.help = h("dialog", { class: "help", "aria-label": "keys" }, h("h2", {}, "Keys"), h("table", {}, h("tbody", {}, KEYS.map(([keys, text]) => h("tr", {}, h("th", { scope: "row" }, keys.split(" ").map((key) => h("kbd", {}, key))), h("td", {}, text))))),
      h("form", { method: "dialog" }, h("button", { class: "plain-button" }, "Close")));
    document.getElementById("app").append(
      h("a", { class: "skip", href: "#main", onclick: (event) => { event.preventDefault(); this.focusMain(); } }, "to the views"),
      h("header", { class: "top" }, this.opener, this.title, this.runs, data.runs.length > 1 ? h("button", { class: "plain-button", onclick: () => this.ranks() }, "Side by side") : null, this.counts,
        data.live ? h("span", { class: "live" }, "the program is running") : null, this.theme,
        h("button", { class: "icon", title: "keys (?)", "aria-label": "keys", onclick: () => this.help.showModal() }, "?")),
      (this.layout = h("div", { class: "layout" }, h("nav", { class: "side", "aria-label": "frames" }, this.tree.element), h("section", { class: "work" }, this.head, this.tabs, this.main))),
      this.help);
    document.title = `${data.title} – Magneto report`;
    this.setTheme(stored("theme", "system"));
    document.addEventListener("keydown", (event) => this.key(event));
    addEventListener("hashchange", () => this.follow());
  }

  start() {
    this.follow();
    if (this.data.live) setTimeout(() => location.reload(), 3000);
  }

  /** The lists of the code view, by level. */
  code() {
    return this.views.code.lists;
  }

  /** What the address says: #run/compile/view. */
  follow() {
    const [run, id, view] = decodeURIComponent(location.hash.slice(1)).split(",");
    if (this.address === location.hash && this.address !== undefined) return;
    this.select(this.data.runs[Number(run) || 0] || this.data.runs[0]);
    const compile = this.run.compiles.find((one) => one.id === id);
    if (compile && view && !VIEWS.some((one) => one.name === view)) this.unknown(`There is no view “${view}”.`, compile);
    else if (compile) this.open(compile, view);
    else if (id === "ranks" && this.data.runs.length > 1) this.ranks();
    else if (id && id !== "overview") this.unknown(`There is no compile [${id}] in this report.`);
    else this.overview();
  }

  /** The address names something that the report does not have. */
  unknown(what, compile) {
    this.leave("unknown");
    this.address = location.hash;
    fill(this.head, h("h2", {}, "Not in this report"));
    const links = compile ? VIEWS.map(({ name, title }) => h("li", {}, h("button", { class: "link", onclick: () => this.open(compile, name) }, `[${compile.id}] ${title}`)))
      : this.run.compiles.slice(0, 50).map((one) => h("li", {}, h("button", { class: "link", onclick: () => this.open(one) }, `[${one.id}] ${one.name}`)));
    fill(this.main, h("div", { class: "view scroll" }, h("p", {}, what), h("ul", {}, h("li", {}, h("button", { class: "link", onclick: () => this.overview() }, "The whole program")), links)));
  }

  /** On a narrow page the tree lies above the views, and is shown on demand. */
  showTree(open) {
    this.layout.classList.toggle("open", open);
    this.opener.setAttribute("aria-expanded", String(open));
    if (open) this.tree.list.element.focus();
  }

  /** Of a graph that trains: the forward, or a backward. */
  setPhase(at) {
    const { compile } = this;
    Object.assign(compile, compile.phases[at], { phase: at });
    this.links_.delete(compile);
    this.relink(true);
    this.open(compile);
  }

  remember(id, view) {
    this.address = `#${[this.data.runs.indexOf(this.run), id, view].filter((part) => part !== undefined).join(",")}`;
    history.replaceState(null, "", this.address);
    this.address = location.hash;
  }

  select(run) {
    if (this.run === run && this.tree.run === run) return;
    this.run = run;
    this.lit = null;
    this.compile = null;
    this.runs.selectedIndex = this.data.runs.indexOf(run);
    fill(this.counts, countsOf(totals(run)).map(([count, word, state]) => h("span", { class: `count-of ${state}`, title: STATES[state].title }, stateMark(state), plural(count, word))));
    this.tree.show(run);
  }

  overview() {
    this.showTree(false);
    this.leave("overview");
    fill(this.head, h("h2", {}, "The whole program"));
    fill(this.main, overview(this));
  }

  ranks() {
    this.leave("ranks");
    fill(this.head, h("h2", {}, "Side by side"));
    fill(this.main, ranks(this));
  }

  leave(to) {
    this.compile = null;
    this.lit = null;
    this.shown = to;
    this.tabs.hidden = true;
    this.tree.mark(null);
    this.remember(to);
  }

  open(compile, view) {
    const known = VIEWS.some((one) => one.name === view);
    this.view = known ? view : this.view;
    if (this.compile !== compile) {
      this.compile = compile;
      this.lit = null;
      this.relink(true);
      this.tree.mark(compile);
    }
    this.showTree(false);
    const failed = compile.failure ? failureText(compile) : null;
    const broken = compile.break ? breakText(this, compile) : null;
    const phases = compile.phases || [];
    this.phases.hidden = phases.length < 2;
    fill(this.phases, phases.map((phase) => h("option", {}, phase.name)));
    this.phases.selectedIndex = compile.phase || 0;
    fill(this.head, h("h2", {}, stateMark(compile.state), `[${compile.id}] ${compile.name} `, h("span", { class: "dim", title: compile.file }, place(compile.file, compile.line)),
      h("span", { class: "facts" }, [plural((compile.torch || []).length, "torch call"), kernelsOf(compile) === null ? null : plural(kernelsOf(compile), "kernel"), plural(compile.guard_count, "guard"), seconds(compile.seconds) && `compiled in ${seconds(compile.seconds)}`].filter(Boolean).join(" · "))), failed, broken);
    this.tabs.hidden = false;
    fill(this.tabs, VIEWS.map(({ name, title }, at) => h("button", { role: "tab", id: `tab-${name}`, "aria-controls": "main", "aria-selected": String(name === this.view), tabindex: name === this.view ? 0 : -1, title: `${title} (${at + 1})`, onclick: () => this.open(compile, name), onkeydown: (event) => this.tabKey(event, at) }, title, h("kbd", {}, at + 1))), this.phases);
    this.shown = this.view;
    this.show();
    this.remember(compile.id, this.view);
  }

  /** The chosen view of the chosen compile. */
  show() {
    const name = this.view;
    if (!this.views[name]) this.views[name] = VIEWS.find((one) => one.name === name).make(this);
    const view = this.views[name];
    fill(this.main, view.element);
    if (view.links !== this.links || view.run !== this.run) {
      view.links = this.links;
      view.run = this.run;
      view.show(this.links);
    }
    view.light("elsewhere");
  }

  /** The graph's rows, by the ATen level that is wanted. */
  relink(quiet) {
    const captured = !!(this.views.code && this.views.code.captured);
    const key = `${captured}`;
    if (!this.links_.has(this.compile)) this.links_.set(this.compile, {});
    const known = this.links_.get(this.compile);
    this.links = known[key] || (known[key] = new Links(this.run, this.compile, captured));
    this.lit = null;
    if (!quiet) this.show();
  }

  /** What is lit: Links.lit()'s, or null. `from`: the level or view where it was chosen. */
  choose(lit, from) {
    this.lit = lit;
    if (this.compile && this.views[this.view]) this.views[this.view].light(from);
  }

  step(by) {
    const { compiles } = this.run;
    const at = compiles.indexOf(this.compile);
    const next = compiles[at < 0 ? (by > 0 ? 0 : compiles.length - 1) : at + by];
    if (next) this.open(next);
  }

  tabKey(event, at) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = VIEWS[(at + by + VIEWS.length) % VIEWS.length].name;
    this.open(this.compile, next);
    document.getElementById(`tab-${next}`).focus();
    event.preventDefault();
  }

  focusMain() {
    const first = this.main.querySelector(".list, button, [tabindex]");
    if (first) first.focus();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || this.help.open) return;
    const writing = event.target.matches("input[type=search], select, textarea");
    if (event.key === "Escape") {
      if (writing) event.target.blur();
      return this.choose(null);
    }
    if (writing) return;
    const actions = {
      "?": () => this.help.showModal(), "[": () => this.step(-1), "]": () => this.step(1), o: () => this.overview(), d: () => this.nextTheme(),
      t: () => this.showTree(true), "/": () => { this.showTree(true); this.tree.filter.focus(); },
    };
    const view = VIEWS[Number(event.key) - 1];
    if (view && this.compile) {
      this.open(this.compile, view.name);
      this.focusMain();
    } else if (actions[event.key]) {
      actions[event.key]();
    } else {
      return;
    }
    event.preventDefault();
  }

  nextTheme() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const themes = ["system", ...(dark ? ["light", "dark"] : ["dark", "light"])]; // the first key changes what is seen
    this.setTheme(themes[(themes.indexOf(this.themeName) + 1) % themes.length]);
    store("theme", this.themeName);
    if (this.compile) this.show();
  }

  setTheme(name) {
    this.themeName = name;
    document.documentElement.dataset.theme = name;
    const text = { system: "as the system has it", light: "light", dark: "dark" }[name];
    fill(this.theme, { system: "◐", light: "☀", dark: "☾" }[name]);
    this.theme.title = `colours: ${text} (d)`;
    this.theme.setAttribute("aria-label", this.theme.title);
  }
}

/** The frames that led to compiles, outermost first, each in the colour of the worst that happened in it. */
class Tree {
  constructor(app) {
    this.app = app;
    this.filter = h("input", { type: "search", placeholder: "filter: name, file, state  ( / )", "aria-label": "filter the frames", oninput: () => this.flatten() });
    this.list = new List({
      label: "frames", role: "tree", itemRole: "treeitem", height: 26, class: "tree",
      draw: (at) => this.draw(this.rows[at]),
      look: (at) => { const row = this.rows[at]; return `${row.compile && row.compile === this.app.compile ? "lit" : ""} ${row.overview && !this.app.compile ? "lit" : ""}`; },
      level: (at) => { const row = this.rows[at]; return { level: row.depth + 1, expanded: row.node && row.node.children.length ? !row.node.closed : undefined }; },
      title: (at) => this.rows[at].hint,
      onpick: (at) => this.pick(this.rows[at]),
      onkey: (event, at) => this.key(event, at),
    });
    this.element = h("div", { class: "tree-holder" }, this.filter, this.list.element);
  }

  show(run) {
    this.run = run;
    this.root = { children: [], compiles: [] };
    for (const compile of run.compiles) {
      let node = this.root;
      const stack = compile.stack.length ? compile.stack : [[compile.file, compile.line, compile.name, ""]];
      for (const [at, [file, line, function_, code]] of stack.entries()) {
        const name = at === stack.length - 1 ? compile.name : function_;
        let child = node.children.find((one) => one.file === file && one.line === line && one.name === name);
        if (!child) node.children.push((child = { file, line, name, code, children: [], compiles: [], closed: false }));
        node = child;
      }
      node.compiles.push(compile);
    }
    const sum = (node) => {
      node.states = [...node.compiles.map((compile) => compile.state), ...node.children.flatMap(sum)];
      node.states = [...new Set(node.states)];
      return node.states;
    };
    sum(this.root);
    this.flatten();
  }

  flatten() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (text) => words.every((word) => text.toLowerCase().includes(word));
    this.rows = [{ overview: true, depth: 0, hint: "counts, breaks, times of the whole program" }];
    const text = (node) => `${node.name} ${node.file}:${node.line} ${node.compiles.map((compile) => `[${compile.id}] ${compile.state}`).join(" ")}`;
    const wanted = (node) => !words.length || fits(text(node)) || node.children.some(wanted);
    const visit = (node, depth) => {
      if (!wanted(node)) return;
      const only = node.compiles.length === 1 ? node.compiles[0] : null;
      this.rows.push({ node, depth, compile: only, hint: `${node.file}:${node.line} in ${node.name}\n${node.code}` });
      if (node.closed && !words.length) return;
      if (!only) for (const compile of node.compiles) this.rows.push({ depth: depth + 1, compile, hint: STATES[compile.state].title });
      for (const child of node.children) visit(child, depth + 1);
    };
    for (const child of this.root.children) visit(child, 0);
    this.list.set(this.rows.length);
  }

  draw(row) {
    const indent = h("span", { class: "indent", style: { width: `${Math.min(row.depth, 24) * 0.85}em` } });
    if (row.overview) return [h("span", { class: "twist" }, "◆"), h("span", { class: "grow strong" }, "The whole program")];
    if (!row.node) return [indent, h("span", { class: "twist" }), stateMark(row.compile.state), h("span", { class: "id" }, `[${row.compile.id}]`), h("span", { class: "grow dim" }, plural((row.compile.torch || []).length, "call")), h("span", { class: "dim" }, seconds(row.compile.seconds))];
    const { node } = row;
    const more = node.children.length + (row.compile ? 0 : node.compiles.length);
    return [indent, h("span", { class: "twist", "aria-hidden": "true" }, more ? (node.closed ? "▸" : "▾") : ""), stateMark(worst(node.states), !node.compiles.length),
      h("span", { class: "mono name" }, node.name), h("span", { class: "dim mono grow" }, place(node.file, node.line)), row.compile ? h("span", { class: "id" }, `[${row.compile.id}]`) : node.compiles.length ? h("span", { class: "id" }, `×${node.compiles.length}`) : null];
  }

  pick(row) {
    if (row.overview) return this.app.overview();
    if (row.compile) return this.app.open(row.compile);
    this.toggle(row.node);
  }

  toggle(node) {
    node.closed = !node.closed;
    this.flatten();
  }

  key(event, at) {
    const row = this.rows[at];
    if (!row || !row.node || !["ArrowLeft", "ArrowRight"].includes(event.key)) return false;
    if ((event.key === "ArrowLeft") !== row.node.closed) this.toggle(row.node);
    return true;
  }

  /** Shows which compile the views are of. */
  mark(compile) {
    const at = this.rows ? this.rows.findIndex((row) => (compile ? row.compile === compile : row.overview)) : -1;
    if (at >= 0) {
      this.list.active = at;
      this.list.show(at);
    }
    this.list.restyle();
  }
}

/** Of a graph that trains: its forward and its backwards, of which the views show one. */
function preparePhases({ compiles }) {
  for (const compile of compiles) {
    const programs = compile.programs || [];
    compile.phases = programs.map((program, at) => ({ name: !at ? "forward" : programs.length > 2 ? `backward ${at}` : "backward", program, runs: (compile.all_runs || [])[at] }));
  }
}
const kernelsOf = (compile) => ((compile.phases || []).length ? compile.phases.reduce((sum, { program }) => sum + program.kernels.length, 0) : compile.program ? compile.program.kernels.length : null);

/** Why a compile was left to CPython; a limit is the user's, not a failure. */
function failureText(compile) {
  const { type, text } = compile.failure;
  const limited = compile.state === "limited";
  return h("p", { class: limited ? "limit" : "failure" }, h("b", {}, limited ? `config.${type} is reached` : type), `: ${text}`);
}

/** Where and why a graph ends, in the head of its compile. */
function breakText(app, compile) {
  const { reason, message, explanation, hint, stack } = compile.break;
  const [file, line, name] = stack.at(-1) || [compile.file, compile.line, compile.name];
  const code = sourceLine(app.run, file, line);
  return h("div", { class: "broken-text" },
    h("p", {}, "The graph ends at ", h("b", { title: file }, place(file, line)), ` in ${name}`, code ? [": ", h("code", {}, code.trim())] : ""),
    h("p", {}, h("b", {}, `${reason}: `), message, explanation ? h("span", { class: "dim" }, `  ${explanation}`) : ""), hint ? h("p", {}, "What helps: ", hint) : null);
}

/** The text of a line, if a section of the run has it. */
function sourceLine(run, file, line) {
  const section = run.sections.find((one) => one.file === file && line >= one.first && line < one.first + one.lines.length);
  return section ? section.lines[line - section.first] : "";
}

PAGE.runs.forEach(preparePhases);
const app = new App(PAGE);
app.start();
