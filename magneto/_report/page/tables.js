// Guards, recompiles, kernels, and what else the log has as text.

// What all captures check alike: seldom what one looks for.
const NOISE = /^(DEFAULT_DEVICE|GLOBAL_STATE|TORCH_FUNCTION_MODE_STACK|TYPE_LOOKUP|TYPE_BASES|TYPE_MATCH|HASATTR|NO_HASATTR|BOUND|NOT_BOUND|DICT_CONTAINS|DICT_NOT_CONTAINS)\b/;

/** The guard tree: what must hold, where it was needed, what checking it costs. */
class GuardView {
  constructor(app) {
    this.app = app;
    this.text = h("p", { class: "lead" });
    this.closed = new Set();
    this.order = h("select", { "aria-label": "order", onchange: () => this.flatten() }, h("option", { value: "tree" }, "as a tree"), h("option", { value: "cost" }, "by cost"));
    this.all = h("input", { type: "checkbox", onchange: () => this.flatten() });
    this.hiding = h("span", { class: "dim", "aria-live": "polite" });
    this.list = new List({
      label: "guards", role: "tree", itemRole: "treeitem", height: 22, class: "guards",
      draw: (at) => this.draw(this.shown[at]),
      look: (at) => (this.shown[at].check ? "check" : "source"),
      level: (at) => { const row = this.shown[at]; return { level: row.depth + 1, expanded: row.check ? undefined : !this.closed.has(row.node) }; },
      title: (at) => this.shown[at].text,
      onpick: (at) => this.toggle(this.shown[at]),
      onkey: (event, at) => this.key(event, at),
    });
    this.element = h("div", { class: "view stack" }, this.text, h("div", { class: "controls" }, h("label", {}, "Order: ", this.order), h("label", { class: "toggle" }, this.all, "show what all captures check"), this.hiding), h("div", { class: "fill" }, this.list.element));
  }

  show(links) {
    const { guards } = links.compile;
    this.closed.clear();
    if (!guards) {
      this.shown = [];
      this.guards = null;
      fill(this.hiding);
      this.list.set(0);
      return fill(this.text, "The log has no guards of this compile.");
    }
    this.guards = expandedGuards(guards);
    const nodes = this.guards;
    this.children = groupedBy(nodes, (node) => [node.parent]);
    const costs = links.compile.guard_costs ? links.compile.guard_costs.ops : [];
    // An operation of the guard program may make several checks: its time stands at the first of them.
    const charged = new Set();
    const own = nodes.map((node) => {
      let sum = node.loads.reduce((total, operation) => total + (costs[operation] || 0), 0);
      for (const check of node.checks) {
        if (check.operation < 0 || charged.has(check.operation)) continue;
        charged.add(check.operation);
        check.cost = costs[check.operation];
        sum += check.cost || 0;
      }
      return sum;
    });
    this.total = new Array(nodes.length).fill(0);
    this.count = new Array(nodes.length).fill(0);
    for (let at = nodes.length - 1; at >= 0; --at) { // children stand behind their parents
      this.total[at] += own[at];
      this.count[at] += nodes[at].checks.length;
      const { parent } = nodes[at];
      if (parent >= 0) {
        this.total[parent] += this.total[at];
        this.count[parent] += this.count[at];
      }
    }
    const checks = this.count[0];
    nodes.forEach((node, at) => { if (node.folded) this.closed.add(at); });
    const { guard_costs: measured } = links.compile;
    const timed = measured ? [`One by one they take `, h("b", {}, seconds(this.total[0] * 1e-9)), `; all at once, on a call where nothing has changed, `, h("b", {}, seconds(measured.hot * 1e-9)), "."] : "They were not timed: the capture was not used again.";
    fill(this.text, h("b", {}, plural(checks, "check")), ` on ${plural(nodes.filter((node) => node.checks.length && node.source).length, "source")}. `, timed);
    this.flatten();
  }

  flatten() {
    if (!this.guards) return;
    this.shown = [];
    const wanted = (check) => this.all.checked || !NOISE.test(check.line);
    const row = (node, depth, check) => ({ node, depth, check, text: `${check.line}${check.place ? `\n${check.place}` : ""}` });
    const has = this.guards.map((guard) => guard.checks.some(wanted));
    for (let at = this.guards.length - 1; at > 0; --at) if (has[at]) has[this.guards[at].parent] = true;
    const visit = (node, depth) => {
      const guard = this.guards[node];
      if (!has[node] && node) return;
      this.shown.push({ node, depth, text: guard.source || "the whole frame" });
      if (this.closed.has(node)) return;
      for (const check of guard.checks.filter(wanted)) this.shown.push(row(node, depth + 1, check));
      for (const child of this.children.get(node) || []) visit(child, depth + 1);
    };
    if (this.order.value === "cost") {
      this.guards.forEach((guard, node) => { for (const check of guard.checks.filter(wanted)) this.shown.push(row(node, 0, check)); });
      this.shown.sort((a, b) => (b.check.cost || 0) - (a.check.cost || 0));
    } else {
      visit(0, 0);
    }
    const hidden = this.guards.reduce((sum, guard) => sum + guard.checks.filter((check) => !wanted(check)).length, 0);
    fill(this.hiding, hidden ? `${plural(hidden, "check")} of types, attributes and modes hidden` : "");
    this.list.set(this.shown.length);
  }

  draw(row) {
    const indent = h("span", { class: "indent", style: { width: `${row.depth * 1.2}em` } });
    const cost = row.check ? row.check.cost : this.total[row.node];
    const share = cost && this.total[0] ? cost / this.total[0] : 0;
    const right = [h("span", { class: "meter", "aria-hidden": "true" }, h("span", { style: { width: `${share * 100}%` } })), h("span", { class: "number cost" }, cost ? seconds(cost * 1e-9) : "")];
    if (row.check) {
      const [kind, ...rest] = row.check.line.split(": ");
      return [indent, h("span", { class: "chip guard" }, kind), h("span", { class: "mono grow" }, rest.join(": ")), row.check.place ? h("span", { class: "dim" }, baseName(row.check.place)) : null, right];
    }
    const open = this.closed.has(row.node) ? "▸" : "▾";
    return [indent, h("span", { class: "twist", "aria-hidden": "true" }, open), h("span", { class: "mono grow strong" }, row.text), h("span", { class: "dim" }, plural(this.count[row.node], "check")), right];
  }

  toggle(row) {
    if (row.check) return;
    if (!this.closed.delete(row.node)) this.closed.add(row.node);
    this.flatten();
  }

  key(event, at) {
    const row = this.shown[at];
    if (!row || row.check || !["ArrowLeft", "ArrowRight"].includes(event.key)) return false;
    if ((event.key === "ArrowLeft") !== this.closed.has(row.node)) this.toggle(row);
    return true;
  }

  light() {}
}

/**
 * The core's guards (src/guards/data.h) as nodes: {parent, source, checks: [{line, place, operation}], loads}. Looks at
 * classes stand at the frame, which they do not depend on; here each class has a node of its own.
 */
function expandedGuards({ texts, nodes }) {
  const result = [];
  const classes = new Map();
  for (const [parent, name, , flat, loads] of nodes) {
    const above = parent < 0 ? "" : result[parent].source;
    const source = texts[name].replaceAll("\u0002", () => above);
    const named = (text) => text.replaceAll("\u0001", () => source).replaceAll("\u0002", () => above);
    const checks = [];
    for (let at = 0; at < flat.length; at += 3) {
      const check = { line: named(texts[flat[at]]), place: texts[flat[at + 1]], operation: flat[at + 2] };
      const looked = parent < 0 && /^TYPE_LOOKUP: _PyType_Lookup\(<class '(.*?)'>/.exec(check.line);
      if (!looked) checks.push(check);
      else if (classes.has(looked[1])) classes.get(looked[1]).push(check);
      else classes.set(looked[1], [check]);
    }
    result.push({ parent, source, checks, loads });
  }
  for (const [name, checks] of classes) result.push({ parent: 0, source: `class ${name}`, checks, loads: [], folded: true });
  return result;
}

/** All compiles of a place, entry by entry: why each was made, and which guards of the older ones failed. */
class HistoryView {
  constructor(app) {
    this.app = app;
    this.element = h("div", { class: "view scroll" });
  }

  show(links) {
    const { compile, run } = links;
    const all = run.compiles.filter((other) => other.frame === compile.frame);
    const varying = changesOf(all);
    fill(this.element,
      h("p", { class: "lead" }, `${place(compile.file, compile.line)} in ${compile.name} was compiled `, h("b", {}, all.length === 1 ? "once" : `${all.length} times`), all.length > 1 ? ". An entry is used where its guards hold; each recompile below says which guard of which older entry did not." : "."),
      varying.length ? [h("h3", {}, "What keeps changing"), h("ul", { class: "advice" }, varying.map((change) => h("li", {}, changeText(this.app, change))))] : null,
      h("ol", { class: "history" }, all.map((other) => this.entry(other, other === compile))));
  }

  entry(compile, own) {
    const failures = compile.recompile || [];
    return h("li", { class: own ? "own" : "" },
      h("h3", {}, stateMark(compile.state), h("button", { class: "link", onclick: () => this.app.open(compile) }, `[${compile.id}]`), ` ${seconds(compile.seconds)}, ${plural((compile.torch || []).length, "torch call")}, ${plural(compile.guard_count, "guard")}`),
      compile.failure ? failureText(compile) : null,
      failures.length ? failures.map((entry) => h("div", { class: "failed-entry" }, h("span", { class: "dim" }, `entry [${entry.entry}] does not serve:`), h("ul", { class: "mono" }, entry.failures.map((failure, at) => h("li", {}, failure, (entry.places || [])[at] ? h("span", { class: "dim" }, `  ${entry.places[at].slice(entry.places[at].lastIndexOf("/") + 1)}`) : null))))) : h("p", { class: "dim" }, compile.number ? "The log does not say why." : "The first: there was nothing to use."));
  }

  light() {}
}

/** What differed from entry to entry, most frequent first: {what, remedy, place: [file, line], count, compiles}. */
function changesOf(compiles) {
  const changes = new Map();
  for (const compile of compiles) {
    for (const [what, remedy, file, line] of compile.varies) {
      const key = `${what}\n${remedy}`;
      if (!changes.has(key)) changes.set(key, { what, remedy, place: [file, line], count: 0, compiles: [] });
      const change = changes.get(key);
      if (!change.place[0]) change.place = [file, line];
      ++change.count;
      change.compiles.push(compile);
    }
  }
  return [...changes.values()].sort((a, b) => b.count - a.count);
}

/** Kernels and calls: how long, how many bytes, how many of them a second. */
function kernelRows(compiles, all) {
  const rows = [];
  const phases = compiles.flatMap((compile) => (all && compile.phases.length ? compile.phases.map((phase, at) => ({ compile, phase: at, ...phase })) : [{ compile, phase: compile.phase || 0, program: compile.program, runs: compile.runs }]));
  for (const { compile, phase, program, runs } of phases) {
    if (!program) continue;
    program.steps.forEach((step, at) => {
      const kernel = step.kernel === undefined ? null : program.kernels[step.kernel];
      const size = (index) => (index < 0 ? 0 : sizeOf(program, index));
      const moved = kernel
        ? kernel.registers.reduce((sum, register, which) => sum + size(register) * (kernel.roles[which] === "x" ? 2 : 1), 0)
        : [...new Set(step.reads), ...step.writes].reduce((sum, register) => sum + size(register), 0);
      const [count, best, total] = (runs && runs.steps[at]) || [0, 0, 0];
      const lines = linesOf(compile, program, kernel ? kernel.operators : [step.node]);
      rows.push({ compile, phase, lines, step: at, name: kernel ? kernel.name : step.call, kernel, moved, count, best: best * 1e-9, mean: count ? (total / count) * 1e-9 : 0, operators: kernel ? kernel.operators : [step.node] });
    });
  }
  for (const row of rows) row.rate = row.best ? row.moved / row.best : 0;
  return rows;
}

/** Links of a kernel: the first of its lines, its loop IR, its assembly. */
function fromAndCode(row, go) {
  const [first, ...more] = row.lines;
  const link = (text, level, title) => h("button", { class: "link", title, onclick: (event) => go(event, row, level) }, text);
  return [first ? [h("span", { class: "mono" }, link(baseName(first), "source", row.lines.join("\n"))), more.length ? h("span", { class: "dim" }, ` +${more.length}`) : "", " · "] : "",
    row.kernel ? [link("loop IR", "loops", "the kernel's loop IR"), " · ", link("asm", "assembly", "the kernel's assembly")] : ""];
}

/** The program's lines that operators come from: ["file:line", ...]. */
function linesOf(compile, program, operators) {
  const lines = new Set();
  for (const at of operators) {
    const call = program.aten[at] && compile.torch && compile.torch[program.aten[at][1]];
    if (call && call[1]) lines.add(`${call[1]}:${call[2]}`);
  }
  return [...lines];
}

/** Bytes of a register's tensor; of a view those that it spans at most. */
function sizeOf(program, index) {
  const [source, type, , , size] = program.registers[index];
  if (size || source !== "view") return size;
  const shape = /^([a-z]+)(\d+)\[(.*?)\]/.exec(type);
  if (!shape) return 0;
  return shape[3].split(", ").filter(Boolean).reduce((count, extent) => count * Number(extent), Math.max(1, Number(shape[2]) / 8));
}

function kernelTable(app, compiles, { withCompile = false } = {}) {
  const rows = kernelRows(compiles, withCompile);
  if (!rows.length) return h("p", { class: "empty" }, "Nothing was generated: the backend runs the graph itself.");
  const timed = rows.filter((row) => row.count);
  const once = timed.length && timed.every((row) => row.count === 1);
  const fastest = Math.max(0, ...rows.map((row) => row.rate));
  const total = timed.reduce((sum, row) => sum + row.best, 0);
  const moved = timed.reduce((sum, row) => sum + row.moved, 0);
  const pick = (row) => {
    if (app.compile !== row.compile) app.open(row.compile, "kernels");
    if ((row.compile.phase || 0) !== row.phase) app.setPhase(row.phase);
    app.choose(app.links.ofOperators(row.operators), "kernels");
  };
  const go = (event, row, level) => {
    event.stopPropagation();
    pick(row);
    app.open(row.compile, "code");
    app.choose(app.links.ofOperators(row.operators), "kernels");
    app.views.code.reveal(level);
  };
  const bar = (share, text) => [h("span", { class: "meter", "aria-hidden": "true" }, h("span", { style: { width: `${Math.min(1, share) * 100}%` } })), text];
  const { element, redraw } = table({
    label: "kernels", rows, sort: timed.length ? "best time" : "bytes moved",
    columns: [
      withCompile ? { name: "graph", value: (row) => row.compile.id, show: (row) => `[${row.compile.id}]`, width: "5em" } : null,
      { name: "step", value: (row) => row.step, number: true, width: "3.5em" },
      { name: "kernel", value: (row) => row.name, show: (row) => [h("span", { class: `kind ${row.kernel ? "generated" : "called"}` }, row.kernel ? "kernel" : "call"), " ", row.name], class: "mono", width: "minmax(9em, 3fr)" },
      { name: "from, code", value: (row) => row.lines.join(), show: (row) => fromAndCode(row, go), width: "16em", title: "to the program's lines, to the loop IR, to the assembly" },
      { name: "operators", value: (row) => row.operators.length, number: true, width: "6em" },
      { name: "runs", value: (row) => row.count, show: (row) => (row.count ? number(row.count) : ""), number: true, width: "3.5em", title: "how many runs were timed" },
      { name: "best time", value: (row) => row.best || null, show: (row) => bar(total && row.best ? row.best / total : 0, row.count ? seconds(row.best) + (row.count === 1 ? " (first call)" : "") : "not run"), number: true, width: "10em" },
      { name: "mean", value: (row) => row.mean || null, show: (row) => (row.count ? seconds(row.mean) : ""), number: true, width: "5em" },
      { name: "bytes moved", value: (row) => row.moved, show: (row) => bytes(row.moved), number: true, width: "7em", title: "each buffer once" },
      { name: "bandwidth", value: (row) => row.rate || null, show: (row) => bar(fastest ? row.rate / fastest : 0, row.rate ? `${(row.rate / 1e9).toFixed(row.rate < 1e10 ? 2 : 1)} GB/s` : ""), number: true, width: "9em", title: "bytes moved over the best time; what fits the caches is faster than memory" },
      { name: "threads", value: (row) => (row.kernel ? (row.kernel.serial ? 1 : 2) : 0), show: (row) => (row.kernel ? (row.kernel.serial ? "one" : "all") : ""), number: true, width: "4.5em" },
    ].filter(Boolean),
    look: (row) => (app.lit && app.compile === row.compile && !app.links.captured && row.operators.some((at) => app.lit.aten.has(at)) ? "lit" : ""),
    onpick: (row) => pick(row),
  });
  const text = timed.length
    ? h("p", { class: "lead" }, h("b", {}, seconds(total)), ` a call, ${once ? "timed in the first call alone, when memory and caches are cold" : "the best of each"} of ${plural(timed.length, "step")}; ${bytes(moved)} moved, `, h("b", {}, `${(moved / total / 1e9).toFixed(1)} GB/s`), " on average.")
    : h("p", { class: "lead" }, `${plural(rows.length, "step")}; the log has no times of runs.`);
  return Object.assign(h("div", { class: "view stack" }, text, h("div", { class: "fill" }, element)), { redraw });
}

class KernelView {
  constructor(app) {
    this.app = app;
    this.element = h("div", { class: "holder" });
  }

  show(links) {
    this.table = kernelTable(this.app, [links.compile]);
    fill(this.element, this.table);
  }

  light() { if (this.table.redraw) this.table.redraw(); }
}

/** Whatever else the log has of a compile. */
class TextView {
  constructor(app) {
    this.names = h("div", { class: "text-names", role: "tablist", "aria-label": "texts", "aria-orientation": "vertical" });
    this.list = new List({ label: "text", class: "code-list", draw: (at) => [h("span", { class: "line" }, at + 1), h("span", { class: "text" }, this.lines[at])] });
    this.element = h("div", { class: "view texts" }, this.names, this.list.element);
  }

  show(links) {
    this.texts = links.compile.texts;
    const names = Object.keys(this.texts);
    fill(this.names, names.map((name) => h("button", { role: "tab", "aria-selected": "false", onclick: () => this.open(name) }, name)));
    this.lines = [];
    if (names.length) this.open(names.includes(this.name) ? this.name : names[0]);
    else this.list.set(0);
  }

  open(name) {
    this.name = name;
    for (const button of this.names.children) button.setAttribute("aria-selected", button.textContent === name);
    this.lines = this.texts[name].replace(/\n$/, "").split("\n").map((line) => line.replaceAll("\t", "    "));
    this.list.active = -1;
    this.list.element.scrollTop = 0;
    this.list.set(this.lines.length, Math.min(2000, Math.max(...this.lines.map((line) => line.length))));
  }

  light() {}
}

class TimeView {
  constructor(app) {
    this.element = h("div", { class: "view scroll" });
  }

  show({ compile }) {
    const total = compile.stages.find(([stage]) => !stage.includes("."));
    const inner = compile.stages.filter(([stage], at) => compile.stages.findIndex(([other]) => other === stage) === at);
    const sums = inner.map(([stage]) => ({ stage, sum: compile.stages.filter(([other]) => other === stage).reduce((sum, [, , duration]) => sum + duration, 0) }));
    fill(this.element,
      h("p", { class: "lead" }, total ? ["This compile took ", h("b", {}, seconds(total[2])), ". Click a stage to zoom in, press Escape to zoom out."] : "The log has no times of this compile."),
      compile.stages.length ? flame(stageBars(compile), { label: "stages of this compile" }) : null,
      h("table", { class: "plain" }, h("tbody", {}, sums.map(({ stage, sum }) => h("tr", {},
        h("td", { style: { "padding-left": `${stage.split(".").length}em` } }, stage.split(".").at(-1).replaceAll("_", " ")), h("td", { class: "number" }, seconds(sum)),
        h("td", { class: "number dim" }, total ? `${((sum / total[2]) * 100).toFixed(1)}%` : ""))))));
  }

  light() {}
}
