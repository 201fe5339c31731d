// What of a graph came from what: rows of source, torch calls, ATen operators, loop IR and assembly, joined by the
// operators that they stand for.

const LEVELS = [
  { name: "source", title: "Source", grammar: "python", empty: "The program's text is not at hand." },
  { name: "torch", title: "Torch graph", grammar: "graph", empty: "No graph was captured." },
  { name: "aten", title: "ATen graph", grammar: "graph", empty: "No graph was captured." },
  { name: "loops", title: "Loop IR", grammar: "loops", empty: "Nothing was generated: the backend runs the graph itself." },
  { name: "assembly", title: "Assembly", grammar: "assembly", empty: "No machine code: it is made on the machine that writes the report, if that has the code generator." },
];

/** Positions of the items that have a key: Map key -> [position]. `keys(item)` gives all keys of one. */
function groupedBy(items, keys) {
  const groups = new Map();
  items.forEach((item, position) => {
    for (const key of keys(item)) {
      const group = groups.get(key);
      if (group) group.push(position);
      else groups.set(key, [position]);
    }
  });
  return groups;
}

/** A graph's rows by level, and which belong together. A row: {text, torch: [call...], aten: [operator...], ...}. */
class Links {
  constructor(run, compile, captured) {
    this.run = run;
    this.compile = compile;
    this.program = compile.program;
    /** The ATen level as captured, or as it was lowered. */
    this.captured = captured || !this.program;
    this.aten = (this.captured ? compile.captured : this.program.aten) || [];
    this.atenOf = groupedBy(this.aten, ([, torch]) => (torch < 0 ? [] : [torch]));
    this.rows = {
      source: this.sourceRows(), torch: this.torchRows(), aten: this.aten.map(([text, torch], at) => ({ text, torch: torch < 0 ? [] : [torch], aten: [at] })),
      loops: [], assembly: [],
    };
    this.addCode();
    this.rowsOf = {};
    this.width = {};
    for (const { name } of LEVELS) {
      const by = name === "source" || name === "torch" || (this.captured && name !== "aten") ? "torch" : "aten";
      this.rowsOf[name] = { by, rows: groupedBy(this.rows[name], (row) => row[by] || []) };
      this.width[name] = this.rows[name].reduce((widest, row) => Math.max(widest, row.text.length), 0);
    }
  }

  atenOfCalls(calls) {
    return calls.flatMap((call) => this.atenOf.get(call) || []);
  }

  sourceRows() {
    const calls = groupedBy(this.compile.torch || [], ([, file, line]) => [`${file}:${line}`]);
    const marks = new Map();
    const stack = this.compile.break ? this.compile.break.stack : [];
    for (const [file, line] of stack) marks.set(`${file}:${line}`, this.compile.break.message);
    const rows = [];
    for (const number of this.compile.sections) {
      const section = this.run.sections[number];
      rows.push({ heading: true, text: `${baseName(section.file)}  ${section.name}`, hint: section.file });
      section.lines.forEach((text, at) => {
        const line = section.first + at;
        const torch = calls.get(`${section.file}:${line}`) || [];
        rows.push({ text: text.replaceAll("\t", "    "), line, torch, aten: this.atenOfCalls(torch), mark: marks.get(`${section.file}:${line}`) });
      });
    }
    return rows;
  }

  torchRows() {
    const rows = (this.compile.torch || []).map(([text, file, line, name], at) => ({ text, torch: [at], aten: this.atenOf.get(at) || [], hint: file ? `${file}:${line} in ${name}` : "" }));
    const inputs = this.compile.inputs || [];
    if (inputs.length) {
      rows.push({ heading: true, text: plural(inputs.length, "input") });
      for (const [value, name, type] of inputs) rows.push({ text: `%${value}: ${type} = ${name}`, plain: true });
    }
    return rows;
  }

  /** Loop IR and assembly, equal kernels once, calls in between. */
  addCode() {
    if (!this.program) return;
    const { kernels, steps, once } = this.program;
    const uses = groupedBy(kernels, (kernel) => [kernel.code]);
    const done = new Set();
    const torchOf = (aten) => [...new Set(aten.flatMap((at) => this.row("aten", at, "torch")))];
    for (const step of [...once, ...steps]) {
      if (step.kernel === undefined) {
        const aten = this.captured ? [] : [step.node];
        this.rows.loops.push({ text: `call ${step.call}`, call: true, aten, torch: torchOf(aten), hint: `its own kernel, ${step.way}` });
        continue;
      }
      const { code } = kernels[step.kernel];
      if (done.has(code)) continue;
      done.add(code);
      this.addKernel(code, uses.get(code).map((at) => kernels[at]), torchOf);
    }
  }

  addKernel(code, kernels, torchOf) {
    const text = this.run.codes[code];
    const own = this.captured ? [] : [...new Set(kernels.flatMap((kernel) => kernel.operators))];
    const title = `${kernels[0].name}${kernels.length > 1 ? `  ×${kernels.length}` : ""}`;
    const head = { heading: true, text: title, code, aten: own, torch: torchOf(own) };
    const add = (level, row) => this.rows[level].push(row) - 1;
    add("loops", { ...head });
    const lineOfValue = new Map();
    for (const line of text.loops.slice(1, -1)) {
      const made = /^\s*%(\d+):/.exec(line) || /^\s*store\S* \S+ (?:.*, )?%(\d+)/.exec(line);
      const value = made ? Number(made[1]) : -1;
      const aten = this.captured || value < 0 ? [] : [...new Set(kernels.map((kernel) => kernel.values[value]).filter((at) => at >= 0))];
      const at = add("loops", { text: line.slice(2), code, aten, torch: torchOf(aten) });
      if (made && !lineOfValue.has(value)) lineOfValue.set(value, at);
    }
    if (!text.assembly.length) return;
    add("assembly", { ...head });
    let from = null;
    for (const line of text.assembly) {
      const location = /^\s*\.loc\s+\d+ (\d+)/.exec(line);
      if (location) {
        from = this.rows.loops[lineOfValue.get(Number(location[1]) - 1)] || null;
        continue;
      }
      const code_ = /^\s+[a-z]/.test(line) && from;
      add("assembly", { text: line.replaceAll("\t", "  "), code, aten: code_ ? from.aten : [], torch: code_ ? from.torch : [], from: code_ ? from : null });
    }
  }

  row(level, at, field) {
    const row = this.rows[level][at];
    return (row && row[field]) || [];
  }

  /** All rows that belong to these calls and operators: {level: Set of rows}, and the codes that they are part of. */
  lit(torch, aten) {
    const sets = { torch: new Set(torch), aten: new Set(aten) };
    const rows = {};
    for (const { name } of LEVELS) {
      const { by, rows: found } = this.rowsOf[name];
      rows[name] = new Set([...sets[by]].flatMap((key) => found.get(key) || []));
    }
    const codes = new Set([...rows.loops].map((at) => this.rows.loops[at].code).filter((code) => code !== undefined));
    return { rows, codes, ...sets };
  }

  /** What belongs to a row of a level. */
  from(level, at) {
    const row = this.rows[level][at];
    if (!row) return null;
    return this.lit(row.torch || [], row.aten || []);
  }

  ofOperators(aten) {
    return this.lit(aten.flatMap((at) => this.row("aten", at, "torch")), aten);
  }
}
