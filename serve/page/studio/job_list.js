/* Job list: my jobs, the newest first.
 *
 * In:    GET /v1/audio/jobs
 * Out:   a button for each
 * Owns:  the list
 * Never: the jobs of another key: the service has none for us
 */

import {json} from "./api.js";
import {button, el} from "./dom.js";
import {attempt, errorPlace} from "./errors.js";
import {JOBS} from "./job_state.js";

const AT_ONCE = 20;

/** Returns {element, read}; `onOpen(id)` is called for the one that is chosen. */
export function jobList(onOpen) {
  const rows = el("tbody", {id: "jobs"}), errors = errorPlace(), nothing = el("p", {class: "quiet"}, "There is no job yet.");
  const more = button("More", () => attempt(errors, () => add(rows.lastChild?.dataset.job)), {id: "more-jobs", hidden: true});
  const table = el("div", {class: "table"}, el("table", {},
    el("thead", {}, el("tr", {}, ["Title", "Status", "Since"].map(each => el("th", {scope: "col"}, each)))), rows));

  async function add(after) {
    const {data, has_more} = await json(`${JOBS}?limit=${AT_ONCE}${after ? `&after=${after}` : ""}`);
    const made = data.map(job => el("tr", {"data-job": job.id},
      el("td", {}, button(job.title || job.id, () => onOpen(job.id), {class: "small"})), el("td", {}, job.status), el("td", {}, new Date(1000 * job.created_at).toLocaleString())));
    if (after) rows.append(...made);
    else rows.replaceChildren(...made);
    [more.hidden, nothing.hidden, table.hidden] = [!has_more, rows.children.length > 0, !rows.children.length];
  }

  const read = () => attempt(errors, () => add());
  return {element: el("section", {class: "card", "aria-label": "My jobs"}, el("h3", {}, "My jobs"), errors, nothing, table, el("div", {class: "buttons"}, more)), read};
}
