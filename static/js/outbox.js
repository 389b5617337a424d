/* Messages that the server has not accepted yet, in the order they were written. Pure values; store.js keeps them.

   An entry keeps its client_id and, once it went out, its parent: sent again it is the same send, and stored once.
   state: "waiting" (for the socket, the model, or the end of a reply), "sent", "refused" (with `error`). */

export function add(entries, { clientId, conversation, text, isNew, model = null, preset = null }) {
  return [...entries, { clientId, conversation, text, isNew, model, preset, parent: null, hasGoneOut: false, state: "waiting", error: "" }];
}

export const remove = (entries, clientId) => entries.filter((entry) => entry.clientId !== clientId);

export const find = (entries, clientId) => entries.find((entry) => entry.clientId === clientId);

export const of = (entries, conversation) => entries.filter((entry) => entry.conversation === conversation);

/** The first send of a conversation that does not exist yet, if one is on its way. */
export const firstNew = (entries) => entries.find((entry) => entry.isNew);

export function sent(entries, clientId, parent) {
  return change(entries, clientId, (entry) => ({ state: "sent", hasGoneOut: true, parent: entry.hasGoneOut ? entry.parent : parent, error: "" }));
}

export const refused = (entries, clientId, error) => change(entries, clientId, () => ({ state: "refused", error }));

/** To be sent again, for example after the connection was lost. A message that the server refused waits for a person. */
export const waiting = (entries, clientId) => change(entries, clientId, () => ({ state: "waiting", error: "" }));

export function allWaiting(entries) {
  return entries.map((entry) => (entry.state === "sent" ? { ...entry, state: "waiting" } : entry));
}

/** What may go out now in this conversation: its first entry, unless that one is out or refused, or a reply is running. */
export function next(entries, conversation, isRunning) {
  const [first] = of(entries, conversation);
  return first && first.state === "waiting" && (!isRunning || first.hasGoneOut) ? first : undefined;
}

/** The turn.send frame of an entry. */
export function frameOf(entry) {
  return {
    type: "turn.send", conversation: entry.conversation, client_id: entry.clientId, text: entry.text,
    parent: entry.parent, is_new: entry.isNew, model: entry.model ?? null, preset: entry.preset ?? null,
  };
}

function change(entries, clientId, patch) {
  return entries.map((entry) => (entry.clientId === clientId ? { ...entry, ...patch(entry) } : entry));
}
