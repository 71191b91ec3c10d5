/* Attempts: the same text with several seeds at once, to keep the best; and everything spoken in this tab.
 *
 * In:    the draft, the history
 * Out:   takes that play, are kept, used again or deleted
 * Owns:  the cards
 * Never: a take beside the history
 */

import {button, el, field, seconds, select} from "./dom.js";
import {attempt, errorPlace} from "./errors.js";
import {forget, remember, stopAll, takes, watchTakes} from "./live.js";
import {player} from "./player.js";
import {bodyOf, newSeed, speak} from "./speaking.js";
import {nameOf, voiceOf} from "./voice_list.js";
import {draft} from "./state.js";
import {t} from "./strings.js";

let batches = 0;

export function attempts() {
  const count = select({id: "count-of-takes"}, ["2", "3", "4", "6"]);
  count.value = "3";
  const list = el("ol", {class: "takes", id: "takes-list"});
  const nothing = el("p", {class: "quiet"}, t("Nothing was spoken in this tab yet."));
  const status = el("p", {class: "quiet", role: "status", id: "takes-status"});
  const clear = button("Delete all", () => forget(take => (take.stop(), true)), {id: "delete-all"});
  const cards = new Map();

  function makeTakes() {
    const {seed, locked} = draft.value, batch = ++batches, first = Number(seed);
    const seeds = Array.from({length: Number(count.value)}, (_, index) => locked && seed.trim() ? (first + index) % 2 ** 32 : newSeed());
    const made = seeds.map(each => begin({...bodyOf(), seed: each}, batch)).reverse();
    player.play(made.at(-1));
  }

  function begin(body, batch) {
    const {recording, done} = speak(body);
    recording.batch = batch;
    remember(recording);
    let isAgain = false;
    attempt(cards.get(recording).errors, () => {
      if (!isAgain) return isAgain = true, done;
      forget(take => take === recording);
      begin(body, batch);
    });
    return recording;
  }

  function show() {
    for (const take of takes) if (!cards.has(take)) cards.set(take, card(take));
    for (const take of cards.keys()) if (!takes.includes(take)) cards.delete(take);
    const wanted = takes.map(take => cards.get(take).element);
    wanted.forEach((element, at) => { if (list.children[at] !== element) list.insertBefore(element, list.children[at] ?? null); });
    while (list.children.length > wanted.length) list.lastChild.remove();
    nothing.hidden = takes.length > 0;
    clear.disabled = !takes.length;
  }

  function keep(take) {
    draft.set({seed: String(take.body.seed), locked: true});
    forget(other => other !== take && take.batch && other.batch === take.batch && (other.stop(), true));
    status.textContent = t("Seed {seed} is kept: what you speak next has it.", {seed: take.body.seed});
  }

  function card(take) {
    const errors = errorPlace(), about = el("p", {class: "quiet figures"});
    const tell = () => {
      about.textContent = [t("seed {seed}", {seed: take.body.seed}), take.facts.voice && nameOf(voiceOf(take.facts.voice), take.facts.voice), `${seconds(take.duration)}${take.isFinished ? "" : " …"}`].filter(Boolean).join(" · ");
    };
    take.addEventListener("grown", tell);
    take.addEventListener("ended", tell);
    tell();
    const {seed} = take.body;
    const act = (text, action, more = "") => button(text, action, {class: `small ${more}`, "aria-label": `${t(text)}: ${t("seed {seed}", {seed})}`});
    const element = el("li", {class: "card take"}, el("p", {class: "title"}, take.title), about, errors, el("div", {class: "buttons"},
      act("Play", () => player.play(take), "go play"),
      act("Keep", () => keep(take), "keep"),
      act("Copy seed", () => copySeed(take), "copy"),
      take.body.input && act("Use again", () => useAgain(take), "use"),
      act("Delete", () => (take.stop(), forget(other => other === take)), "delete")));
    return {element, errors};
  }

  async function copySeed(take) {
    const seed = String(take.body.seed);
    const isCopied = await navigator.clipboard?.writeText(seed).then(() => true, () => false);
    status.textContent = t(isCopied ? "Seed {seed} is copied." : "The browser copies nothing here; the seed is {seed}.", {seed});
  }

  function useAgain({body}) {
    draft.set({
      input: body.input, input_type: body.input_type ?? "text", voice: body.voice ?? "", speed: body.speed ?? 1,
      temperature: body.temperature ?? 0.3, language: body.language ?? "auto", latency: body.latency ?? "", refine: body.refine ?? false,
      lexicon: body.lexicon?.[0] ?? "", allow_control_tags: body.allow_control_tags ?? false, seed: String(body.seed), locked: true,
    });
    status.textContent = t("The form has its text, voice and seed.");
  }

  watchTakes(show);
  const element = el("div", {},
    el("div", {class: "buttons"}, button("Make attempts", makeTakes, {class: "go", id: "make-takes"}), field("How many", count),
      button("Stop", stopAll, {id: "stop-takes"}), clear, status),
    nothing, list);
  return {element, act: makeTakes};
}
