"""Hostile text -> sanitised HTML. Pure, without Django; everything but `plain` runs in the jail's child only.

Floors: job > render > parser > maths, links, code, sanitise > plain.
Classes that the HTML carries, for whoever writes the style sheet:
  figure.code > figcaption (language, may be empty) + pre > code > span.<Pygments short name>   a code block
  pre.plain                                   a block shown as its source, white space kept
  code.tex                                    TeX that could not be converted
  th, td .align-left .align-center .align-right
  ul.contains-task-list, li.task-list-item, span.task (a ballot box)
  math[display=block]                         MathML, inside p or alone
Pygments names are those of pygments.token.STANDARD_TYPES: k kc kd kn kp kr kt, n na nb bp nc no nd ni ne nf fm nl nn
nx py nt nv vc vg vi vm, l ld s sa sb sc dl sd s2 se sh si sx sr s1 ss m mb mf mh mi il mo, o ow p pm, c ch cm cp cpf c1
cs, g gd ge ges gr gh gi go gp gs gu gt, err esc w x; most of a page is k* n* s* m* c* o p. Rules for a colour scheme:
HtmlFormatter(style=...).get_style_defs(".code").
"""
