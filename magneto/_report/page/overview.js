// The whole program: counts, breaks, compiles, times; and several ranks side by side.

function totals(run) {
  const states = Object.fromEntries(WORST_FIRST.map((state) => [state, 0]));
  for (const compile of run.compiles) ++states[compile.state];
  const sum = (value) => run.compiles.reduce((total, compile) => total + (value(compile) || 0), 0);
  return {
    states, compiles: run.compiles.length, recompiles: run.compiles.filter((compile) => compile.number > 0).length,
    graphs: run.compiles.filter((compile) => (compile.torch || []).length).length,
    breaks: run.compiles.filter((compile) => compile.break).length, failures: states.failed, limits: states.limited,
    operators: sum((compile) => (compile.torch || []).length), kernels: sum(kernelsOf),
    guards: sum((compile) => compile.guard_count), seconds: sum((compile) => compile.seconds), peak: run.compiles.reduce((most, compile) => Math.max(most, ...(compile.programs || []).map((program) => program.peak || 0)), 0),
  };
}

const LABELS = { operators: "torch calls", breaks: "graph breaks" };

/** What is counted at the top and on the cards alike: [count, word, state]. */
const countsOf = (sum) => [[sum.compiles, "compile", "captured"], [sum.breaks, "graph break", "broken"], [sum.recompiles, "recompile", "recompiled"], [sum.failures, "failure", "failed"], [sum.limits, "limit reached", "limited"], [sum.states.unfinished, "unfinished compile", "unfinished"]].filter(([count], at) => count || at === 0);

function overview(app) {
  const { run } = app;
  const sum = totals(run);
  const card = (value, text, state) => h("div", { class: `card ${state || ""}` }, h("b", {}, value), h("span", {}, text));
  const breaks = new Map();
  for (const compile of run.compiles) {
    if (!compile.break) continue;
    const key = `${compile.break.reason}: ${compile.break.message}`;
    breaks.set(key, [...(breaks.get(key) || []), compile]);
  }
  const failed = run.compiles.filter((compile) => compile.failure && compile.state !== "limited");
  const limited = run.compiles.filter((compile) => compile.state === "limited");
  const varying = changesOf(run.compiles).slice(0, 6);
  const link = (compile, text, view) => h("button", { class: "link", onclick: () => app.open(compile, view) }, text || `[${compile.id}]`);
  const where = (compile) => { const [file, line, name] = compile.break.stack.at(-1) || [compile.file, compile.line, compile.name]; return `${place(file, line)} in ${name}`; };
  const section = (title, ...children) => h("section", { class: "panel" }, h("h2", {}, title), children);
  return h("div", { class: "view scroll overview" },
    h("div", { class: "cards" },
      card(number(sum.compiles), sum.compiles === 1 ? "compile" : "compiles"), card(number(sum.graphs), sum.graphs === 1 ? "graph" : "graphs"),
      card(number(sum.breaks), sum.breaks === 1 ? "graph break" : "graph breaks", sum.breaks ? "broken" : ""), card(number(sum.recompiles), sum.recompiles === 1 ? "recompile" : "recompiles", sum.recompiles ? "recompiled" : ""),
      card(number(sum.failures), sum.failures === 1 ? "failure" : "failures", sum.failures ? "failed" : ""), sum.limits ? card(number(sum.limits), sum.limits === 1 ? "limit reached" : "limits reached", "limited") : null,
      card(number(sum.operators), "torch calls"), card(number(sum.kernels), "kernels"), card(number(sum.guards), "guards"), card(seconds(sum.seconds) || "–", "compiling"), sum.peak ? card(bytes(sum.peak), "planned peak of memory") : null),
    findingSections(app),
    failed.length ? section("Failures", h("ul", { class: "findings" }, failed.map((compile) => h("li", {}, stateMark("failed"), h("div", {}, h("div", {}, link(compile), ` ${place(compile.file, compile.line)} in ${compile.name}`), h("div", { class: "dim" }, `${compile.failure.type}: ${compile.failure.text}`)))))) : null,
    limited.length ? section("Limits that are reached", h("ul", { class: "findings" }, limited.map((compile) => h("li", {}, stateMark("limited"), h("div", {}, h("div", {}, link(compile), ` ${place(compile.file, compile.line)} in ${compile.name}: config.${compile.failure.type}`), h("div", { class: "dim" }, `${compile.failure.text} Its captures go on serving; new cases run under CPython.`)))))) : null,
    breaks.size ? section("Graph breaks", h("ul", { class: "findings" }, [...breaks].sort((a, b) => b[1].length - a[1].length).map(([text, compiles]) => h("li", {}, stateMark("broken"),
      h("div", {}, h("div", {}, h("b", {}, text), compiles.length > 1 ? ` ×${compiles.length}` : ""), h("div", { class: "dim" }, compiles[0].break.hint || ""), h("div", {}, compiles.slice(0, 12).map((compile) => [link(compile), ` ${where(compile)}  `]), compiles.length > 12 ? `and ${compiles.length - 12} more` : "")))))) : null,
    varying.length ? section("What keeps changing", h("ul", { class: "findings" }, varying.map((change) => h("li", {}, stateMark("recompiled"), changeText(app, change))))) : null,
    section("Time", flame(run.compiles.flatMap((compile) => stageBars(compile, { onpick: () => app.open(compile, "time") })).map((bar) => ({ ...bar, zooms: true })), { label: "stages of all compiles" })),
    h("section", { class: "panel tall", style: { height: `min(60vh, ${90 + 26 * run.compiles.length}px)` } }, h("h2", {}, "Compiles"), compileTable(app)),
    run.problems.length ? section("Problems with the log", h("ul", {}, run.problems.map((problem) => h("li", {}, problem)))) : null);
}

/** What keeps changing, where the program needs it, and what would stop it. */
function changeText(app, { what, remedy, place: where, count, compiles }) {
  const [file, line] = where;
  const code = file ? sourceLine(app.run, file, line).trim() : "";
  return h("div", {}, h("div", {}, h("b", {}, what), ` ×${count}`, file ? [" at ", h("span", { title: file }, place(file, line)), code ? [": ", h("code", {}, code)] : ""] : ""),
    h("div", { class: "dim" }, remedy), h("div", {}, compiles.slice(0, 12).map((compile) => [h("button", { class: "link", onclick: () => app.open(compile, "history") }, `[${compile.id}]`), " "])));
}

function compileTable(app) {
  return table({
    label: "compiles", rows: app.run.compiles, onpick: (compile) => app.open(compile),
    columns: [
      { name: "state", value: (row) => WORST_FIRST.indexOf(row.state), show: (row) => [stateMark(row.state), " ", row.state], width: "9em" },
      { name: "id", value: (row) => row.frame * 1e4 + row.number, show: (row) => `[${row.id}]`, width: "5em" },
      { name: "function", value: (row) => row.name, class: "mono", width: "minmax(8em, 2fr)" },
      { name: "where", value: (row) => `${row.file}:${String(row.line).padStart(7)}`, show: (row) => h("span", { title: `${row.file}:${row.line}` }, place(row.file, row.line)), class: "mono", width: "minmax(9em, 2fr)" },
      { name: "torch calls", value: (row) => (row.torch || []).length, number: true, width: "7em" },
      { name: "kernels", value: kernelsOf, number: true, width: "6em" },
      { name: "guards", value: (row) => row.guard_count, number: true, width: "6em" },
      { name: "time", value: (row) => row.seconds, show: (row) => seconds(row.seconds), number: true, width: "7em" },
    ],
  }).element;
}

/** A table of frames by ranks, where ranks differ marked; below it their times on one axis. */
function ranks(app) {
  const { runs } = app.data;
  const names = ["compiles", "graphs", "breaks", "recompiles", "operators", "kernels", "guards"];
  const sums = runs.map(totals);
  const frames = new Map();
  runs.forEach((run, at) => {
    for (const compile of run.compiles) {
      const key = `${compile.file}:${compile.line} ${compile.name}`;
      if (!frames.has(key)) frames.set(key, { compile, by: runs.map(() => []) });
      frames.get(key).by[at].push(compile);
    }
  });
  const differs = (values) => new Set(values).size > 1;
  const row = (title, values, shown = values) => h("tr", { class: differs(values) ? "differs" : "" }, h("th", { scope: "row" }, title), shown.map((value) => h("td", { class: "number" }, value)));
  const cell = (run, compiles) => h("td", {}, compiles.length
    ? compiles.map((compile) => h("button", { class: "link", title: `${STATES[compile.state].title}, ${seconds(compile.seconds)}`, onclick: () => { app.choose(null); app.select(run); app.open(compile); } }, stateMark(compile.state), `[${compile.id}]`))
    : h("span", { class: "dim" }, "not compiled"));
  const signature = (compiles) => compiles.map((compile) => `${compile.state} ${(compile.torch || []).length}`).join();
  const begin = (run) => Math.min(...run.compiles.flatMap((compile) => compile.stages.map(([, from]) => from)));
  const bars = runs.flatMap((run, at) => run.compiles.flatMap((compile) => stageBars({ ...compile, stages: compile.stages.filter(([stage]) => !stage.includes(".")) }, { from: at, onpick: () => { app.select(run); app.open(compile); } })))
    .map((bar) => ({ ...bar, name: `${runs[bar.depth].label}: ${bar.name}`, zooms: true }));
  return h("div", { class: "view scroll overview" },
    h("p", { class: "lead" }, `${runs.length} processes side by side; rows where they differ are marked.`),
    h("div", { class: "panel" }, h("table", { class: "ranks" },
      h("thead", {}, h("tr", {}, h("th", {}), runs.map((run) => h("th", { scope: "col" }, h("button", { class: "link", onclick: () => { app.select(run); app.overview(); } }, run.label))))),
      h("tbody", {}, names.map((name) => row(LABELS[name] || name, sums.map((sum) => number(sum[name])))), WORST_FIRST.filter((state) => sums.some((sum) => sum.states[state])).map((state) => row(state, sums.map((sum) => number(sum.states[state])))),
        h("tr", {}, h("th", { scope: "row" }, "compiling"), sums.map((sum) => h("td", { class: "number" }, seconds(sum.seconds)))),
        [...frames].map(([key, { compile, by }]) => h("tr", { class: differs(by.map(signature)) ? "differs" : "" }, h("th", { scope: "row", class: "mono", title: key }, `${place(compile.file, compile.line)} ${compile.name}`), by.map((compiles, at) => cell(runs[at], compiles))))))),
    h("section", { class: "panel" }, h("h2", {}, "Time"), flame(bars, { label: "compiles of all ranks" })));
}
