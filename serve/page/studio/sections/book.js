/* Book: a file becomes an audiobook, as a job of the service.
 *
 * In:    a file
 * Out:   a plan, a job that is followed, its files; my jobs
 * Owns:  which job is open
 * Never: anything that dies with the page: the service has it
 */

import {bookForm} from "../book_form.js";
import {json} from "../api.js";
import {button, el, head} from "../dom.js";
import {attempt, errorPlace} from "../errors.js";
import {jobView} from "../job_view.js";
import {service} from "../service.js";
import {JOBS, access, book, waiting} from "../state.js";
import {t} from "../strings.js";

export function create() {
  const view = jobView(() => {
    if (!view.job) book.set({open: ""});
    list.read();
  });
  const show = id => {
    book.set({open: id});
    view.open(id);
  };
  const list = jobList(show);
  const form = bookForm(job => {
    show(job.id);
    list.read();
  });

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

const AT_ONCE = 20;

/** Returns {element, read}; `onOpen(id)` is called for the one that is chosen. */
function jobList(onOpen) {
  const rows = el("tbody", {id: "jobs"}), errors = errorPlace(), nothing = el("p", {class: "quiet"}, t("There is no book yet."));
  const more = button("More", () => attempt(errors, () => add(rows.lastChild?.dataset.job)), {id: "more-jobs", hidden: true});
  const table = el("div", {class: "table"}, el("table", {},
    head(["Title", "Status", "Since"]), rows));

  async function add(after) {
    const {data, has_more} = await json(`${JOBS}?limit=${AT_ONCE}${after ? `&after=${after}` : ""}`);
    const made = data.map(job => el("tr", {"data-job": job.id},
      el("td", {}, button(job.title || job.id, () => onOpen(job.id), {class: "small"})), el("td", {"data-status": job.status}, t(job.status)), el("td", {}, new Date(1000 * job.created_at).toLocaleString())));
    if (after) rows.append(...made);
    else rows.replaceChildren(...made);
    [more.hidden, nothing.hidden, table.hidden] = [!has_more, rows.children.length > 0, !rows.children.length];
  }

  const read = () => attempt(errors, () => add());
  return {element: el("section", {class: "card", "aria-label": "My books"}, el("h3", {}, t("My books")), errors, nothing, table, el("div", {class: "buttons"}, more)), read};
}
