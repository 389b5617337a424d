/* Editing a message where it stands. Sending makes a new version beside the old one. */

import { countChars, isBlank } from "./format.js";
import { isComposing, isSendKey } from "./keys.js";

/** Open the editor in `article`. `send(text)` says whether the text was taken. */
export function edit(article, text, maxChars, send) {
  if (article.querySelector(".editor")) return;
  const form = document.getElementById("part-editor").content.firstElementChild.cloneNode(true);
  const bubble = article.querySelector(".bubble");
  const foot = article.querySelector(".message-foot");
  const field = form.querySelector("textarea");
  const submit = form.querySelector('[type="submit"]');

  const close = () => {
    form.remove();
    bubble.hidden = false;
    foot.hidden = false;
  };
  const confirm = () => {
    if (submit.disabled) return;
    if (send(field.value)) close();
  };
  const check = () => {
    const isTooLong = field.value.length > maxChars && countChars(field.value) > maxChars;
    submit.disabled = isBlank(field.value) || isTooLong;
    field.setAttribute("aria-invalid", String(isTooLong));
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    confirm();
  });
  form.querySelector('[data-action="edit-cancel"]').addEventListener("click", (event) => {
    event.stopPropagation();
    close();
    article.querySelector('[data-action="edit"]').focus();
  });
  field.addEventListener("input", check);
  field.addEventListener("keydown", (event) => {
    if (isSendKey(event)) {
      event.preventDefault();
      confirm();
    } else if (event.key === "Escape" && !isComposing(event)) {
      event.stopPropagation();
      form.querySelector('[data-action="edit-cancel"]').click();
    }
  });

  field.value = text;
  bubble.hidden = true;
  foot.hidden = true;
  article.prepend(form);
  check();
  field.focus();
  field.setSelectionRange(text.length, text.length);
}
