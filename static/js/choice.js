/* Which model answers, and which preset a new conversation begins with. What another model would have to read anew, and
   what it leaves out, is said at once; the next reply takes these sentences away. */

import { notify } from "./floating.js";
import { joined } from "./i18n.js";

export class Choice {
  /** conversation() gives { id, isStored }; onModel(name) is told of every change; onPreset(), that another one is chosen. */
  constructor({ requests, urls, page, conversation, onModel, onPreset }) {
    Object.assign(this, { requests, urls, conversation, onModel });
    this.models = document.getElementById("model-select");
    this.presets = document.getElementById("preset-select");
    this.note = document.getElementById("model-note");
    this.model = page.model;
    this.presets?.addEventListener("change", () => onPreset());
    this.models?.addEventListener("change", () => this.#chosen(this.models.value));
  }

  /** What a new conversation is to begin with; null is the server's default. */
  get forNew() {
    return { model: this.models ? this.model : null, preset: this.presets?.value || null };
  }

  /** The conversation has come into being: its preset is settled. */
  settle() {
    this.presets?.closest(".choice").remove();
    this.presets = null;
  }

  /** What was announced is being done, or is no longer so. */
  clear() {
    this.say("");
  }

  say(text) {
    this.note.textContent = text;
    this.note.hidden = text === "";
  }

  /** Ask which model answers next, for example because another tab has changed it. */
  async sync() {
    if (!this.models || !this.conversation().isStored) return;
    const { model, cold } = await this.requests.json(this.urls.cold(this.conversation().id));
    this.#show(model);
    this.say(cold);
  }

  async #chosen(name) {
    const before = this.model;
    const { id, isStored } = this.conversation();
    if (!isStored) {
      this.#show(name);
      const { notes } = await this.requests.json(this.urls.modelState(name));
      if (this.model === name) this.say(joined(notes));
      return;
    }
    this.models.disabled = true;
    try {
      const { model, cold, notes } = await this.requests.post(this.urls.model(id), { model: name });
      this.#show(model);
      this.say(joined([cold, ...notes]));
    } catch (error) {
      this.models.value = before;
      if (error.code !== "unauthenticated") notify(error.message);
    } finally {
      this.models.disabled = false;
      this.models.focus();
    }
  }

  #show(name) {
    if (this.models.value !== name && [...this.models.options].some((option) => option.value === name)) this.models.value = name;
    if (this.model === name) return;
    this.model = name;
    this.onModel(name);
  }
}
