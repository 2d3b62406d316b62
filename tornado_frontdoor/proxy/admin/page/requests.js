// The last requests, newest first, filtered, each with its story.

import { $, clock, make, seconds, words } from "./dom.js";
import { changed, seen, view } from "./state.js";
import { story } from "./story.js";

const open = new Set();
let held = false;

function kind(outcome) {
  if (outcome === "served") return "served";
  return outcome.startsWith("client_gone") || outcome.startsWith("queue") || outcome === "model_waking" ? "late" : "bad";
}

function wanted(one) {
  const outcome = $("by-outcome").value, model = $("by-model").value.toLowerCase(), client = $("by-client").value;
  if (outcome === "!served" ? one.outcome === "served" : outcome && one.outcome !== outcome) return false;
  if (model && !`${one.model} ${one.upstream}`.toLowerCase().includes(model)) return false;
  return !client || `${one.client} ${one.forwarded} ${one.user_agent} ${one.key}`.includes(client);
}

function row(one) {
  const id = one.request_id, isOpen = open.has(id);
  const toggle = make("button", { class: "link", "aria-expanded": String(isOpen), "data-id": id, onclick: () => {
    if (!open.delete(id)) open.add(id);
    draw();
    document.querySelector(`[data-id="${id}"]`)?.focus();
  } }, clock(one.time));
  const tokens = one.tokens_out == null ? "–" : `${one.tokens_in ?? "?"} → ${one.tokens_out}`;
  const cells = make("tr", {}, make("td", {}, toggle),
    make("td", {}, make("span", { class: `pill ${kind(one.outcome)}` }, words(one.outcome))),
    make("td", { class: "model" }, one.model || one.path), make("td", { class: "client" }, one.forwarded || one.client || ""),
    make("td", { class: "n" }, one.place == null ? "–" : seconds(one.waited_s)),
    make("td", { class: "n" }, seconds(one.first_byte_s)), make("td", { class: "n" }, seconds(one.total_s)),
    make("td", { class: "n" }, tokens), make("td", { class: "why" }, one.cause || ""));
  return isOpen ? [cells, make("tr", { class: "story" }, make("td", { colspan: 9 }, story(one)))] : [cells];
}

function draw() {
  const known = new Set([...$("by-outcome").options].map((option) => option.value));
  for (const one of seen.requests) {
    if (known.has(one.outcome)) continue;
    known.add(one.outcome);
    $("by-outcome").append(make("option", { value: one.outcome }, words(one.outcome)));
  }
  const focused = document.activeElement && document.activeElement.dataset.id;
  const shown = seen.requests.filter(wanted).slice(-100).reverse();
  const none = seen.requests.length ? "No request is like that." : "No request has ended yet.";
  $("rows").replaceChildren(...shown.length ? shown.flatMap(row)
    : [make("tr", {}, make("td", { colspan: 9, class: "empty" }, none))]);
  $("shown").textContent = `${shown.length} of ${seen.requests.length}`;
  if (focused) document.querySelector(`[data-id="${focused}"]`)?.focus();
}

view("requests", draw, () => held);
$("filter").addEventListener("submit", (event) => event.preventDefault());
for (const id of ["by-outcome", "by-model", "by-client"]) $(id).addEventListener("input", draw);
$("pause").addEventListener("click", () => {
  held = !held;
  $("pause").setAttribute("aria-pressed", String(held));
  $("pause").textContent = held ? "Go on" : "Hold still";
  if (!held) changed("requests");
});
