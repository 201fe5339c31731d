// A list that makes the rows that can be seen, and no others: as quick with a hundred thousand rows as with ten.

class List {
  /**
   * label: for screen readers. height: of a row, in pixels. draw(index): the row's children. look(index): its classes.
   * onpick(index): Enter or a click. onmove(index): the active row is another. width: of the widest row, in characters.
   * title(index): a tooltip. onkey(event, index): true, if it has been dealt with. role, itemRole: ARIA roles.
   * level(index): {level, expanded} of a tree's row.
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
      onfocus: () => { if (this.active < 0 && this.count) this.move(Math.floor(this.element.scrollTop / this.options.height)); },
    }, this.space);
    new ResizeObserver(() => this.later()).observe(this.element);
  }

  /** Another list of rows. `width`: characters of the widest. */
  set(count, width = 0) {
    this.count = count;
    this.active = Math.min(this.active, count - 1);
    this.space.style.height = `${count * this.options.height}px`;
    this.space.style.minWidth = width ? `calc(${width}ch + 7em)` : "";
    this.redraw();
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
    const { height } = this.options;
    const visible = this.element.clientHeight || 800;
    const first = Math.max(0, Math.floor(this.element.scrollTop / height) - 6);
    const last = Math.min(this.count, Math.ceil((this.element.scrollTop + visible) / height) + 6);
    for (const [index, row] of this.rows) {
      if (index >= first && index < last) continue;
      row.remove();
      this.rows.delete(index);
    }
    for (let index = first; index < last; ++index) {
      if (this.rows.has(index)) continue;
      const row = h("div", {
        id: `${this.id}-${index}`, role: this.options.itemRole, "data-index": index, "aria-posinset": index + 1, "aria-setsize": this.count,
        title: this.options.title && this.options.title(index), style: { top: `${index * height}px`, height: `${height}px` },
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
    const top = index * height;
    const { scrollTop, clientHeight } = this.element;
    if (align === "center") {
      if (top < scrollTop + height || top > scrollTop + clientHeight - 2 * height) this.element.scrollTop = Math.max(0, top - clientHeight / 3);
    } else if (top < scrollTop) {
      this.element.scrollTop = top;
    } else if (top + height > scrollTop + clientHeight) {
      this.element.scrollTop = top + height - clientHeight;
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
  const element = h("div", { class: "table" }, h("div", { class: "heading" }, h("div", { class: "cells", style: { "grid-template-columns": template } }, buttons)), list.element);
  list.set(rows.length);
  if (sort) order(columns.find((column) => column.name === sort), descending);
  return { element, list, redraw: () => list.restyle() };
}
