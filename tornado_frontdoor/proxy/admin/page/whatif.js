// What the traffic of the last hours would have met with other limits, beside what it met.

import { $, count, make, seconds, table } from "./dom.js";
import { headers } from "./actions.js";
import { seen, view } from "./state.js";

const percent = (value) => value == null ? "–" : `${(100 * value).toFixed(value && value < 0.1 ? 2 : 1)} %`;
const ROWS = [
  ["served", "served_share", percent], ["refused, the queue was full", "rejected_share", percent],
  ["waited too long", "timed_out_share", percent],
  ["wait, median", "wait_p50_s", seconds], ["wait, 95 %", "wait_p95_s", seconds],
  ["until the end, median", "latency_p50_s", seconds], ["until the end, 95 %", "latency_p95_s", seconds],
];

// The limits of the upstream that is chosen, until somebody types others.
function fill() {
  const engine = seen.engines[$("if-upstream").value];
  if (!engine) return;
  $("if-cap").value = engine.cap;
  $("if-queue").value = engine.queue;
  $("if-timeout").value = engine.queue_timeout_s ?? "";
}

view("whatif", () => {
  const capped = Object.keys(seen.engines).filter((name) => seen.engines[name].cap != null);
  const there = [...$("if-upstream").options].map((option) => option.value);
  if (capped.join("\n") !== there.join("\n")) {
    $("if-upstream").replaceChildren(...capped.map((name) => make("option", { value: name }, name)));
    fill();
  }
  $("if-none").hidden = capped.length > 0;
  $("if-form").hidden = !capped.length;
});

$("if-upstream").addEventListener("change", fill);
$("if-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const query = new URLSearchParams({ cap: $("if-cap").value, queue: $("if-queue").value, timeout_s: $("if-timeout").value });
  $("if-go").disabled = true;
  $("if-said").textContent = "replaying …";
  $("if-result").replaceChildren();
  try {
    const path = `admin/what-if/${encodeURIComponent($("if-upstream").value)}?${query}`;
    const answer = await fetch(path, { method: "POST", headers: headers() });
    const told = await answer.json();
    $("if-said").textContent = answer.ok ? `${count(told.requests, "request")} since ${new Date(told.since).toLocaleString()} replayed in ${seconds(told.took_s)}.` : told.error;
    if (answer.ok) $("if-result").replaceChildren(result(told));
  } catch (error) {
    $("if-said").textContent = `no answer: ${error.message}`;
  }
  $("if-go").disabled = false;
});

function limits(one) {
  return `cap ${one.cap}, queue ${one.queue}, timeout ${one.timeout_s == null ? "none" : `${one.timeout_s} s`}`;
}

function result(told) {
  const columns = [[""], ["as it was", "n"], [`replayed as it is: ${limits(told.in_force.limits)}`, "n"], [`replayed with ${limits(told.asked.limits)}`, "n"]];
  const rows = ROWS.map(([label, name, show]) => [label, show(told.observed[name]), show(told.in_force.metrics[name]), show(told.asked.metrics[name])]);
  return make("div", {}, table("What it was and what it would have been", columns, rows), make("p", { class: "small" },
    "As it was and replayed as it is are to be alike: how far they differ tells how far to trust the last column. " +
    "Requests come when they came; how much slower they are together is fitted to them."));
}
