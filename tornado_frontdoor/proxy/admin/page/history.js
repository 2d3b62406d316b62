// The last hours by the minute, as charts.

import { $, make } from "./dom.js";
import { changed, seen, view } from "./state.js";

const H = 160, LEFT = 44, TOP = 10, BOTTOM = 24;

function ticks(most) {
  const rough = most / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, at) => +(at * step).toPrecision(6));
}

function chart(title, unit, lines, minutes) {
  const W = innerWidth < 640 ? 340 : 600; // so that its letters are as large as the page's
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const draw = (tag, attributes, text) => {
    const element = document.createElementNS(svg.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (String(value).startsWith("var(")) element.style.setProperty(name, value);
      else element.setAttribute(name, value);
    }
    if (text != null) element.textContent = text;
    svg.append(element);
  };
  const first = minutes[0].minute, last = minutes.at(-1).minute, span = Math.max(10, last - first);
  const top = Math.max(unit ? 0.1 : 3, ...lines.flatMap(([name]) => minutes.map((minute) => minute[name] || 0)));
  const marks = ticks(top * 1.05), most = Math.max(top * 1.05, marks.at(-1));
  const x = (minute) => LEFT + (W - LEFT - 6) * (minute - first) / span;
  const y = (value) => H - BOTTOM - (H - TOP - BOTTOM) * value / most;
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  svg.setAttribute("role", "img");
  const told = lines.map(([name, label]) => `${label} at most ${+Math.max(...minutes.map((m) => m[name] || 0)).toPrecision(3)} ${unit}`.trim()).join(", ");
  svg.setAttribute("aria-label", `${title}: ${told}`);
  for (const value of marks) {
    draw("line", { x1: LEFT, x2: W - 6, y1: y(value), y2: y(value), stroke: "var(--line)" });
    draw("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end", class: "axis" }, unit && value ? `${value} ${unit}` : value);
  }
  const time = (minute) => new Date(minute * 60000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  draw("text", { x: LEFT, y: H - 6, class: "axis" }, time(first));
  if (span > 10 && W > 400) draw("text", { x: x(first + span / 2), y: H - 6, "text-anchor": "middle", class: "axis" }, time(Math.round(first + span / 2)));
  draw("text", { x: W - 6, y: H - 6, "text-anchor": "end", class: "axis" }, time(first + span));
  for (const [name, , color, bars] of lines) {
    if (bars) {
      const width = Math.max(2, (W - LEFT - 6) / span - 1);
      for (const minute of minutes.filter((one) => one[name])) {
        draw("rect", { x: x(minute.minute) - width, y: y(minute[name]), width, height: y(0) - y(minute[name]), fill: color });
      }
      continue;
    }
    // Minutes in which the front door did not run are a gap, and not a line across it.
    for (const part of stretches(minutes)) {
      const points = part.map((minute) => `${x(minute.minute).toFixed(1)},${y(minute[name] || 0).toFixed(1)}`);
      if (part.length > 1) draw("polyline", { points: points.join(" "), fill: "none", stroke: color, "stroke-width": 2, "stroke-linejoin": "round" });
      else draw("circle", { cx: x(part[0].minute), cy: y(part[0][name] || 0), r: 3, fill: color });
    }
  }
  return make("figure", {}, make("figcaption", {}, make("b", {}, title),
    lines.map(([, label, color]) => make("span", { "--of": color }, label))), svg);
}

function stretches(minutes) {
  const found = [];
  for (const minute of minutes) {
    if (found.length && minute.minute - found.at(-1).at(-1).minute <= 1) found.at(-1).push(minute);
    else found.push([minute]);
  }
  return found;
}

addEventListener("resize", () => changed("history"));
view("history", () => {
  if (!seen.history.length) return;
  // The minute that runs would look like a fall; it is shown where it is all there is.
  const minutes = seen.history.length > 3 ? seen.history.slice(0, -1) : seen.history;
  $("history").replaceChildren(
    chart("Requests a minute", "", [["arrivals", "all", "var(--ink)"], ["served", "served", "var(--green)"], ["refused", "refused or failed", "var(--red)"], ["left", "left", "var(--amber)"]], minutes),
    chart("Waits in the queue of those served", "s", [["wait_p95_s", "95 %", "var(--amber)"], ["wait_p50_s", "median", "var(--blue)"]], minutes),
    chart("At once, at most", "", [["in_flight", "in flight", "var(--blue)"], ["queued", "queued", "var(--amber)"]], minutes),
    chart("Engines that fell asleep", "", [["sleeps", "sleeps", "var(--blue)", true]], minutes));
});
