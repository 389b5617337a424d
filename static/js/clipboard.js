/* Copying, also where the page is not a secure context (plain http in a LAN) and the clipboard API is absent. */

import { gettext } from "./i18n.js";

/** Put the text that `loading` promises on the clipboard. Rejects when it does not come, or when the browser refuses. */
export async function copy(loading) {
  try {
    await put(loading);
  } catch (error) {
    await loading; // what went wrong there has a sentence of its own
    throw new Error(gettext("The browser does not allow copying here."), { cause: error });
  }
}

async function put(loading) {
  if (navigator.clipboard?.write && globalThis.ClipboardItem) {
    // The promise goes in unresolved: Safari wants the call inside the click, before the text has come.
    const blob = loading.then((text) => new Blob([text], { type: "text/plain" }));
    await navigator.clipboard.write([new ClipboardItem({ "text/plain": blob })]);
    return;
  }
  const field = document.createElement("textarea");
  field.value = await loading;
  field.className = "sr-only";
  document.body.append(field);
  const focused = document.activeElement;
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  focused?.focus();
  if (!isCopied) throw new Error("the browser refused to copy");
}

/** A tick in the place of the button's icon for a moment. */
export function confirmOn(button) {
  const icon = button.querySelector(".icon");
  const check = document.getElementById("part-check").content.firstElementChild.cloneNode(true);
  icon.replaceWith(check);
  setTimeout(() => check.replaceWith(icon), 1500);
}
