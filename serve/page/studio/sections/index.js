/* Sections: what the page has, in the order of its tabs.
 *
 * In:    nothing
 * Out:   SECTIONS
 * Owns:  nothing
 * Never: a section that another one imports
 *
 * To add one, write a module beside this file that exports `create()`, and name it here. `create` is called once, when the section
 * is first opened, and returns {element, act, open}: what is shown, what Ctrl+Enter does, what is done each time it is opened; the last
 * two may be missing. `usesText` puts the composer above it. Errors go through `attempt` of errors.js, audio through `player`, requests through api.js.
 */

export const SECTIONS = [
  {id: "speak", title: "Speak", usesText: true, load: () => import("./speak.js")},
  {id: "takes", title: "Takes", usesText: true, load: () => import("./takes.js")},
  {id: "plan", title: "What will be said", usesText: true, load: () => import("./plan.js")},
  {id: "dialogue", title: "Dialogue", load: () => import("./dialogue.js")},
  {id: "book", title: "Book", load: () => import("./book.js")},
  {id: "voices", title: "Voices", load: () => import("./voices.js")},
  {id: "status", title: "Status", load: () => import("./status.js")},
];
