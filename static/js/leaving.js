/* What has left the window, and what stands for it, as sentences for a person. Pure. */

import { number } from "./format.js";
import { fill, gettext, joined, ngettext } from "./i18n.js";

/** What stands on the line above the first message that is sent; "" when all are. */
export function outsideText({ outside, unsummarised, summary_id }) {
  if (!outside) return "";
  const sentence = fill(
    ngettext("The first message is no longer sent; it stays here.", "The first %(num)s messages are no longer sent; they stay here.", outside),
    { num: number(outside) },
  );
  return joined([sentence, missingText({ unsummarised, hasSummary: Boolean(summary_id) })]);
}

/** What left the window with a reply, as it stands under its numbers; "" when nothing did. */
export function leftText({ outside, left, unsummarised, has_summary: hasSummary }) {
  if (!left) return "";
  const range = { first: number(outside - left + 1), last: number(outside) };
  const sentence = fill(
    ngettext("Message %(first)s has left the window.", "Messages %(first)s–%(last)s have left the window.", left), range,
  );
  const rest = unsummarised === 0 && hasSummary ? gettext("A summary stands for what has left.") : missingText({ unsummarised, hasSummary });
  return joined([sentence, rest]);
}

/** That a summary is wanted and is not there: it was late, or what the model wrote was of no use. */
function missingText({ unsummarised, hasSummary }) {
  if (!unsummarised) return "";
  if (!hasSummary) return gettext("There was no summary in time.");
  return fill(
    ngettext("For %(num)s of them there was no summary in time.", "For %(num)s of them there was no summary in time.", unsummarised),
    { num: number(unsummarised) },
  );
}
