/* Book: a file becomes an audiobook, as a job of the service.
 *
 * In:    a file
 * Out:   a plan, a job that is followed, its files; my jobs
 * Owns:  which job is open
 * Never: anything that dies with the page: the service has it
 */

import {bookForm} from "../book_form.js";
import {el} from "../dom.js";
import {jobList} from "../job_list.js";
import {book} from "../job_state.js";
import {jobView} from "../job_view.js";
import {service} from "../service.js";
import {access} from "../state.js";

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
    if (book.value.open && !view.job) view.open(book.value.open);
  };
  service.addEventListener("back", () => list.read());
  const element = el("div", {}, form, view.element, list.element);
  access.watch(() => element.isConnected && open());
  return {element, open};
}
