// What is in the memory of each GPU, who goes for whom, whose turn is next; and the cluster.

import { make, seconds, table, words } from "./dom.js";
import { passed, seen } from "./state.js";

const LEVELS = ["awake", "asleep, level 1", "asleep, level 2", "ended"];

function bar(device, engines) {
  const on = Object.entries(engines).filter(([, one]) => one.devices.includes(device.device) && one.gib > 0);
  const share = (gib) => `${100 * gib / device.memory_gib}%`;
  const told = on.map(([name, one]) => `${name} ${one.gib} GiB`).join(", ") || "nothing";
  return make("div", { class: "gpu" }, make("b", {}, `GPU ${device.device}`),
    make("div", { class: "bar", role: "img", "aria-label": `On GPU ${device.device}: ${told}` },
      on.map(([name, one]) => make("i", { class: one.moving ? "waking" : one.level ? "sleeping" : "awake",
        width: share(one.gib), title: `${name}: ${one.gib} GiB` }, one.gib / device.memory_gib > 0.1 ? name : "")),
      make("s", { width: share(device.memory_gib - device.limit_gib) })),
    make("span", { class: "small" }, `${device.taken_gib} of ${device.limit_gib} GiB`));
}

function now(one) {
  if (one.moving) return one.moving === "waking" ? "wakes" : "falls asleep";
  return LEVELS[one.level] || "asleep";
}

function next(name, one, turns) {
  const turn = turns.findIndex((each) => each.upstream === name);
  if (turn >= 0) {
    const { waits_s: waits, waits_for: what } = turns[turn];
    return `turn ${turn + 1}: waits ${seconds(waits + passed())} for ${what || "its turn"}`;
  }
  if (one.room_for) return `goes ${one.goes_to === 3 ? "away" : `to level ${one.goes_to}`} for ${one.room_for}, once those in flight have ended`;
  if (one.pinned) return "pinned: never sent away";
  return one.if_asked ? `if asked for: ${one.if_asked}` : "";
}

export function gpus() {
  if (!seen.gpus) return null;
  const { devices, engines, turns, host } = seen.gpus;
  if (!Object.keys(engines).length) {
    return make("section", { class: "card", "aria-label": "GPUs" }, make("h2", {}, "GPUs"),
      make("p", { class: "small" }, "Nothing is in them, or another front door keeps the ledger."));
  }
  const several = devices.length > 1;
  const rows = Object.entries(engines).map(([name, one]) => [name, now(one), next(name, one, turns),
    several ? one.devices.join(", ") : null, `${one.gib}`, `${one.awake_gib}`, `${one.asleep_gib}`, String(one.priority)]);
  const columns = [["engine"], ["is"], ["next", "why"], several ? ["GPU", "n"] : null,
    ["GiB now", "n"], ["awake", "n"], ["asleep", "n"], ["priority", "n"]];
  const shown = (list) => list.filter((one) => one != null);
  return make("section", { class: "card gpus", "aria-label": "GPUs" },
    make("h2", {}, "GPUs"),
    devices.map((device) => bar(device, engines)),
    host ? make("p", { class: "small" }, `Host memory for the weights of sleepers: ${host.taken_gib} of ${host.limit_gib} GiB`) : null,
    table("Who is on the GPUs", shown(columns), rows.map(shown)));
}

export function cluster() {
  const one = seen.cluster;
  if (!one) return null;
  const notes = [one.outage && `an outage: it ${one.splits ? "goes on with its share" : "refuses"}`,
    !one.same_limits && "its limits differ from the owner's, which hold"].filter(Boolean);
  return make("section", { class: "card", "aria-label": "Cluster" },
    make("header", {}, make("h2", {}, "Cluster"), make("span", { class: `pill ${one.role === "owner" || one.role === "member" ? "awake" : "down"}` }, one.role)),
    make("p", { class: "small" }, `This front door is ${one.door}, one of ${one.doors.length}: ${one.doors.join(", ")}`),
    notes.map((text) => make("p", { class: "small note" }, words(text))));
}
