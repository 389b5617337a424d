/* What a key press means. Every field that reacts to Enter asks here, so that input methods are treated alike. */

const isCoarse = () => matchMedia("(pointer: coarse)").matches;

/** Whether this key press belongs to an input method. Safari ends the composition before the key press: hence 229. */
export function isComposing(event) {
  return event.isComposing || event.keyCode === 229;
}

/** Enter that confirms a one-line field (rename, search). */
export function isEnter(event) {
  return event.key === "Enter" && !isComposing(event);
}

/** Enter that sends from a field of several lines. On a touch keyboard Enter is a new line, there is a button to send. */
export function isSendKey(event) {
  if (event.key !== "Enter" || isComposing(event) || event.shiftKey || event.altKey) return false;
  return event.ctrlKey || event.metaKey || !isCoarse();
}

/** Call `confirm` on Enter, and keep the Enter of an input method from submitting the form around the field. */
export function onEnter(field, confirm) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    if (isEnter(event)) confirm();
  });
}

/** The name of a global shortcut, or "". */
export function shortcut(event) {
  if (isComposing(event)) return "";
  if (event.key === "Escape") return event.shiftKey ? "composer" : "escape";
  if (!(event.ctrlKey || event.metaKey) || event.altKey) return "";
  const key = event.key.toLowerCase();
  if (event.shiftKey) return { o: "new", c: "copy" }[key] ?? "";
  return { k: "search", b: "sidebar", "/": "help" }[key] ?? "";
}
