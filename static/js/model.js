/* The chip that names the model and says whether it is ready; asked again while it is loading. */

import { facts } from "./floating.js";

const ASK_AGAIN_MS = 1500;

export class Model {
  /** onReady() is called when a model that was loading can be used. */
  constructor(chip, card, state, ask, onChange) {
    this.chip = chip;
    this.card = card;
    this.ask = ask;
    this.onChange = onChange;
    this.#show(state);
  }

  get isReady() {
    return this.state.state === "ready";
  }

  /** Ask now, for example because a send was refused; and again until it is ready or has failed. */
  async refresh() {
    clearTimeout(this.timer);
    try {
      this.#show(await this.ask());
    } catch (error) {
      if (error.code !== "offline") throw error; // the banner already tells that the server is away
      this.timer = setTimeout(() => this.refresh(), ASK_AGAIN_MS);
      return;
    }
    this.onChange(this.state);
  }

  /** A sentence about how much of the conversation it has read; "" says nothing. */
  showRead(sentence) {
    const line = this.card.querySelector(".model-read");
    line.textContent = sentence;
    line.hidden = sentence === "";
  }

  #showNotes(notes) {
    const list = this.card.querySelector(".model-notes");
    list.hidden = notes.length === 0;
    list.replaceChildren(...notes.map((note) => {
      const item = document.createElement("li");
      item.textContent = note;
      return item;
    }));
  }

  #show(state) {
    this.state = state;
    this.chip.dataset.state = state.state;
    this.chip.title = state.label;
    this.chip.querySelector(".name").textContent = state.label;
    this.card.querySelector("h2").textContent = state.name;
    this.card.querySelector(".model-message").textContent = state.message;
    const command = this.card.querySelector(".command");
    command.textContent = state.command;
    command.hidden = !state.command;
    facts(this.card.querySelector(".facts"), state.facts);
    this.#showNotes(state.notes);
    if (state.state === "loading") this.timer = setTimeout(() => this.refresh(), ASK_AGAIN_MS);
  }
}
