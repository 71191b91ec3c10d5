/* Book: a file becomes an audiobook, as a job of the service: first a plan, then the job, then its files.
 * In:    a file that is dropped or chosen, how it is spoken
 * Out:   a plan, a job that is followed; my jobs
 * Owns:  the file, the plan, which job is open, the request that makes one job however often it is sent
 * Never: a job without a plan that was seen; anything that dies with the page */

import {json, service} from "../api.js";
import {button, el, facts, field, fold, length, row, select, table} from "../dom.js";
import {attempt, errorPlace} from "../errors.js";
import {jobView} from "../job_view.js";
import {newSeed} from "../speaking.js";
import {seedField, seedToUse} from "../speech_form.js";
import {FORMATS, JOBS, access, book, waiting} from "../state.js";
import {t} from "../strings.js";
import {voiceSelect} from "../voice_list.js";

const AT_ONCE = 20;
const FACTS = {"plan-chapters": "chapters", "plan-parts": "parts", "plan-characters": "characters", "plan-length": "length, about", "plan-ready": "ready"};
const READ_AS = [["", "as its name says"], ["text", "text"], ["markdown", "Markdown"], ["ssml", "SSML"]];
const BY_NAME = {md: "markdown", markdown: "markdown", ssml: "ssml", xml: "ssml"};

export function create() {
  const view = jobView(() => {
    if (!view.job) book.set({open: ""});
    list.read();
  });
  const show = id => {
    book.set({open: id});
    view.open(id);
    list.read();
  };
  const list = jobList(show), form = bookForm(job => show(job.id));

  /** What was open before is open again: after a reload, and with another key. */
  const open = () => {
    list.read();
    if (waiting.file) form.take(waiting.file);
    waiting.file = null;
    if (book.value.open && !view.job) view.open(book.value.open);
  };
  service.addEventListener("back", () => list.read());
  const element = el("div", {class: "column"}, form.element, view.element, list.element);
  access.watch(() => element.isConnected && open());
  return {element, open};
}

/** Returns {element, read}; `onOpen(id)` is called for the one that is chosen. */
function jobList(onOpen) {
  const rows = el("tbody", {id: "jobs"}), errors = errorPlace(), nothing = el("p", {class: "quiet"}, t("There is no book yet."));
  const more = button("More", () => attempt(errors, () => add(rows.lastChild?.dataset.job)), {id: "more-jobs", hidden: true});
  const shown = table("My books", ["Title", "Status", "Since"], rows);
  [nothing.hidden, shown.hidden] = [true, true];  // until the list was read

  async function add(after) {
    const {data, has_more} = await json(`${JOBS}?limit=${AT_ONCE}${after ? `&after=${after}` : ""}`);
    if (!after) rows.replaceChildren();
    rows.append(...data.map(job => row([
      button(job.title || job.id, () => onOpen(job.id), {class: "small"}), el("span", {"data-status": job.status}, t(job.status)),
      new Date(1000 * job.created_at).toLocaleString()], {"data-job": job.id})));
    [more.hidden, nothing.hidden, shown.hidden] = [!has_more, rows.children.length > 0, !rows.children.length];
  }

  const read = () => attempt(errors, () => add());
  return {element: el("section", {class: "card", "aria-label": "My books"}, el("h3", {}, t("My books")), errors, nothing, shown, el("div", {class: "buttons"}, more)), read};
}

/** Returns {element, take(file)}; `onStart(job)` gets the job that was accepted. */
function bookForm(onStart) {
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

function planBox(onStart) {
  const start = button("Start", onStart, {class: "go", id: "start"});
  const title = el("h3", {id: "plan-title"}), figures = facts(FACTS), rows = el("tbody", {id: "plan-chapters"});
  const chapters = fold("Chapters", {open: true}, table("Chapters", ["Nr.", "Title", "Parts", "Length"], rows));
  const element = el("div", {id: "book-plan", hidden: true}, title, figures.list, chapters, el("div", {class: "buttons"}, start));
  const show = plan => {
    title.textContent = [plan.title || t("Without a title"), plan.author].filter(Boolean).join(", ");
    figures.show({
      "plan-chapters": plan.chapters.length, "plan-parts": plan.parts, "plan-characters": plan.characters.toLocaleString(), "plan-length": length(plan.predicted_s),
      "plan-ready": plan.finishes_in_s === null ? t("not known yet") : t("in {length}", {length: length(plan.finishes_in_s)}),
    });
    rows.replaceChildren(...plan.chapters.map((chapter, at) => row([at + 1, chapter.title || "–", chapter.parts, length(chapter.predicted_s)])));
    element.hidden = false;
  };
  return {element, start, show, hide: () => { element.hidden = true; }};
}

function options(onChange) {
  const {value} = book, inputs = {
    voice: voiceSelect({id: "book-voice"}, [["", t("Voice of the service")]], undefined, value.voice),
    speed: el("input", {id: "book-speed", type: "number", min: 0.25, max: 4, step: 0.05}),
    format: select({id: "book-format"}, FORMATS), readAs: select({id: "book-read-as"}, READ_AS), words: el("input", {id: "book-words", type: "checkbox"}),
  };
  for (const [name, input] of Object.entries(inputs)) {
    const kind = name === "words" ? "checked" : "value";
    if (name !== "voice") input[kind] = value[name];
    input.addEventListener("change", () => {
      book.set({[name]: input[kind]});
      onChange(name);
    });
  }
  const {voice, speed, format, readAs, words} = inputs;
  return el("div", {}, el("div", {class: "row"}, field("Voice", voice), field("Speed", speed), seedField(book, "book-seed"), field("Made as", format), field("Read as", readAs)),
    el("label", {class: "check"}, words, " ", t("subtitles break between words")));
}

const titleOf = file => file.name.replace(/\.[^.]*$/, "").slice(0, 300);
