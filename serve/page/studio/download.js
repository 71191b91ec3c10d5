/* Download: saves a take in any format under a name that says what it is.
 *
 * In:    a Recording, a format
 * Out:   a file of the browser; the bytes are those of the API for the same request
 * Owns:  nothing
 * Never: the DOM of the page
 */

import {file} from "./api.js";

export const FORMATS = ["mp3", "wav", "opus", "aac", "flac", "pcm"];

/** Returns `default-hello-there-this-4711.mp3`: voice, first words, seed. */
export function fileName(recording, format) {
  const words = (recording.body?.input ?? recording.title).replace(/<[^>]*>/g, " ").toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  const voice = (recording.facts.voice ?? "").replace(/@\d+$/, "").replace(/[^\p{L}\p{N}]+/gu, "-");
  const parts = [voice, words.slice(0, 5).join("-").slice(0, 40), recording.facts.seed];
  return `${parts.filter(Boolean).join("-") || "speech"}.${format}`;
}

/** Saves a take: asked for again in that format with its seed, so that the service need not sample it again. */
export async function save(recording, format) {
  if (recording.file) return saveBlob(recording.file, recording.fileName);
  if (recording.save) return recording.save(format);
  const blob = await file(recording.path, {method: "POST", body: requestOf(recording, format)});
  saveBlob(blob, fileName(recording, format));
}

/** Returns the request whose reply is this take in a format. */
export const requestOf = (recording, format) => ({...recording.body, response_format: format});

export function saveBlob(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
