"use strict";
// Elements, numbers as text, and the colours of code.

/** An element: h("button", {class: "x", onclick: f}, "text", child...). Text is always text, never markup. */
function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Replaces what is in an element. */
function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const STATES = {
  failed: { glyph: "✕", text: "failed", title: "not captured: left to CPython" },
  limited: { glyph: "⊘", text: "at a limit", title: "a limit on captures is reached: new cases run under CPython, as the settings say" },
  broken: { glyph: "⚡", text: "broken", title: "captured up to a graph break" },
  recompiled: { glyph: "↻", text: "recompiled", title: "captured again, because guards failed" },
  unfinished: { glyph: "…", text: "unfinished", title: "the log has no end of this compile" },
  captured: { glyph: "✓", text: "captured", title: "captured as one graph" },
};
const WORST_FIRST = Object.keys(STATES);
const worst = (states) => WORST_FIRST.find((state) => states.includes(state));

function stateMark(state, hollow) {
  return h("span", { class: `mark ${state}${hollow ? " hollow" : ""}`, title: STATES[state].title, role: "img", "aria-label": state }, STATES[state].glyph);
}

const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : word.endsWith("s") ? "es" : "s"}`;
const number = (value) => value.toLocaleString("en-US");

function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value >= 1) return `${value.toFixed(2)} s`;
  if (value >= 1e-3) return `${(value * 1e3).toFixed(value >= 0.1 ? 0 : value >= 0.01 ? 1 : 2)} ms`;
  if (value >= 1e-6) return `${(value * 1e6).toFixed(value >= 1e-4 ? 0 : 1)} µs`;
  return `${(value * 1e9).toFixed(0)} ns`;
}

function bytes(value) {
  if (!value) return "0 B";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, Math.floor(Math.log2(value) / 10));
  const scaled = value / 1024 ** power;
  return `${power && scaled < 100 ? scaled.toFixed(1) : Math.round(scaled)} ${units[power]}`;
}

const baseName = (file) => file.slice(file.lastIndexOf("/") + 1);
const place = (file, line) => `${baseName(file)}:${line}`;

/** Hues that stay apart: the n-th of a sequence around the circle. */
const hue = (index) => Math.round((index * 137.508 + 210) % 360);

const KEYWORDS =
  "and as assert async await break class continue def del elif else except finally for from global if import in is lambda " +
  "match nonlocal not or pass raise return try while with yield None True False self";
const GRAMMARS = {
  python: new RegExp(`(?<comment>#.*$)|(?<string>[rbf]*"(?:\\\\.|[^"\\\\])*"|[rbf]*'(?:\\\\.|[^'\\\\])*')|(?<keyword>\\b(?:${KEYWORDS.replaceAll(" ", "|")})\\b)|(?<number>\\b\\d[\\w.]*)|(?<call>[A-Za-z_]\\w*(?=\\())`, "g"),
  graph: /(?<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?<value>%\d+)|(?<type>\b[a-z]+\d+\[[^\]]*\](?:\{[^}]*\})?)|(?<call>[\w.]+(?=\())|(?<keyword>\b(?:None|True|False)\b)|(?<number>(?<![\w.%])-?\d[\w.]*)/g,
  loops: /(?<string>"(?:\\.|[^"\\])*")|(?<value>%\d+)|(?<keyword>\b(?:kernel|parallel|stage|row|in|out|inout|scratch|if|else)\b)|(?<type>\b(?:[fiu]\d+|bf16|bool|b8)\b)|(?<call>(?<== )[\w.]+|\bstore(?:\.add)?\b)|(?<variable>\bi\d+\b)|(?<number>(?<![\w.%])-?\d[\w.]*)/g,
  assembly: /(?<comment>#.*$)|(?<label>^[.\w$]+:)|(?<keyword>^\s*\.\w+)|(?<call>^\s*[a-z]\w*)|(?<value>%\w+)|(?<number>[$-]*\b\d\w*)/g,
};

/** A line of code as coloured pieces. */
function paint(text, grammar) {
  const pieces = [];
  let end = 0;
  for (const match of text.matchAll(GRAMMARS[grammar])) {
    if (match.index > end) pieces.push(text.slice(end, match.index));
    const kind = Object.keys(match.groups).find((name) => match.groups[name] !== undefined);
    pieces.push(h("span", { class: `t-${kind}` }, match[0]));
    end = match.index + match[0].length;
  }
  if (end < text.length) pieces.push(text.slice(end));
  return pieces;
}
