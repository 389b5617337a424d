"""What the engine notes about a model, in the language of whoever reads it. The engine itself knows English only."""

from __future__ import annotations

from django.utils.translation import gettext as _

from chatapp import llm


def sentence(note: llm.Note) -> str:
    """One note for a person."""
    return _template(note.code) % note.values


def _template(code: llm.NoteCode) -> str:
    """In English the engine's own words."""
    match code:
        case llm.NoteCode.TENSORS_SKIPPED:
            return _("%(num)s tensors %(names)s are left out, text only.")
        case llm.NoteCode.THINKING_REMOVED:
            return _(
                "The template removes %(mark)s blocks from earlier replies; whether they are replayed nevertheless is "
                "for each preset to say."
            )
        case llm.NoteCode.HISTORY_TRIMMED:
            return _(
                "The template trims spaces and line breaks around what was said; replies keep them here, because they "
                "are replayed as they were generated."
            )
        case llm.NoteCode.HISTORY_REWRITTEN:
            return _(
                "The template writes differently about a message once others have followed: of a short turn of "
                "%(total)s tokens, %(reread)s are read again, and so is all behind them."
            )
        case llm.NoteCode.HISTORY_REWRITTEN_WITH_SYSTEM:
            return _(
                "Where there is a system prompt, the template writes differently about a message once others have "
                "followed: of a short turn of %(total)s tokens, %(reread)s are read again, and so is all behind them."
            )


def loaded_only(name: str) -> str:
    """What is to be known of a model that is in memory and whose files are gone."""
    return _(
        "The model %(name)s is not installed any more. It goes on answering while it stays loaded, and cannot be "
        "loaded again."
    ) % {"name": name}
