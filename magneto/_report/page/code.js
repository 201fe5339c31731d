// Levels side by side, source and torch graph at first; what belongs to the chosen row lights up in all of them.

const AT_FIRST = ["source", "torch"];
const WIDEST = 110; // characters for which a column asks; longer lines are wrapped

class CodeView {
  constructor(app) {
    this.app = app;
    this.hidden = new Set(stored("hidden levels", LEVELS.map(({ name }) => name).filter((name) => !AT_FIRST.includes(name))));
    this.widths = {}; // as the user has dragged them
    this.captured = false;
    this.lists = {};
    this.columns = {};
    this.counts = {};
    this.handles = {};
    const columns = LEVELS.map((level) => this.column(level));
    this.boxes = {};
    this.toggles = LEVELS.map(({ name, title }) => {
      const box = (this.boxes[name] = h("input", { type: "checkbox", onchange: () => this.toggle(name) }));
      return h("label", { class: "toggle" }, box, title);
    });
    this.form = h("select", { "aria-label": "which ATen graph", onchange: () => { this.captured = this.form.value === "captured"; this.app.relink(); } },
      h("option", { value: "normal" }, "normal form"), h("option", { value: "captured" }, "as captured"));
    this.columns.aten.querySelector(".column-tools").append(this.form);
    this.status = h("span", { class: "status", "aria-live": "polite" });
    this.grid = h("div", { class: "columns" }, columns);
    this.element = h("div", { class: "code" }, h("div", { class: "bar" }, h("span", { class: "toggles", role: "group", "aria-label": "levels" }, this.toggles), this.status), this.grid);
    this.layout();
  }

  column({ name, title, grammar }) {
    const rows = () => this.links.rows[name];
    const list = (this.lists[name] = new List({
      label: title, class: "code-list wraps", gutter: name === "source" ? 78 : 22,
      draw: (at) => this.draw(rows()[at], grammar),
      look: (at) => this.look(name, at),
      title: (at) => rows()[at].mark || rows()[at].hint,
      length: (at) => rows()[at].text.length + (rows()[at].mark ? rows()[at].mark.length + 8 : 0),
      onpick: (at) => this.app.choose(this.links.from(name, at), name),
      onkey: (event, at) => this.key(event, name, at),
    }));
    this.counts[name] = h("span", { class: "count" });
    const column = (this.columns[name] = h("section", { class: "column", "aria-label": title },
      h("header", {}, h("h3", {}, title), this.counts[name], h("span", { class: "column-tools" })), list.element));
    this.handles[name] = h("div", {
      class: "resizer", role: "separator", tabindex: 0, "aria-orientation": "vertical", "aria-label": `width of ${title}`, title: "drag, or ← →; Home: as wide as the code",
      onpointerdown: (event) => this.drag(event, name),
      onkeydown: (event) => this.resizeKey(event, name),
    });
    return [column, this.handles[name]];
  }

  /** A column takes from, or gives to, its neighbour on the right. */
  resize(name, by) {
    const next = this.shownLevels()[this.shownLevels().indexOf(name) + 1];
    if (!next) return;
    for (const level of this.shownLevels()) this.widths[level] = this.columns[level].offsetWidth;
    const least = 160;
    const change = Math.max(least - this.widths[name], Math.min(by, this.widths[next] - least));
    this.widths[name] += change;
    this.widths[next] -= change;
    this.layout();
  }

  drag(event, name) {
    event.preventDefault();
    let from = event.clientX;
    const handle = this.handles[name];
    handle.setPointerCapture(event.pointerId);
    const move = (moved) => { this.resize(name, moved.clientX - from); from = moved.clientX; };
    const end = () => { handle.removeEventListener("pointermove", move); handle.removeEventListener("pointerup", end); };
    handle.addEventListener("pointermove", move);
    handle.addEventListener("pointerup", end);
  }

  resizeKey(event, name) {
    const by = { ArrowLeft: -40, ArrowRight: 40 }[event.key];
    if (by) this.resize(name, by);
    else if (event.key === "Home") { this.widths = {}; this.layout(); }
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  draw(row, grammar) {
    const label = row.line !== undefined ? h("span", { class: "line" }, row.line) : null;
    if (row.heading) return [h("span", { class: "heading-text" }, row.text)];
    const dots = row.line !== undefined ? h("span", { class: "ops", title: row.torch.length ? plural(row.torch.length, "torch call") : "" }, row.torch.length ? (row.torch.length > 99 ? "99+" : row.torch.length) : "") : null;
    return [label, dots, h("span", { class: "text" }, paint(row.text, grammar), row.mark ? h("span", { class: "break-note" }, `  ⚡ ${row.mark}`) : null)];
  }

  look(name, at) {
    const row = this.links.rows[name][at];
    const { lit } = this.app;
    let look = row.heading ? "heading" : row.call ? "call" : "";
    if (row.mark) look += " broken-line";
    if (lit && lit.rows[name].has(at)) look += " lit";
    else if (lit && row.code !== undefined && lit.codes.has(row.code)) look += " near";
    return look;
  }

  shownLevels() {
    return LEVELS.map((level) => level.name).filter((name) => !this.hidden.has(name));
  }

  key(event, name, at) {
    const shown = this.shownLevels();
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const next = shown[shown.indexOf(name) + (event.key === "ArrowRight" ? 1 : -1)];
      if (!next) return true;
      const [first] = this.app.lit ? this.sorted(next) : [];
      this.lists[next].element.focus({ preventScroll: true });
      this.lists[next].move(first ?? this.lists[next].active, "center");
      return true;
    }
    if (event.key === "n" || event.key === "p") {
      const rows = this.app.lit ? this.sorted(name) : [];
      const next = event.key === "n" ? rows.find((row) => row > at) ?? rows[0] : rows.findLast((row) => row < at) ?? rows.at(-1);
      if (next !== undefined) this.lists[name].move(next, "center");
      return true;
    }
    return false;
  }

  sorted(name) {
    return [...this.app.lit.rows[name]].sort((a, b) => a - b);
  }

  toggle(name) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    this.widths = {};
    store("hidden levels", [...this.hidden]);
    this.layout();
    if (this.links) this.light();
  }

  /** A level that was asked for by a link. */
  reveal(name) {
    if (this.hidden.has(name)) this.toggle(name);
    const first = this.app.lit && this.sorted(name).find((row) => !this.links.rows[name][row].heading);
    if (first !== undefined && first !== null) this.lists[name].move(first, "center");
    this.lists[name].element.focus({ preventScroll: true });
  }

  /** Columns as wide as their code asks for, or as they were dragged. */
  layout() {
    const shown = this.shownLevels();
    for (const { name } of LEVELS) {
      this.boxes[name].checked = !this.hidden.has(name);
      this.columns[name].hidden = this.hidden.has(name);
      this.handles[name].hidden = this.hidden.has(name) || name === shown.at(-1);
      const asked = Math.max(30, Math.min(WIDEST, this.links ? this.links.width[name] : 60)) + (name === "source" ? 11 : 4);
      this.columns[name].style.flex = `${this.widths[name] || asked} 1 0`;
    }
  }

  /** Another graph. */
  show(links) {
    this.links = links;
    this.form.hidden = !links.program;
    this.widths = {};
    for (const { name, empty } of LEVELS) {
      const rows = links.rows[name];
      fill(this.counts[name], rows.length ? number(rows.filter((row) => !row.heading && !row.plain).length) : "");
      this.lists[name].active = -1;
      this.lists[name].element.scrollTop = 0;
      this.lists[name].set(rows.length);
      this.lists[name].element.dataset.empty = rows.length ? "" : empty;
    }
    this.layout();
    this.light();
    this.toTheBreak();
  }

  /** A compile that was broken opens at the line. */
  toTheBreak() {
    const marked = this.links.rows.source.findLastIndex((row) => row.mark);
    if (marked >= 0) requestAnimationFrame(() => this.lists.source.show(marked, "center"));
  }

  /** Something else is chosen, in the level `from` or elsewhere. */
  light(from) {
    const { lit } = this.app;
    for (const { name } of LEVELS) {
      this.lists[name].restyle();
      if (!lit || name === from) continue;
      const rows = this.sorted(name);
      const first = rows.find((row) => !this.links.rows[name][row].heading) ?? rows[0];
      if (first !== undefined) this.lists[name].show(first, "center");
    }
    if (!lit) return fill(this.status, "Choose a line to see what came of it.");
    const count = (level, word) => {
      const rows = [...lit.rows[level]].filter((at) => !this.links.rows[level][at].heading).length;
      return rows ? plural(rows, word) : null;
    };
    const parts = [count("source", "source line"), count("torch", "torch call"), count("aten", "ATen operator"), count("loops", "line") && `${count("loops", "line")} of ${plural(lit.codes.size, "kernel")}`, count("assembly", "instruction")];
    fill(this.status, parts.filter(Boolean).join(" · ") || "Nothing came of this line.", " ",
      h("button", { class: "link", onclick: () => this.app.choose(null) }, "clear"));
  }
}
