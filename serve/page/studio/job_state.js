/* Job state: how the next book is spoken, and which job is open, as long as the tab lives.
 *
 * In:    patches
 * Out:   the form of the next job; the paths of jobs
 * Owns:  sessionStorage `book`
 * Never: the file, the DOM
 */

import {Kept} from "./state.js";

export const JOBS = "v1/audio/jobs";
export const FORMATS = ["m4b", "mp3", "opus", "aac", "flac", "wav"];
export const FINISHED = ["succeeded", "failed", "cancelled"];

export const book = new Kept(sessionStorage, "book", {voice: "", seed: "", locked: false, speed: "1", format: "m4b", readAs: "", words: false, open: ""});

/** Returns the path of a job, or of something below it. */
export const pathOf = (id, below = "") => `${JOBS}/${id}${below}`;
