/* Job view: one job: how far it is, its sound, its text, what can be done with it.
 *
 * In:    the id of a job
 * Out:   progress that survives a dead service; sound and text as they are finished; files
 * Owns:  what is followed
 * Never: the list of jobs
 */

import {call, file, json} from "./api.js";
import {button, clock, el, facts, length, select} from "./dom.js";
import {saveBlob} from "./download.js";
import {attempt, errorPlace} from "./errors.js";
import {follow} from "./resuming.js";
import {JobSound} from "./job_sound.js";
import {FINISHED, FORMATS, pathOf} from "./state.js";
import {nameOf, voiceOf} from "./voice_list.js";
import {player} from "./player.js";
import {readAlong} from "./read_along.js";
import {RATE} from "./recording.js";
import {sentenceEditor} from "./sentence_editor.js";
import {t} from "./strings.js";

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

  const act = (name, id, action, about = {}) => button(name, () => attempt(errors, async () => action()), {id, ...about});
  const send = what => async () => tell(await json(pathOf(job.id, `/${what}`), {method: "POST"}));
  const buttons = {
    listen: act("Listen", "listen", () => player.play(sound), {class: "go"}),
    pause: act("Pause", "pause", send("pause")),
    resume: act("Resume", "resume", async () => { const isOver = FINISHED.includes(job.status); await send("resume")(); if (isOver) watch(job.id); }),
    cancel: act("Cancel", "cancel", send("cancel")),
    again: act("Say this sentence again", "again", sayAgain),
    remove: act("Delete", "remove", askToRemove),
  };
  const format = select({id: "job-format", "aria-label": "Format of the file"}, []);
  const download = act("Download the book", "job-download", () => save(format.value));
  const subtitles = ["srt", "vtt"].map(kind => act({srt: "Subtitles (SRT)", vtt: "Subtitles (VTT)"}[kind], `job-${kind}`, () => saveSubtitles(kind)));
  const files = el("div", {class: "buttons"}, format, download, subtitles);
  const element = el("section", {class: "card", id: "job", "aria-label": "Job", hidden: true},
    title, status, bar, figures.list, errors, el("div", {class: "buttons"}, Object.values(buttons)), sure, chapters, text, sentence.element, files);

  /** Shows a job, and follows it to its end. */
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
      if (place && script !== null && now !== script) startOver();
      if (place) script = now;
      if (event === "job.status") tell(data);
      else if (event === "job.progress") tellProgress(data);
      else if (event === "job.part") gather(data);
    }
  }

  /** A part is spoken again by somebody: the places of those behind it change. */
  function startOver() {
    waiting = [];
    sound?.reset();
  }

  function gather(part) {
    if (!waiting.length) setTimeout(flush, GATHER_MS);
    waiting.push(part);
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
    figures.values["job-voice"].textContent = nameOf(voiceOf(job.voice), job.voice);
    figures.values["job-seed"].textContent = String(job.seed);
    offerFormats();
    if (job.progress) tellProgress(job.progress);
    tellButtons();
    if (isOther) onChange();
  }

  function soundOf({id, sample_rate}) {
    const made = new JobSound(job, save);
    made.isPlayable = sample_rate === RATE;
    const current = player.recording;
    if (made.isPlayable && !player.isPlaying && current?.job !== id) player.load(made);
    return made;
  }

  function tellProgress(progress) {
    job = {...job, progress};
    if (!job.status) return;  // which is told next
    [bar.max, bar.value] = [progress.parts, progress.done];
    const {values} = figures, isWaiting = WAITING.includes(job.status);
    values.parts.textContent = t("{part} of {whole}", {part: progress.done, whole: progress.parts});
    const isWhole = job.status === "succeeded", spoken = length(sound?.duration || progress.audio_s);
    values["job-length"].textContent = isWhole ? spoken : t("{part} of about {whole}", {part: spoken, whole: length(progress.predicted_s)});
    values.left.textContent = progress.eta_s !== null && isWaiting ? length(progress.eta_s) : "–";
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
    format.replaceChildren(...offered.map(each => new Option(each, each)));
  }

  /** The sentence that is heard; of a job that has failed, the one that failed. */
  async function sayAgain() {
    const failed = job.error?.part ?? null;
    const heard = player.recording === sound ? Math.max(0, sound.wordAt(player.position)) : 0;
    const {data} = await json(pathOf(job.id, `/parts?first=${failed ?? heard}&limit=1`));
    sentence.show(job.id, data[0]);
  }

  async function save(container) {
    const blob = await file(pathOf(job.id, `/audio?format=${container}`));
    saveBlob(blob, `${fileOf(job)}.${container}`);
  }

  async function saveSubtitles(kind) {
    saveBlob(await file(pathOf(job.id, `/subtitles?format=${kind}`)), `${fileOf(job)}.${kind}`);
  }

  /** What is deleted is gone: it asks. */
  function askToRemove() {
    sure.replaceChildren(el("p", {}, t("Delete the book, its text and its audio?")), el("div", {class: "buttons"},
      act("Delete it", "sure", remove), button("Keep it", () => sure.replaceChildren())));
    sure.querySelector("button").focus();
  }

  async function remove() {
    await call(pathOf(job.id), {method: "DELETE"}).catch(error => { if (error.status !== 404) throw error; });
    if (player.recording === sound) player.load(null);
    close();
    onChange();
  }

  return {element, open, close, get job() { return job; }};
}

const fileOf = job => (job.title || job.id).replace(/[\\/:*?"<>|\u0000-\u001f]+/g, " ").trim().slice(0, 80) || job.id;
