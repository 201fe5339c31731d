// Time per stage as a flame chart; memory over the steps of a plan; which operators became which kernel.

/**
 * bars: [{name, begin, end, depth, title, hue, onpick}], times in seconds. A bar is a button: a click or Enter zooms to
 * it, Escape back.
 */
function flame(bars, { label, height = 22 }) {
  if (!bars.length) return h("p", { class: "empty" }, "The log has no times.");
  const begin = Math.min(...bars.map((bar) => bar.begin));
  const end = Math.max(...bars.map((bar) => bar.end));
  const depth = Math.max(...bars.map((bar) => bar.depth)) + 1;
  const ruler = h("div", { class: "ruler", "aria-hidden": "true" });
  const area = h("div", { class: "bars", style: { height: `${depth * height}px` } });
  const reset = h("button", { class: "link", hidden: true, onclick: () => zoom(begin, end) }, "whole time");
  function zoom(from, to) {
    reset.hidden = from === begin && to === end;
    const span = Math.max(to - from, 1e-9);
    const least = span / 2000; // narrower than half a pixel
    fill(area, bars.filter((bar) => bar.end > from && bar.begin < to && bar.end - bar.begin >= least).map((bar) => {
      const left = Math.max(0, (bar.begin - from) / span);
      const right = Math.min(1, (bar.end - from) / span);
      return h("button", {
        class: `bar ${bar.class || ""}`, title: bar.title, "aria-label": bar.title,
        style: { left: `${left * 100}%`, width: `max(2px, ${(right - left) * 100}%)`, top: `${bar.depth * height}px`, "--hue": bar.hue },
        onclick: () => (bar.onpick && (from > bar.begin || to < bar.end || !bar.zooms) ? bar.onpick() : zoom(bar.begin, bar.end)),
      }, right - left > 0.02 ? bar.name : "");
    }));
    const steps = 8;
    fill(ruler, Array.from({ length: steps }, (_, step) => h("span", { style: { left: `${(step / steps) * 100}%` } }, seconds(from - begin + (span * step) / steps) || "0")));
  }
  zoom(begin, end);
  return h("div", { class: "flame", role: "group", "aria-label": label, onkeydown: (event) => { if (event.key === "Escape" && !reset.hidden) { zoom(begin, end); event.stopPropagation(); } } }, ruler, area, reset);
}

/** A compile's stages as bars; `from`: the depth of the outermost. */
function stageBars(compile, { from = 0, onpick } = {}) {
  const known = new Map();
  return compile.stages.map(([stage, begin, duration]) => {
    const parts = stage.split(".");
    const name = parts.at(-1).replaceAll("_", " ");
    if (!known.has(stage)) known.set(stage, known.size);
    const whole = parts.length === 1;
    return {
      name: whole && onpick ? `[${compile.id}] ${compile.name}` : name, begin, end: begin + duration, depth: from + parts.length - 1, hue: hueOfStage(stage),
      title: `[${compile.id}] ${compile.name}: ${name}, ${seconds(duration)}`, onpick, class: whole ? `state ${compile.state}` : "",
    };
  });
}

const STAGE_HUES = { compile: 215, capture: 165, backend: 265, cache: 45, passes: 190, lowering: 285, memory: 330, code_generation: 20 };
const hueOfStage = (stage) => STAGE_HUES[stage.split(".").at(-1)] ?? 100;

/** A drawing that follows the size of its place. draw(context, width, height) */
function canvas({ label, height, draw, hit, onpick }) {
  const element = h("canvas", { class: "drawing", role: "img", "aria-label": label, style: { height: `${height}px` } });
  const tip = h("div", { class: "tip", hidden: true });
  const redraw = () => {
    const scale = devicePixelRatio || 1;
    const width = element.clientWidth;
    if (!width) return;
    element.width = width * scale;
    element.height = height * scale;
    const context = element.getContext("2d");
    context.scale(scale, scale);
    draw(context, width, height);
  };
  const at = (event) => {
    const box = element.getBoundingClientRect();
    return hit(event.clientX - box.left, event.clientY - box.top, box.width, height);
  };
  element.addEventListener("mousemove", (event) => {
    const found = at(event);
    tip.hidden = !found;
    element.style.cursor = found ? "pointer" : "";
    if (!found) return;
    fill(tip, found.text);
    const box = element.getBoundingClientRect();
    const x = event.clientX - box.left;
    tip.style.top = `${Math.min(event.clientY - box.top + 14, height - 20)}px`;
    if (x > box.width / 2) Object.assign(tip.style, { left: "", right: `${box.width - x + 8}px` });
    else Object.assign(tip.style, { right: "", left: `${x + 12}px` });
  });
  element.addEventListener("mouseleave", () => { tip.hidden = true; });
  element.addEventListener("click", (event) => { const found = at(event); if (found) onpick(found); });
  new ResizeObserver(redraw).observe(element);
  return { element: h("div", { class: "canvas" }, element, tip), redraw };
}

const isDark = () => getComputedStyle(document.documentElement).colorScheme === "dark" || (getComputedStyle(document.documentElement).colorScheme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
/** Of a custom property, as a canvas takes it: all of them are `light-dark(...)`. */
const colour = (name) => {
  const value = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return /^light-dark\((.+), (.+)\)$/.exec(value)[isDark() ? 2 : 1];
};
const tint = (hue_, strong) => (isDark() ? `hsl(${hue_} 45% ${strong ? 62 : 38}%)` : `hsl(${hue_} 60% ${strong ? 45 : 74}%)`);

/** Memory: across, the steps of the plan; down, the bytes of the arena; a rectangle is a tensor from first to last use. */
class MemoryView {
  constructor(app) {
    this.app = app;
    this.text = h("p", { class: "lead" });
    this.map = canvas({
      label: "the arena over the plan's steps; the table below has the same", height: 380,
      draw: (context, width, height) => this.draw(context, width, height),
      hit: (x, y, width, height) => this.hit(x, y, width, height),
      onpick: ({ at }) => this.pick(at),
    });
    this.table = h("div", { class: "fill" });
    this.saved = h("div", { class: "saved" });
    this.element = h("div", { class: "view stack" }, this.text, this.saved, this.map.element, this.table);
  }

  show(links) {
    this.links = links;
    const { program } = links;
    fill(this.saved, savedText(links.compile));
    this.registers = [];
    if (!program) return fill(this.text, "No memory is planned: the backend runs the graph itself.") && fill(this.table);
    program.registers.forEach(([source, type, value, offset, size, first, last], at) => this.registers.push({ at, source, type, value, offset, size, first, last }));
    this.planned = this.registers.filter((register) => register.source === "arena" && register.last >= 0);
    const sum = this.planned.reduce((total, register) => total + register.size, 0);
    fill(this.text, h("b", {}, bytes(program.arena)), ` of planned memory hold ${plural(this.planned.length, "tensor")} of ${bytes(sum)} in all`,
      sum > program.arena && program.arena ? `: each byte is used ${(sum / program.arena).toFixed(1)} times` : "",
      program.peak > program.arena ? `; with results ${bytes(program.peak)} at the peak` : "",
      program.prepared ? `; ${bytes(program.prepared)} of prepared weights are kept between calls` : "", ".");
    const made = this.makers();
    const { element, redraw } = table({
      label: "tensors of the plan",
      rows: this.registers.filter((register) => register.source !== "view"),
      columns: [
        { name: "", value: (row) => row.at, show: (row) => `r${row.at}`, width: "4em" },
        { name: "where", value: (row) => row.source, width: "7em" },
        { name: "tensor", value: (row) => row.type, width: "minmax(9em, 1fr)", class: "mono" },
        { name: "offset", value: (row) => (row.source === "arena" || row.source === "prepared" ? row.offset : null), show: (row) => (row.source === "arena" || row.source === "prepared" ? number(row.offset) : ""), number: true, width: "8em" },
        { name: "size", value: (row) => row.size, show: (row) => (row.size ? bytes(row.size) : ""), number: true, width: "7em" },
        { name: "steps", value: (row) => row.first, show: (row) => (row.last < 0 ? "" : `${row.first} – ${row.last}`), number: true, width: "8em" },
        { name: "made by", value: (row) => made.get(row.at) || "", class: "mono", width: "minmax(10em, 2fr)" },
      ],
      look: (row) => (this.isLit(row) ? "lit" : ""),
      onpick: (row) => this.pick(row.at),
    });
    this.redrawTable = redraw;
    fill(this.table, element);
    this.map.redraw();
  }

  makers() {
    const made = new Map();
    this.operators = new Map();
    const { kernels, steps } = this.links.program;
    steps.forEach((step) => {
      if (step.kernel === undefined) {
        for (const register of step.writes) { made.set(register, step.call); this.operators.set(register, [step.node]); }
        return;
      }
      const kernel = kernels[step.kernel];
      [...kernel.roles].forEach((role, at) => {
        if (role === "r") return;
        made.set(kernel.registers[at], kernel.name);
        this.operators.set(kernel.registers[at], kernel.operators);
      });
    });
    return made;
  }

  isLit(register) {
    const operators = this.operators.get(register.at) || [];
    return this.app.lit && !this.links.captured && operators.some((at) => this.app.lit.aten.has(at));
  }

  pick(at) {
    const operators = this.operators.get(at);
    if (operators) this.app.choose(this.links.ofOperators(operators), "memory");
  }

  scale(width, height) {
    const { program } = this.links;
    const left = 64, bottom = 22;
    const steps = program.steps.length + 1;
    return { left, bottom, x: (step) => left + ((width - left - 4) * step) / steps, y: (offset) => 4 + ((height - bottom - 4) * offset) / Math.max(1, program.arena) };
  }

  box(register, scale) {
    const x = scale.x(register.first), y = scale.y(register.offset);
    return [x, y, Math.max(2, scale.x(register.last + 1) - x), Math.max(1.5, scale.y(register.offset + register.size) - y)];
  }

  draw(context, width, height) {
    if (!this.links || !this.links.program) return;
    const scale = this.scale(width, height);
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    context.strokeStyle = colour("--line");
    context.fillStyle = colour("--dim");
    context.lineWidth = 1;
    for (let part = 0; part <= 4; ++part) {
      const offset = (this.links.program.arena * part) / 4;
      const y = Math.round(scale.y(offset)) + 0.5;
      context.beginPath();
      context.moveTo(scale.left, y);
      context.lineTo(width, y);
      context.stroke();
      context.textAlign = "right";
      context.fillText(bytes(offset), scale.left - 6, Math.min(height - scale.bottom, y + 4));
    }
    const steps = this.links.program.steps.length;
    const every = Math.max(1, Math.ceil(steps / Math.max(1, (width - scale.left) / 60)));
    context.textAlign = "left";
    for (let step = 0; step <= steps; step += every) context.fillText(step ? String(step) : "step 0", scale.x(step), height - 6);
    for (const register of this.planned) {
      const [x, y, w, tall] = this.box(register, scale);
      const lit = this.isLit(register);
      context.fillStyle = lit ? colour("--accent") : tint(hue(register.first), false);
      context.fillRect(x, y, w, tall);
      if (w > 3 && tall > 3) {
        context.strokeStyle = colour("--back");
        context.strokeRect(x + 0.5, y + 0.5, w - 1, tall - 1);
      }
      if (w > 70 && tall > 14) {
        context.fillStyle = lit ? colour("--on-accent") : colour("--text");
        context.fillText(register.type, x + 5, y + 12, w - 8);
      }
    }
  }

  hit(x, y, width, height) {
    if (!this.links || !this.links.program) return null;
    const scale = this.scale(width, height);
    const found = this.planned.findLast((register) => {
      const [left, top, w, tall] = this.box(register, scale);
      return x >= left && x <= left + w && y >= top && y <= top + tall;
    });
    return found && { at: found.at, text: `r${found.at}  ${found.type}  ${bytes(found.size)} at ${number(found.offset)}, steps ${found.first} to ${found.last}` };
  }

  light() {
    if (!this.links || !this.links.program) return;
    this.map.redraw();
    this.redrawTable();
  }
}

/** What a graph that trains keeps of its forward for its backward. */
function savedText({ training, captured }) {
  if (!training) return null;
  return training.backwards.map(({ saved, saved_bytes, eager_saved_bytes, recomputed, bucket_parts }, at) => h("details", {},
    h("summary", {}, training.backwards.length > 1 ? `Backward ${at + 1}: ` : "For the backward: ", plural(saved.length, "tensor"), " saved, ", h("b", {}, bytes(saved_bytes)), ` of them made here (eager would save ${bytes(eager_saved_bytes)}); `, plural(recomputed, "operator"), " computed again.", bucket_parts ? ` It runs in ${bucket_parts} parts, which end where a bucket of DistributedDataParallel is full.` : ""),
    h("ul", { class: "mono" }, saved.map(([value, name, type, producer]) => h("li", {}, `%${value}: ${type}  `, h("span", { class: "dim" }, name || (producer >= 0 && captured && captured[producer] ? captured[producer][0] : "")))))));
}

/** Fusion: the plan's steps with their operators; above it each operator as a cell, in the colour of its step. */
class FusionView {
  constructor(app) {
    this.app = app;
    this.text = h("p", { class: "lead" });
    this.map = canvas({
      label: "operators in order, in the colours of their kernels; the list below has the same", height: 132,
      draw: (context, width, height) => this.draw(context, width, height),
      hit: (x, y, width) => this.hit(x, y, width),
      onpick: ({ at }) => this.app.choose(this.links.ofOperators([at]), "fusion"),
    });
    this.list = new List({
      label: "steps of the plan", height: 30, class: "steps",
      draw: (at) => this.row(at),
      look: (at) => (this.isLit(this.steps[at]) ? "lit" : ""),
      onpick: (at) => this.app.choose(this.links.ofOperators(this.steps[at].operators), "fusion"),
      onmove: (at) => this.describe(at),
    });
    this.detail = h("aside", { class: "detail", "aria-live": "polite" });
    const swatch = (style, text) => h("li", {}, h("span", { class: "swatch", style }), text);
    this.legend = h("ul", { class: "legend", "aria-label": "legend" },
      h("li", {}, [0, 1, 2].map((at) => h("span", { class: "swatch hue", style: { "--hue": hue(at) } })), "one operator; a colour for each kernel"),
      swatch({ background: "var(--called)" }, "called: PyTorch’s own kernel"), swatch({ background: "var(--line)" }, "costs nothing: a view or a constant"), swatch({ background: "var(--accent)" }, "chosen"));
    this.element = h("div", { class: "view stack" }, this.text, this.legend, this.map.element, h("div", { class: "split" }, this.list.element, this.detail));
  }

  show(links) {
    this.links = links;
    const { program } = links;
    this.steps = [];
    this.stepOf = new Map();
    fill(this.detail);
    this.legend.hidden = !program;
    if (!program) {
      fill(this.text, "Nothing was fused: the backend runs the graph itself.");
      this.list.set(0);
      return;
    }
    [...program.once.map((step) => ({ ...step, once: true })), ...program.steps].forEach((step) => {
      const kernel = step.kernel === undefined ? null : program.kernels[step.kernel];
      const operators = kernel ? kernel.operators : [step.node];
      for (const operator of operators) this.stepOf.set(operator, [...(this.stepOf.get(operator) || []), this.steps.length]);
      this.steps.push({ ...step, kernel, operators, name: kernel ? kernel.name : step.call });
    });
    const kernels = this.steps.filter((step) => step.kernel);
    const fused = new Set(kernels.flatMap((step) => step.operators)).size;
    fill(this.text, h("b", {}, number(fused)), ` operators became ${plural(kernels.length, "kernel")} (`, h("b", {}, (fused / Math.max(1, kernels.length)).toFixed(1)), ` in one); `,
      `${plural(this.steps.length - kernels.length, "operator")} run by kernels of their own; `,
      `${plural(program.aten.length - this.stepOf.size, "operator")} cost nothing (views, constants).`);
    this.list.set(this.steps.length);
    this.map.redraw();
  }

  operatorName(at) {
    const line = this.links.program.aten[at][0];
    const made = line.indexOf(" = ");
    const call = made < 0 ? line : line.slice(made + 3);
    return call.slice(0, call.indexOf("(")).replace(/^aten\./, "").replace(/\.(default|Tensor|Scalar|int|self)$/, "");
  }

  row(at) {
    const step = this.steps[at];
    const chips = step.operators.slice(0, 24).map((operator) => h("span", { class: "chip", style: { "--hue": hueOfName(this.operatorName(operator)) } }, this.operatorName(operator)));
    if (step.operators.length > 24) chips.push(`… ${step.operators.length - 24} more`);
    return [h("span", { class: "line" }, step.once ? "once" : at - this.links.program.once.length), h("span", { class: `kind ${step.kernel ? "generated" : "called"}` }, step.kernel ? "kernel" : "call"), h("span", { class: "chips" }, chips)];
  }

  describe(at) {
    const step = this.steps[at];
    const { program } = this.links;
    const list = (title, items) => (items.length ? [h("h4", {}, title), h("ul", { class: "mono" }, items.map((item) => h("li", {}, item)))] : null);
    const register = (index) => { const [source, type, , , size] = program.registers[index]; return `r${index} ${type} ${source}${size ? `, ${bytes(size)}` : ""}`; };
    const arguments_ = (roles) => (step.kernel ? step.kernel.registers.filter((_, which) => roles.includes(step.kernel.roles[which])) : roles.includes("r") ? step.reads : step.writes).filter((index) => index >= 0);
    fill(this.detail, h("h3", {}, step.name),
      h("p", {}, step.kernel ? `${plural(step.operators.length, "operator")} in one kernel, ${plural(step.kernel.units, "unit")} ${step.kernel.serial ? "on one thread" : "on all threads"}` : `PyTorch's own kernel, ${step.way}`),
      list("operators", step.operators.map((operator) => program.aten[operator][0])), list("reads", arguments_("rx").map(register)), list("writes", arguments_("wx").map(register)));
  }

  isLit(step) {
    return this.app.lit && !this.links.captured && step.operators.some((at) => this.app.lit.aten.has(at));
  }

  grid(width) {
    const count = this.links.program.aten.length;
    let size = 18;
    while (size > 3 && Math.ceil(count / Math.floor((width - 2) / size)) * size > 130) --size;
    return { size, across: Math.max(1, Math.floor((width - 2) / size)), count };
  }

  draw(context, width, height) {
    if (!this.links || !this.links.program) return;
    const { size, across, count } = this.grid(width);
    context.clearRect(0, 0, width, height);
    const gap = size > 5 ? 1 : 0.5;
    for (let at = 0; at < count; ++at) {
      const x = (at % across) * size, y = Math.floor(at / across) * size;
      const steps = this.stepOf.get(at);
      const lit = this.app.lit && !this.links.captured && this.app.lit.aten.has(at);
      const step = steps && this.steps[steps[0]];
      context.fillStyle = lit ? colour("--accent") : !step ? colour("--line") : step.kernel ? tint(hue(steps[0]), false) : colour("--called");
      context.fillRect(x + gap, y + gap, size - 2 * gap, size - 2 * gap);
    }
  }

  hit(x, y, width) {
    if (!this.links || !this.links.program) return null;
    const { size, across, count } = this.grid(width);
    const at = Math.floor(y / size) * across + Math.floor(x / size);
    if (x >= across * size || at >= count || at < 0) return null;
    const steps = this.stepOf.get(at);
    return { at, text: `${this.links.program.aten[at][0].slice(0, 120)}  →  ${steps ? `step ${steps.map((step) => step - this.links.program.once.length).join(", ")}: ${this.steps[steps[0]].name}` : "no step"}` };
  }

  light(from) {
    if (!this.links || !this.links.program) return;
    this.list.restyle();
    this.map.redraw();
    const first = this.steps.findIndex((step) => this.isLit(step));
    if (from !== "fusion" && first >= 0) this.list.show(first, "center");
    else if (from === "fusion" && first >= 0 && this.list.active < 0) this.list.show(first, "center");
  }
}

const hueOfName = (name) => hue([...name].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) % 997, 7));
