// What the debugging tools found: the table of runs, graphs before and after the minifier, the first wrong value.

function findingSections(app) {
  const makers = { ablation, minified, wrong: wrongValue };
  return (app.run.findings || []).map((finding) => makers[finding.kind] && h("section", { class: `panel finding ${finding.kind}` }, makers[finding.kind](finding)));
}

/** How the program ended in each way to run it, and what is named as the fault. */
function ablation({ rows, stage, what, named, runs, seconds: taken }) {
  return [
    h("h2", {}, stage ? `At fault: ${stage}` : "The compiled program does what eager does"), what ? h("p", { class: "dim" }, what) : null,
    named.length ? h("table", { class: "plain named" }, h("tbody", {}, named.map(([name, text]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "mono" }, text))))) : null,
    h("table", { class: "plain runs" }, h("thead", {}, h("tr", {}, ["run", "result", "time"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rows.map(([name, verdict, time, bad]) => h("tr", { class: bad ? "bad" : "" }, h("th", { scope: "row" }, name), h("td", {}, stateMark(bad ? "failed" : "captured"), " ", verdict), h("td", { class: "number" }, seconds(time)))))),
    h("p", { class: "dim" }, `${plural(runs, "run")}, ${seconds(taken)}`),
  ];
}

/** A graph or a program, whole and reduced, side by side. */
function minified({ level, before, after, counts, failure, seconds: taken }) {
  const grammar = level === "operators" ? "graph" : "python";
  const code = (text) => h("pre", { class: "code-text", tabindex: 0 }, text.split("\n").map((line) => [paint(line, grammar), "\n"]));
  const unit = level === "program" ? "line" : "operator";
  return [
    h("h2", {}, `Minified: ${plural(counts[0], unit)} to ${number(counts[1])}, in ${seconds(taken)}`), h("p", { class: "dim" }, failure),
    h("div", { class: "pair" }, h("div", {}, h("h3", {}, "before"), code(before)), h("div", {}, h("h3", {}, "after"), code(after))),
  ];
}

/** The first result that is not eager's, where, and how its errors are spread. */
function wrongValue({ place: where, where: result, difference, text, others, errors }) {
  const first = errors && errors.first;
  return [
    h("h2", {}, `First wrong value: ${result}`), h("p", {}, h("b", {}, difference), `: ${text}`), h("p", { class: "dim" }, `of ${where}${others ? `; ${plural(others, "more result")} ${others === 1 ? "differs" : "differ"}` : ""}`),
    first ? h("p", { class: "first-value" }, "at ", h("code", {}, `[${first[0].join(", ")}]`), ": ", h("code", {}, first[1]), ", eager ", h("code", {}, first[2])) : null,
    errors ? [errorPicture(errors), errorLegend(errors)] : null,
  ];
}

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const tenTo = (power) => `10${power < 0 ? "⁻" : ""}${[...String(Math.abs(power))].map((digit) => SUPERSCRIPTS[digit]).join("")}`;

/** An element of a drawing. */
function svg(tag, properties, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, value);
  element.append(...children.flat(Infinity).filter((child) => child !== null));
  return element;
}

/**
 * |error| over the magnitude of the value, both by powers of ten: the fuller a field, the more values are there. A frame
 * is where eager's own errors are. Right of it how many values have errors of that size. Zero stands with the least.
 */
function errorPicture({ compiled, eager, allowed, values }) {
  const fields = [...compiled, ...eager];
  if (!fields.length) return null;
  const range = (at) => [Math.min(...fields.map((field) => field[at])), Math.max(...fields.map((field) => field[at]))];
  const [[left, right], [low, high]] = [range(0), range(1)];
  const [cell, line, from, top, bars] = [26, 16, 64, 10, 160];
  const x = (power) => from + (power - left) * cell;
  const y = (power) => top + (high - power) * line;
  const [width, height] = [x(right + 1), y(low - 1)];
  const most = Math.max(1, ...compiled.map((field) => field[2]));
  const strength = (count) => 0.2 + (0.8 * Math.log1p(count)) / Math.log1p(most);
  const title = (of, [magnitude, error, count]) => svg("title", {}, `${of}: ${plural(count, "value")} of about ${tenTo(magnitude)} off by about ${tenTo(error)}`);
  const sums = new Map();
  for (const [, error, count] of compiled) sums.set(error, (sums.get(error) || 0) + count);
  const longest = Math.max(1, ...sums.values());
  const border = allowed > 0 ? Math.log10(allowed) : -Infinity;
  const limit = border >= low && border <= high + 1 ? y(border - 1) : null;
  const every = Math.ceil((high - low + 1) / 16);
  return svg("svg", { class: "errors", role: "img", "aria-label": `errors by the size of the value, of ${plural(values, "value")}`, viewBox: `0 0 ${width + bars + 70} ${height + 40}`, width: width + bars + 70, height: height + 40 },
    eager.map((field) => svg("rect", { class: "eager", x: x(field[0]) + 1.5, y: y(field[1]) + 1.5, width: cell - 3, height: line - 3 }, title("eager", field))),
    compiled.map((field) => svg("rect", { class: "compiled", x: x(field[0]) + 3, y: y(field[1]) + 3, width: cell - 6, height: line - 6, "fill-opacity": strength(field[2]) }, title("compiled", field))),
    [...sums].map(([error, count]) => [svg("rect", { class: "compiled", x: width + 12, y: y(error) + 3, width: Math.max(1.5, (bars * count) / longest), height: line - 6 }), svg("text", { x: width + 18 + Math.max(1.5, (bars * count) / longest), y: y(error) + line - 4 }, number(count))]),
    limit === null ? null : [svg("line", { class: "allowed", x1: from - 4, x2: width + 8, y1: limit, y2: limit })],
    svg("line", { class: "axis", x1: from, x2: width, y1: height, y2: height }), svg("line", { class: "axis", x1: from, x2: from, y1: top, y2: height }),
    Array.from({ length: high - low + 1 }, (_, at) => low + at).filter((power) => (power - low) % every === 0).map((power) => svg("text", { x: from - 6, y: y(power) + line - 4, "text-anchor": "end" }, tenTo(power))),
    Array.from({ length: right - left + 1 }, (_, at) => left + at).filter((power) => (power - left) % 2 === 0).map((power) => svg("text", { x: x(power) + cell / 2, y: height + 14, "text-anchor": "middle" }, tenTo(power))),
    svg("text", { x: from, y: height + 32 }, "size of the value"), svg("text", { x: width + 12, y: height + 14 }, "values"));
}

function errorLegend({ values, odd, exact, allowed }) {
  const facts = [`${plural(values, "value")}, ${number(exact[0])} without an error (eager: ${number(exact[1])})`, odd ? `${number(odd)} NaN or infinite on one side only` : ""];
  return h("ul", { class: "legend" },
    h("li", {}, h("span", { class: "swatch error-compiled" }), "errors of the compiled code"), h("li", {}, h("span", { class: "swatch error-eager" }), "eager's own errors"),
    allowed ? h("li", {}, h("span", { class: "swatch error-allowed" }), `allowed: ${allowed.toPrecision(3)}`) : null, facts.filter(Boolean).map((fact) => h("li", {}, fact)));
}
