/* Status: how the service is, for its operator; read again every two seconds while it is looked at.
 * In:    GET /admin/status, with a key of scope admin
 * Out:   figures, tables of replicas, versions and refusals, links to other tools
 * Owns:  the timer
 * Never: a question while another section or another tab is shown */

import {json, service} from "./api.js";
import {button, el, row, seconds, table} from "./dom.js";
import {attempt, errorPlace} from "./errors.js";
import {t} from "./strings.js";

const EVERY_MS = 2000;
const LINKS = {ray_dashboard: "Ray's dashboard", grafana: "Grafana"};

export function status() {
  const errors = errorPlace(), shown = el("div", {id: "status-shown"});
  const live = el("input", {type: "checkbox", id: "status-live", checked: true});
  let timer = null;

  async function read() {
    clearTimeout(timer);
    await attempt(errors, async () => {
      show(shown, await json("admin/status"));
      next();
    });
  }

  /** After an error nothing is asked again by itself: a wrong key does not become right, and `back` tells when a service is back. */
  function next() {
    clearTimeout(timer);
    if (element.isConnected && live.checked) timer = setTimeout(() => document.hidden ? next() : read(), EVERY_MS);
  }

  live.addEventListener("change", next);
  service.addEventListener("back", () => element.isConnected && read());
  const element = el("div", {},
    el("div", {class: "buttons"}, button("Read now", read, {class: "go", id: "read-status"}), el("label", {class: "check"}, live, " ", t("live"))),
    errors, shown);
  return {element, act: read, open: read};
}

function show(place, state) {
  const {acoustic = [], vocoder = [], text = [], versions = {}, recent, admission, cache, degrade, breakers = {}, stores = {}, quarantine} = state;
  const sum = name => acoustic.reduce((all, one) => all + (one[name] ?? 0), 0);
  const looked = cache && cache.memory_hits + cache.shared_hits + cache.joined + cache.misses;
  const trouble = [
    ...Object.entries(stores).map(([name, why]) => `${name}: ${why}`),
    ...Object.entries(breakers).filter(([, {state: now}]) => now !== "closed").map(([stage, {state: now}]) => `breaker of ${stage}: ${now}`),
    ...[...text, ...acoustic, ...vocoder].filter(one => one.trouble).map(one => `${one.replica}: ${one.trouble}`),
    state.routes_error].filter(Boolean);
  place.replaceChildren(
    el("p", {class: "quiet"}, t("{name} {version}, as one ingress replica sees it.", state)),
    trouble.length ? el("ul", {class: "error", id: "trouble"}, trouble.map(one => el("li", {}, one))) : el("p", {class: "well"}, t("No trouble.")),
    tiles({
      "requests in flight": of(admission.in_flight, admission.capacity),
      "slots in use": acoustic.length ? `${of(sum("slots_used"), sum("slots_usable"))}${sum("slots_usable") < sum("slots") ? ` (${sum("slots")})` : ""}` : "–",
      "waiting for a slot": acoustic.length ? sum("waiting") : "–",
      "first audio": timeOf(recent.first_audio_s), "95 % sooner than": timeOf(recent.late_first_audio_s),
      "replies in 5 min": recent.replies, "refused": recent.outcomes.refused ?? 0, "cut": recent.outcomes.cut ?? 0, "stalled": recent.stalled,
      "found in the cache": looked ? of(`${Math.round(100 - 100 * cache.misses / looked)} %`, looked) : "–",
      "degradation": degrade ? `${t("level {level}", degrade)}${degrade.active_steps.length ? `: ${degrade.active_steps.join(", ")}` : ""}` : "–",
      "in quarantine": quarantine?.quarantined ?? "–"}),
    tableOf("Replicas", ["stage", "replica", "slots", "waiting", "round", "GPU memory", "state"], [
      ...text.map(one => replica("text", one)), ...acoustic.map(one => replica("acoustic", one)), ...vocoder.map(one => replica("vocoder", one))]),
    tableOf("Versions", ["version", "share", "state", "requests", "failed", "first audio"], Object.entries(versions).map(([name, one]) => [
      name, `${Math.round(100 * one.share)} %`, t(one.state.replaceAll("_", " ")), one.requests, one.failed, timeOf(one.first_audio_s)])),
    tableOf("Errors in 5 min", ["code", "count"], Object.entries(recent.errors)),
    el("p", {id: "dashboards"}, Object.entries(state.dashboards).map(([name, href]) => [
      el("a", {href, target: "_blank", rel: "noopener noreferrer"}, t(LINKS[name] ?? name)), " "]).flat()));
}

const timeOf = s => s === null ? "–" : seconds(s);
const of = (part, whole) => t("{part} of {whole}", {part, whole});
const tiles = figures => el("dl", {class: "tiles"}, Object.entries(figures).map(([name, value]) => el("div", {class: "card"}, el("dt", {}, t(name)), el("dd", {}, String(value)))));

function replica(stage, one) {
  const name = [one.deployment, one.replica].filter(Boolean).join(" · "), round_s = one.round_s || one.call_s;
  return [t(stage), name, one.slots === undefined ? "–" : of(one.slots_used, one.slots), one.waiting ?? "–", round_s ? `${(1000 * round_s).toFixed(1)} ms` : "–",
    one.gpu_mem_percent == null ? "–" : `${Math.round(one.gpu_mem_percent)} %`, one.trouble || t("well")];
}

const tableOf = (title, names, rows) => rows.length ? table(title, names, el("tbody", {}, rows.map(cells => row(cells))), el("h3", {}, t(title))) : "";
