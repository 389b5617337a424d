/* Why no more of a prompt was remembered, as a sentence for a person. Pure.

   The causes are those of models.PrefixBreak; the server has found them out, nothing is concluded here. */

import { number } from "./format.js";
import { fill, gettext, joined } from "./i18n.js";
import { placeText } from "./places.js";

const reasons = {
  edited: gettext("it was edited"),
  preset_changed: gettext("the system prompt is another one"),
  model_changed: gettext("another model answered before"),
  thinking_stripped: gettext("its thinking was taken out"),
  reply_encoded: gettext("its text had to be encoded again"),
  template_rewrote: gettext("the model's template writes it otherwise now"),
  window_moved: gettext("earlier messages have left the window"),
  summary_replaced: gettext("a summary stands for what came before"),
  evicted: gettext("others needed the room in memory"),
  purged: gettext("the memory of it was deleted"),
  restore_failed: gettext("its file on disk could not be used"),
  restarted: gettext("another start of the server had read it, and it was not on disk"),
  unloaded: gettext("the model had left memory in between"),
  other_salt: gettext("the secret key of the server has changed"),
  disabled: gettext("the prefix cache is off, or was when this was read before"),
  unknown: gettext("the reason is not known"),
};

/** One or two sentences about the history of a reply; "" where nothing is known about it. */
export function reuseText(stats) {
  if (stats.cause) return joined([whyText(stats), restText(stats)]);
  const reused = stats.reused_ram + stats.reused_disk;
  if (!stats.known || !reused) return "";
  return fill(gettext("All %(n)s tokens of the history were remembered."), { n: number(reused) });
}

function whyText(stats) {
  const place = placeText(stats.cause_position);
  if (stats.cause === "first_use") {
    if (stats.cause_position === null) return gettext("New: nothing of this conversation had been read before.");
    return fill(gettext("Read for the first time from %(place)s on."), { place });
  }
  return fill(gettext("Read again from %(place)s on: %(reason)s."), { place, reason: reasons[stats.cause] ?? stats.cause });
}

/** What was left of what had been read before, if something was lost. */
function restText(stats) {
  const reused = stats.reused_ram + stats.reused_disk;
  if (stats.known <= reused) return "";
  return fill(gettext("Of %(known)s tokens that had been read before %(reused)s were remembered."), {
    known: number(stats.known), reused: number(reused),
  });
}
