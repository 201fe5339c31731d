// A list that makes the rows that can be seen, and no others: as quick with a hundred thousand rows as with ten.

class List {
  /**
   * label: for screen readers. height: of a row, in pixels. draw(index): the row's children. look(index): its classes.
   * onpick(index): Enter or a click. onmove(index): the active row is another. width: of the widest row, in characters.
   * title(index): a tooltip. onkey(event, index): true, if it has been dealt with. role, itemRole: ARIA roles.
   * level(index): {level, expanded} of a tree's row. length(index): so many characters, of which none is cut: rows are
   * as tall as they need; `gutter`: pixels of a row that are not the text's.
   */
  constructor(options) {
    this.options = { height: 20, look: () => "", onpick: () => {}, onmove: () => {}, onkey: () => false, role: "listbox", itemRole: "option", ...options };
    this.count = 0;
    this.active = -1;
    this.rows = new Map();
    this.id = `list${++List.made}`;
    this.space = h("div", { class: "list-space", role: "presentation" });
    this.element = h("div", {
      class: `list ${this.options.class || ""}`, tabindex: 0, role: this.options.role, "aria-label": this.options.label,
      onscroll: () => this.later(),
      onkeydown: (event) => this.key(event),
      onclick: (event) => {
        const row = event.target.closest(".row");
        if (row) this.pick(Number(row.dataset.index));
      },
      onfocus: () => { if (this.active < 0 && this.count) this.move(this.rowAt(this.element.scrollTop)); },
    }, this.space);
    new ResizeObserver(() => this.later()).observe(this.element);
  }

  /** Another list of rows. `width`: characters of the widest. */
  set(count, width = 0) {
    this.count = count;
    this.active = Math.min(this.active, count - 1);
    this.columns = 0;
    this.measure();
    this.space.style.height = `${this.top(count)}px`;
    this.space.style.minWidth = width ? `calc(${width}ch + 7em)` : "";
    this.redraw();
  }

  /** Where wrapped rows begin. True: elsewhere than before. */
  measure() {
    if (!this.options.length) return false;
    const columns = Math.max(12, Math.floor(((this.element.clientWidth || 600) - (this.options.gutter || 20)) / characterWidth()));
    if (columns === this.columns) return false;
    this.columns = columns;
    this.tops = new Float64Array(this.count + 1);
    for (let index = 0; index < this.count; ++index) {
      this.tops[index + 1] = this.tops[index] + this.options.height * Math.max(1, Math.ceil(this.options.length(index) / columns));
    }
    return true;
  }

  /** Of a row, in pixels. */
  top(index) {
    return this.options.length ? this.tops[index] : index * this.options.height;
  }

  /** The row at a height. */
  rowAt(y) {
    if (!this.options.length) return Math.floor(y / this.options.height);
    let low = 0, high = this.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.tops[middle + 1] <= y) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** All rows have changed. */
  redraw() {
    for (const row of this.rows.values()) row.remove();
    this.rows.clear();
    this.draw();
  }

  /** What rows look like has changed, not what is in them. */
  restyle() {
    for (const [index, row] of this.rows) this.style(index, row);
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const seen = this.options.length && this.tops ? this.rowAt(this.element.scrollTop) : 0;
    if (this.measure()) {
      this.space.style.height = `${this.top(this.count)}px`;
      if (seen > 0) this.element.scrollTop = this.top(Math.min(seen, this.count));
      for (const row of this.rows.values()) row.remove();
      this.rows.clear();
    }
    const visible = this.element.clientHeight || 800;
    const first = Math.max(0, this.rowAt(this.element.scrollTop) - 6);
    const last = Math.min(this.count, this.rowAt(this.element.scrollTop + visible) + 7);
    for (const [index, row] of this.rows) {
      if (index >= first && index < last) continue;
      row.remove();
      this.rows.delete(index);
    }
    for (let index = first; index < last; ++index) {
      if (this.rows.has(index)) continue;
      const row = h("div", {
        id: `${this.id}-${index}`, role: this.options.itemRole, "data-index": index, "aria-posinset": index + 1, "aria-setsize": this.count,
        title: this.options.title && this.options.title(index), style: { top: `${this.top(index)}px`, height: `${this.top(index + 1) - this.top(index)}px` },
      }, this.options.draw(index));
      const level = this.options.level && this.options.level(index);
      if (level) {
        row.setAttribute("aria-level", level.level);
        if (level.expanded !== undefined) row.setAttribute("aria-expanded", level.expanded);
      }
      this.style(index, row);
      this.rows.set(index, row);
      this.space.append(row);
    }
    if (this.active >= 0) this.element.setAttribute("aria-activedescendant", `${this.id}-${this.active}`);
  }

  style(index, row) {
    row.className = `row ${this.options.look(index)}${index === this.active ? " active" : ""}`;
    row.setAttribute("aria-selected", index === this.active);
  }

  /** Makes a row the active one, and visible. */
  move(index, align = "nearest") {
    if (!this.count) return;
    this.active = Math.max(0, Math.min(this.count - 1, index));
    this.show(this.active, align);
    this.draw();
    this.restyle();
    this.options.onmove(this.active);
  }

  show(index, align = "nearest") {
    const { height } = this.options;
    const top = this.top(index), bottom = this.top(index + 1);
    const { scrollTop, clientHeight } = this.element;
    if (align === "center") {
      if (top < scrollTop + height || bottom > scrollTop + clientHeight - height) this.element.scrollTop = Math.max(0, top - clientHeight / 3);
    } else if (top < scrollTop) {
      this.element.scrollTop = top;
    } else if (bottom > scrollTop + clientHeight) {
      this.element.scrollTop = bottom - clientHeight;
    }
  }

  pick(index) {
    this.move(index);
    this.options.onpick(index);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.options.height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (this.options.onkey(event, this.active)) {
      event.preventDefault();
    } else if (event.key in steps) {
      const from = this.active < 0 ? (steps[event.key] > 0 ? -1 : this.count) : this.active;
      this.move(from + steps[event.key]);
      event.preventDefault();
    } else if ((event.key === "Enter" || event.key === " ") && this.active >= 0) {
      this.options.onpick(this.active);
      event.preventDefault();
    }
  }
}
List.made = 0;

/** Of a character of code, in pixels. */
function characterWidth() {
  if (!characterWidth.known) {
    const probe = h("span", { class: "mono", style: { position: "absolute", visibility: "hidden", "white-space": "pre" } }, "x".repeat(200));
    document.body.append(probe);
    characterWidth.known = probe.getBoundingClientRect().width / 200;
    probe.remove();
  }
  return characterWidth.known || 7.3;
}

/** Columns of values over a List. columns: [{name, title, value(row), show(row), number}]. A heading's button sorts. */
function table({ label, columns, rows, onpick, look, height = 26, sort, descending = true }) {
  let shown = rows.slice();
  let by = null;
  let down = true;
  const template = columns.map((column) => column.width || "minmax(5em, 1fr)").join(" ");
  const cell = (column, row) => h("span", { class: `cell${column.number ? " number" : ""} ${column.class || ""}`, role: "gridcell" }, column.show ? column.show(row) : column.value(row));
  const list = new List({
    label, height, role: "grid", itemRole: "row", class: "table-rows",
    draw: (index) => h("div", { class: "cells", style: { "grid-template-columns": template } }, columns.map((column) => cell(column, shown[index]))),
    look: (index) => (look ? look(shown[index]) : ""),
    onpick: (index) => onpick && onpick(shown[index]),
  });
  const buttons = columns.map((column) =>
    h("button", { class: `cell${column.number ? " number" : ""}`, title: column.title || `sort by ${column.name}`, onclick: () => order(column) }, column.name, h("span", { class: "sort", "aria-hidden": "true" })));
  function order(column, first) {
    down = first !== undefined ? first : by === column ? !down : !!column.number;
    by = column;
    const key = (row) => { const value = column.value(row); return value === null || value === undefined ? (column.number ? -Infinity : "") : value; };
    shown = rows.slice().sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (down ? -1 : 1));
    buttons.forEach((button, at) => {
      const own = columns[at] === column;
      button.setAttribute("aria-sort", own ? (down ? "descending" : "ascending") : "none");
      button.querySelector(".sort").textContent = own ? (down ? " ▾" : " ▴") : "";
    });
    list.redraw();
  }
  const least = columns.reduce((sum, column) => sum + Number(/[\d.]+/.exec(column.width || "5")[0]), 0) + columns.length;
  const element = h("div", { class: "table" }, h("div", { class: "table-inner", style: { "min-width": `${least}em` } },
    h("div", { class: "heading" }, h("div", { class: "cells", style: { "grid-template-columns": template } }, buttons)), list.element));
  list.set(rows.length);
  if (sort) order(columns.find((column) => column.name === sort), descending);
  return { element, list, redraw: () => list.restyle() };
}
