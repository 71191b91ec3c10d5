/* Book form: a file and how it is spoken; first a plan, then a job.
 *
 * In:    a file that is dropped or chosen
 * Out:   POST /v1/audio/jobs/plan, POST /v1/audio/jobs
 * Owns:  the file, the plan, the request that makes one job however often it is sent
 * Never: a job without a plan that was seen
 */

import {json} from "./api.js";
import {button, el, facts, field, fold, head, length, select} from "./dom.js";
import {attempt, errorPlace} from "./errors.js";
import {FORMATS, JOBS, book} from "./state.js";
import {newSeed} from "./speaking.js";
import {seedField, seedToUse} from "./speech_form.js";
import {t} from "./strings.js";
import {offerVoices} from "./voice_list.js";

const FACTS = {
  "plan-chapters": "chapters", "plan-parts": "parts", "plan-characters": "characters", "plan-length": "length, about",
  "plan-ready": "ready",
};
const READ_AS = [["", "as its name says"], ["text", "text"], ["markdown", "Markdown"], ["ssml", "SSML"]];
const BY_NAME = {md: "markdown", markdown: "markdown", ssml: "ssml", xml: "ssml"};

/** Returns {element, take(file)}; `onStart(job)` gets the job that was accepted. */
export function bookForm(onStart) {
  const errors = errorPlace(), input = el("input", {type: "file", id: "book-file", class: "hidden", accept: ".epub,.md,.markdown,.txt,.ssml,.xml", onchange: () => take(input.files[0])});
  const name = el("span", {id: "book-name"}, t("Drop a book here, or choose one: EPUB, Markdown, text or SSML."));
  const zone = el("label", {class: "drop"}, name, el("b", {}, t("Choose a file")), input);
  const status = el("p", {role: "status", class: "quiet", id: "book-status"});
  const plan = planBox(() => act("The job is sent …", start, "Start again"));
  let chosen = null, planned = null, request = null, leaving = null;

  function take(file) {
    if (!file) return;
    chosen = file;
    name.textContent = file.name;
    makePlan();
  }

  const act = (busy, action, again) => attempt(errors, async () => {
    [status.textContent, plan.start.disabled] = [t(busy), true];
    await action().finally(() => { [status.textContent, plan.start.disabled] = ["", false]; });
  }, again);

  /** Plans anew whenever the file or how it is spoken changes. */
  function makePlan() {
    leaving?.abort();
    [planned, request] = [null, null];
    plan.hide();
    if (!chosen) return;
    const mine = leaving = new AbortController();
    return act("The file is read …", async () => {
      planned = await json(`${JOBS}/plan`, {method: "POST", body: formOf(), signal: mine.signal});
      plan.show(planned);
    }, "Plan again");
  }

  /** The service makes one job of a key, however often it is asked: a reply that was lost costs nothing. */
  async function start() {
    request ??= {
      key: [newSeed(), newSeed(), newSeed()].map(each => each.toString(16)).join("-"),
      fields: {response_format: book.value.format, seed: seedToUse(book), ...(!planned.title && {title: titleOf(chosen)})},
    };
    const job = await json(JOBS, {method: "POST", body: formOf(request.fields), headers: {"Idempotency-Key": request.key}});
    [chosen, planned, request, input.value] = [null, null, null, ""];
    name.textContent = t("Drop another book here, or choose one.");
    plan.hide();
    onStart(job);
  }

  function changed(what) {
    request = null;
    if (what !== "format") makePlan();
  }

  function formOf(more = {}) {
    const {voice, speed, readAs, words} = book.value, form = new FormData();
    const kind = readAs || BY_NAME[chosen.name.split(".").pop().toLowerCase()];
    const job = {
      ...(kind && {input_type: kind}), ...(voice && {voice}), ...(Number(speed) !== 1 && {speed: Number(speed)}),
      ...(words && {timestamps: "word"}), ...more,
    };
    form.append("file", chosen);
    form.append("job", JSON.stringify(job));
    return form;
  }

  return {take, element: el("section", {class: "card", "aria-label": "New book"}, zone, fold("More", {}, options(changed)), status, errors, plan.element)};
}

/** Returns what the plan says, and the button that starts the job. */
function planBox(onStart) {
  const start = button("Start", onStart, {class: "go", id: "start"});
  const title = el("h3", {id: "plan-title"}), figures = facts(FACTS), rows = el("tbody", {id: "plan-chapters"});
  const table = fold("Chapters", {open: true}, el("div", {class: "table", tabIndex: 0, role: "group", "aria-label": "Chapters"},
    el("table", {}, head(["Nr.", "Title", "Parts", "Length"]), rows)));
  const element = el("div", {id: "book-plan", hidden: true}, title, figures.list, table, el("div", {class: "buttons"}, start));
  const show = plan => {
    const {values} = figures;
    title.textContent = [plan.title || t("Without a title"), plan.author].filter(Boolean).join(", ");
    values["plan-chapters"].textContent = String(plan.chapters.length);
    values["plan-parts"].textContent = String(plan.parts);
    values["plan-characters"].textContent = plan.characters.toLocaleString();
    values["plan-length"].textContent = length(plan.predicted_s);
    values["plan-ready"].textContent = plan.finishes_in_s === null ? t("not known yet") : t("in {length}", {length: length(plan.finishes_in_s)});
    rows.replaceChildren(...plan.chapters.map((chapter, at) => el("tr", {},
      [at + 1, chapter.title || "–", chapter.parts, length(chapter.predicted_s)].map(each => el("td", {}, String(each))))));
    element.hidden = false;
  };
  return {element, start, show, hide: () => { element.hidden = true; }};
}

function options(onChange) {
  const set = (name, value) => {
    book.set({[name]: value});
    onChange(name);
  };
  const voice = select({id: "book-voice", "data-chosen": book.value.voice, onchange: () => set("voice", voice.dataset.chosen = voice.value)}, []);
  offerVoices(voice, [["", t("Voice of the service")]]);
  const speed = el("input", {id: "book-speed", type: "number", min: 0.25, max: 4, step: 0.05, value: book.value.speed, onchange: event => set("speed", event.target.value)});
  const format = select({id: "book-format", onchange: event => set("format", event.target.value)}, FORMATS);
  const readAs = select({id: "book-read-as", onchange: event => set("readAs", event.target.value)}, READ_AS);
  [format.value, readAs.value] = [book.value.format, book.value.readAs];
  const words = el("input", {type: "checkbox", id: "book-words", checked: book.value.words, onchange: event => set("words", event.target.checked)});
  return el("div", {}, el("div", {class: "row"}, field("Voice", voice), field("Speed", speed), seedField(book, "book-seed"), field("Made as", format), field("Read as", readAs)),
    el("label", {class: "check"}, words, " ", t("subtitles break between words")));
}

const titleOf = file => file.name.replace(/\.[^.]*$/, "").slice(0, 300);
