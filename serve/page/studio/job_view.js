/* Job view: one job: how far it is, its sound, its text, what can be done with it, one part of it spoken again.
 * In:    the id of a job
 * Out:   progress that survives a dead service; sound and text as they are finished; files; POST .../parts/<number>
 * Owns:  what is followed
 * Never: the list of jobs */

import {call, file, json} from "./api.js";
import {button, clock, el, facts, field, length, options, select} from "./dom.js";
import {attempt, confirm, errorPlace} from "./errors.js";
import {JobSound} from "./job_sound.js";
import {player} from "./player.js";
import {readAlong} from "./read_along.js";
import {RATE} from "./recording.js";
import {follow} from "./resuming.js";
import {saveBlob} from "./share.js";
import {FINISHED, FORMATS, number, pathOf} from "./state.js";
import {t} from "./strings.js";
import {nameOf, voiceOf} from "./voice_list.js";

const FACTS = {parts: "parts", "job-length": "length", left: "left", "job-voice": "voice", "job-seed": "seed"};
const WAITING = ["queued", "running"];
const GATHER_MS = 40;

/** Returns {element, open, close}; `onChange` is called when a job has another status, or is gone. */
export function jobView(onChange) {
  const title = el("h3", {id: "job-title"}), status = el("p", {role: "status", class: "quiet", id: "job-status"}), errors = errorPlace();
  const bar = el("progress", {"aria-label": "Progress"}), figures = facts(FACTS), chapters = el("ol", {class: "chapters", id: "chapters", "aria-label": "Chapters"});
  const sentence = sentenceEditor(part => watch(job.id, part.index));
  let job = null, sound = null, script = null, leaving = null, waiting = [], target = null;
  const text = readAlong(recording => recording === sound), sure = el("div", {});

  const act = (name, id, action, about = {}) => button(name, () => attempt(errors, async () => action(id)), {id, ...about});
  const send = async what => tell(await json(pathOf(job.id, `/${what}`), {method: "POST"}));
  const buttons = {
    listen: act("Listen", "listen", () => player.play(sound), {class: "go"}),
    pause: act("Pause", "pause", send),
    resume: act("Resume", "resume", what => FINISHED.includes(job.status) ? send(what).then(() => watch(job.id)) : send(what)),
    cancel: act("Cancel", "cancel", send),
    again: act("Say this sentence again", "again", sayAgain),
    remove: act("Delete", "remove", () => confirm(sure, t("Delete the book, its text and its audio?"), errors, remove)),
  };
  const format = select({id: "job-format", "aria-label": "Format of the file"}, []);
  const download = act("Download the book", "job-download", () => save(format.value));
  const subtitles = ["srt", "vtt"].map(kind => act({srt: "Subtitles (SRT)", vtt: "Subtitles (VTT)"}[kind], `job-${kind}`, () => save(kind, "subtitles")));
  const files = el("div", {class: "buttons"}, format, download, subtitles);
  const element = el("section", {class: "card", id: "job", "aria-label": "Job", hidden: true},
    title, status, bar, figures.list, errors, el("div", {class: "buttons"}, Object.values(buttons)), sure, chapters, text, sentence.element, files);

  async function open(id) {
    if (job?.id !== id) {
      [job, sound, script] = [null, null, null];
      for (const each of Object.values(buttons)) each.disabled = true;
      sentence.close();
    }
    element.hidden = false;
    await watch(id);
  }

  function close() {
    sure.replaceChildren();
    leaving?.abort();
    [job, sound, element.hidden] = [null, null, true];
  }

  /** Follows a job; `part` is one that is spoken anew, at which to go on listening. */
  function watch(id, part = null) {
    leaving?.abort();
    const mine = leaving = new AbortController();
    [waiting, target] = [[], part];
    return attempt(errors, () => tellAll(id, mine.signal));
  }

  async function tellAll(id, signal) {
    for await (const {event, id: place, data} of follow(id, signal)) {
      if (signal.aborted) return;
      const [now] = (place ?? "").split("-");
      if (place && script !== null && now !== script) {  // a part is spoken again by somebody: the places of those behind it change
        waiting = [];
        sound?.reset();
      }
      if (place) script = now;
      if (event === "job.status") tell(data);
      else if (event === "job.progress") tellProgress(data);
      else if (event === "job.part" && waiting.push(data) === 1) setTimeout(flush, GATHER_MS);
    }
  }

  function flush() {
    if (!sound || !waiting.length) return;
    sound.addParts(waiting.splice(0));
    const spoken = sound.words[target];
    if (spoken && target !== null) {
      target = null;
      if (player.recording === sound) player.seek(spoken.start);
      status.textContent = t("Sentence {number} is spoken anew.", {number: spoken.index + 1});
    }
    tellPlaces();
    if (job.progress) tellProgress(job.progress);
  }

  function tell(told) {
    const isOther = job?.status !== told.status;
    job = {...job, ...told, chapters: told.chapters ?? job?.chapters, progress: told.progress ?? job?.progress};
    sound ??= soundOf(job);
    const isOver = FINISHED.includes(job.status);
    title.textContent = job.title || job.id;
    flush();
    status.textContent = job.error ? `${t(job.status)}: ${job.error.message}` : t(job.status);
    if (isOver && !sound.isFinished && sound.length) sound.end();
    if (!isOver) sound.isFinished = false;
    figures.show({"job-voice": nameOf(voiceOf(job.voice), job.voice), "job-seed": String(job.seed)});
    offerFormats();
    if (job.progress) tellProgress(job.progress);
    tellButtons();
    if (isOther) onChange();
  }

  function soundOf({id, sample_rate}) {
    const made = Object.assign(new JobSound(job, save), {isPlayable: sample_rate === RATE});
    if (made.isPlayable && !player.isPlaying && player.recording?.job !== id) player.load(made);
    return made;
  }

  function tellProgress(progress) {
    job = {...job, progress};
    if (!job.status) return;  // which is told next
    [bar.max, bar.value] = [progress.parts, progress.done];
    const isWhole = job.status === "succeeded", spoken = length(sound?.duration || progress.audio_s);
    figures.show({
      parts: t("{part} of {whole}", {part: progress.done, whole: progress.parts}),
      "job-length": isWhole ? spoken : t("{part} of about {whole}", {part: spoken, whole: length(progress.predicted_s)}),
      left: progress.eta_s !== null && WAITING.includes(job.status) && length(progress.eta_s),
    });
    tellButtons();
  }

  function tellButtons() {
    const {status: now, progress} = job, isEmpty = !(progress?.playable_s > 0);
    buttons.listen.disabled = isEmpty || !sound.isPlayable;
    buttons.listen.title = sound.isPlayable ? "" : t("This page plays {own} Hz; the book has {its} Hz: download it.", {own: RATE, its: job.sample_rate});
    buttons.again.disabled = isEmpty && job.error?.part === undefined;
    buttons.remove.disabled = false;
    buttons.pause.disabled = !WAITING.includes(now);
    buttons.resume.disabled = !["paused", "cancelled", "failed"].includes(now);
    buttons.cancel.disabled = FINISHED.includes(now);
    for (const each of [format, download, ...subtitles]) each.disabled = isEmpty;
    download.textContent = t(now === "succeeded" ? "Download the book" : "Download what is finished");
  }

  function tellPlaces() {
    const starts = new Map();
    for (const {chapter, start} of sound.words) if (!starts.has(chapter)) starts.set(chapter, start);
    const named = job.chapters?.length > 1 ? job.chapters : [];
    chapters.hidden = !named.length;
    chapters.replaceChildren(...named.map((chapter, at) => {
      const start = starts.get(at), go = () => goTo(start);
      return el("li", {}, button(`${chapter.title || t("Chapter {number}", {number: at + 1})}${start === undefined ? "" : ` ${clock(start)}`}`, go, {class: "small", disabled: start === undefined}));
    }));
  }

  function goTo(start) {
    if (player.recording !== sound) player.load(sound);
    player.seek(start);
    player.play();
  }

  function offerFormats() {
    const own = job.response_format, isDone = job.status === "succeeded";
    const offered = [own, ...FORMATS.filter(each => each !== own), "zip"].filter(each => each !== "m4b" || (isDone && own === "m4b"));
    if ([...format.options].map(each => each.value).join() === offered.join()) return;
    format.replaceChildren(...options(offered));
  }

  /** The sentence that is heard; of a job that has failed, the one that failed. */
  async function sayAgain() {
    const heard = player.recording === sound ? Math.max(0, sound.wordAt(player.position)) : 0;
    const {data: [part]} = await json(pathOf(job.id, `/parts?first=${job.error?.part ?? heard}&limit=1`));
    sentence.show(job.id, part);
  }

  const save = async (format, what = "audio") => saveBlob(await file(pathOf(job.id, `/${what}?format=${format}`)), `${fileOf(job)}.${format}`);

  async function remove() {
    await call(pathOf(job.id), {method: "DELETE"}).catch(error => { if (error.status !== 404) throw error; });
    if (player.recording === sound) player.load(null);
    close();
    onChange();
  }

  return {element, open, close, get job() { return job; }};
}

const fileOf = job => (job.title || job.id).replace(/[\\/:*?"<>|\u0000-\u001f]+/g, " ").trim().slice(0, 80) || job.id;

/** Returns {element, show, close}: `show(job, part)` opens the form; `onSpoken(part)` is called once the service has accepted it. */
function sentenceEditor(onSpoken) {
  const title = el("h3", {}), errors = errorPlace();
  const text = el("textarea", {id: "sentence-text", rows: 3, spellcheck: true});
  const seed = el("input", {id: "sentence-seed", inputMode: "numeric", autocomplete: "off", placeholder: "a new one"});
  const element = el("section", {class: "card", id: "sentence", "aria-label": "Say a sentence again", hidden: true},
    title, field("Text", text), el("div", {class: "row"}, field("Seed", seed)), errors,
    el("div", {class: "buttons"}, button("Say it again", () => attempt(errors, speak), {class: "go", id: "sentence-go"}), button("Close", close, {id: "sentence-close"})));
  let job = null, part = null;

  function show(ofJob, chosen) {
    [job, part] = [ofJob, chosen];
    title.textContent = t("Sentence {number}, seed {seed}", {number: part.index + 1, seed: part.seed});
    [text.value, seed.value] = [part.text, ""];
    errors.replaceChildren();
    element.hidden = false;
    text.focus();
  }

  function close() { element.hidden = true; }

  async function speak() {
    const body = {...(text.value !== part.text && {text: text.value}), ...(seed.value.trim() && {seed: number(seed.value)})};
    await json(pathOf(job, `/parts/${part.index}`), {method: "POST", body});
    close();
    onSpoken(part);
  }

  return {element, show, close};
}
