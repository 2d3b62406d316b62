// What every view makes its elements with, and how it says amounts of time.
// Everything that comes from outside goes in as text, never as HTML.

export const $ = (id) => document.getElementById(id);

export function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "onclick") element.addEventListener("click", value);
    else if (name.startsWith("--") || name === "width") element.style.setProperty(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

export function seconds(value) {
  if (value == null) return "–";
  if (value < 0.001) return "<1 ms";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} d`;
}

export const words = (name) => name.replaceAll("_", " ");
export const clock = (time) => new Date(time).toLocaleTimeString([], { hour12: false });
export const count = (number, one, many) => `${number} ${number === 1 ? one : many || `${one}s`}`;

// A table whose cells are texts or elements; `n` marks columns of numbers.
export function table(caption, columns, rows, more) {
  const heads = columns.map(([name, kind]) => make("th", { scope: "col", class: kind }, name));
  return make("div", { class: "wide" }, make("table", more || {},
    make("caption", { class: "unseen" }, caption),
    make("thead", {}, make("tr", {}, heads)),
    make("tbody", {}, rows.map((cells) => make("tr", {}, cells.map((cell, at) =>
      make("td", { class: columns[at][1] }, cell)))))));
}
