"""The last step over finished HTML: only what is listed here leaves the jail.

No svg, no annotation-xml (both have carried scripts past sanitisers), no img (an image URL tells a stranger what was
read), no form controls, no id, no style, no class that is not ours.
"""

from __future__ import annotations

import nh3
from pygments.token import STANDARD_TYPES

_TEXT_TAGS = """
    p br hr h1 h2 h3 h4 h5 h6 blockquote ul ol li pre code em strong s a span figure figcaption
    table thead tbody tr th td
"""
_MATH_TAGS = """
    math mrow mi mn mo ms mtext mspace msub msup msubsup munder mover munderover mfrac msqrt mroot mtable mtr mtd
    mstyle mpadded mphantom menclose mmultiscripts mprescripts none
"""
_MATH_ATTRIBUTES = """
    mathvariant mathcolor mathbackground mathsize displaystyle scriptlevel stretchy symmetric fence separator form
    lspace rspace largeop movablelimits accent accentunder minsize maxsize width height depth voffset linethickness
    notation columnalign columnspacing columnlines rowspacing rowlines linebreak
"""
_ALIGN = {"align-left", "align-center", "align-right"}
_ATTRIBUTES: dict[str, set[str]] = {tag: set(_MATH_ATTRIBUTES.split()) for tag in _MATH_TAGS.split()} | {
    "a": {"href", "title"},
    "ol": {"start"},
}

_CLEANER = nh3.Cleaner(
    tags={*_TEXT_TAGS.split(), *_MATH_TAGS.split()},
    clean_content_tags={"script", "style"},
    attributes=_ATTRIBUTES,
    tag_attribute_values={"math": {"display": {"block", "inline"}}},
    set_tag_attribute_values={"a": {"target": "_blank"}},
    allowed_classes={
        "figure": {"code"},
        "pre": {"plain"},
        "code": {"tex"},
        "span": {"task"} | {name for name in STANDARD_TYPES.values() if name},
        "th": _ALIGN,
        "td": _ALIGN,
        "ul": {"contains-task-list"},
        "ol": {"contains-task-list"},
        "li": {"task-list-item"},
    },
    url_schemes={"http", "https", "mailto"},
    url_relative="deny",
    link_rel="noopener noreferrer nofollow",
)


def sanitise(html: str) -> str:
    """`html` with everything removed that is not on the lists above."""
    return _CLEANER.clean(html).strip()
