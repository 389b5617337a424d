/* The dialog that says what becomes of what no longer fits the window. */

export class Policy {
  /** values: null until the conversation is stored. save(values) stores them and gives back what is stored. */
  constructor(dialog, values, save) {
    Object.assign(this, { dialog, values, save });
    this.button = document.querySelector('#window-card [data-action="window"]');
    this.#offer();
    this.form = dialog.querySelector("form");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.form.addEventListener("change", () => this.#draw());
  }

  get name() {
    return this.values?.policy ?? "";
  }

  /** What the server has told about a stored conversation, perhaps changed in another tab. */
  know({ policy, recent_tokens, has_recall, is_stored }) {
    this.values = is_stored ? { policy, recent_tokens, has_recall } : null;
    this.#offer();
  }

  open() {
    const { policy, recent_tokens, has_recall } = this.values;
    this.form.elements.policy.value = policy;
    this.form.elements.recent_tokens.value = recent_tokens || "";
    this.form.elements.has_recall.checked = has_recall;
    this.#problem("");
    this.#draw();
    this.dialog.showModal();
  }

  async #submit() {
    const { policy, recent_tokens, has_recall } = this.form.elements;
    try {
      this.values = await this.save({ policy: policy.value, recent_tokens: recent_tokens.value, ...(has_recall.checked ? { has_recall: "on" } : {}) });
      this.dialog.close();
    } catch (error) {
      this.#problem(error.message);
    }
  }

  #offer() {
    this.button.hidden = !this.values;
  }

  #problem(text) {
    this.form.querySelector(".errorlist").textContent = text;
  }

  #draw() {
    this.form.querySelector(".window-recent").hidden = this.form.elements.policy.value !== "recent";
    this.form.elements.has_recall.disabled = this.form.elements.policy.value === "full"; // nothing ever leaves
  }
}
