"""What templates need beyond Django's own tags: icons and rendered Markdown.

message_blocks is the only place that marks HTML as safe, and marks only what chatapp.markdown has sanitised.
"""

from __future__ import annotations

from collections.abc import Iterable

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

register = template.Library()


@register.simple_tag
def icon(name: str) -> SafeString:
    """One of the symbols of partials/icons.html. Decoration: whatever it stands in has a name of its own."""
    return format_html('<svg class="icon" aria-hidden="true"><use href="#i-{}"/></svg>', name)


@register.simple_tag
def message_blocks(blocks: Iterable[str]) -> SafeString:
    """HTML of chatapp.markdown, and of nothing else: one element per top-level block, as the scripts keep them."""
    safe = ((mark_safe(html),) for html in blocks)  # noqa: S308 -- sanitised where it was rendered
    return format_html_join("", '<div class="block">{}</div>', safe)
