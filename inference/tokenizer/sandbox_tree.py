"""Weave charges into a parsed template: in front of everything that repeats, grows or compares.

Rewrites the syntax tree in place. The charges themselves are the filters named <...> in sandbox_filters.
"""

from __future__ import annotations

from jinja2 import nodes
from jinja2.exceptions import TemplateAssertionError

_BODIES = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)
_FOREIGN = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


def weave(tree: nodes.Template) -> nodes.Template:
    """The same template, paying as it goes. Raises TemplateAssertionError for what can not be made to pay."""
    for found in tree.find_all(_FOREIGN):
        raise TemplateAssertionError("a chat template stands alone: no include, import or extends", found.lineno)
    _weave_children(tree)
    return tree


def _weave_children(node: nodes.Node) -> None:
    for name, value in node.iter_fields():
        if isinstance(value, list):
            setattr(node, name, [_woven(item) if isinstance(item, nodes.Node) else item for item in value])
        elif isinstance(value, nodes.Node):
            setattr(node, name, _woven(value))


def _woven(node: nodes.Node) -> nodes.Node:
    """The node that takes this one's place; often itself."""
    if isinstance(node, _BODIES):
        _weave_body(node)
        return node
    _weave_children(node)
    if isinstance(node, nodes.Concat):
        return _filter("<concat>", nodes.List(node.nodes, lineno=node.lineno))
    if isinstance(node, nodes.Tuple) and node.ctx == "load":
        # Tuples can be hashed, and hashing one that holds another many times over does not come to an end.
        return nodes.List(node.items, lineno=node.lineno)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        node.node = _filter("<flat>", node.node)
    if isinstance(node, nodes.Compare):
        _weave_compare(node)
    return node


def _weave_body(node: nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block) -> None:
    cost = sum(1 for _ in node.find_all(nodes.Node))
    num_chars = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
    _weave_children(node)
    if isinstance(node, nodes.For):
        if node.recursive:
            raise TemplateAssertionError("recursive loops are not offered", node.lineno)
        node.iter = _filter("<loop>", node.iter, cost)
    entry = _filter("<enter>", nodes.Const(cost, lineno=node.lineno), num_chars)
    node.body.insert(0, nodes.ExprStmt(entry, lineno=node.lineno))


def _weave_compare(node: nodes.Compare) -> None:
    """Comparing with a constant is cheap. What `in` searches, and both sides of any other comparison, are paid for."""
    operands: list[nodes.Expr] = [node.expr, *(operand.expr for operand in node.ops)]
    is_search = any(operand.op in ("in", "notin") for operand in node.ops)
    if not is_search and any(isinstance(operand, nodes.Const) for operand in operands):
        return
    node.expr = _deep(node.expr)
    for operand in node.ops:
        operand.expr = _deep(operand.expr)


def _deep(value: nodes.Expr) -> nodes.Expr:
    return value if isinstance(value, nodes.Const) else _filter("<deep>", value)


def _filter(name: str, value: nodes.Node, *args: int) -> nodes.Filter:
    constants = [nodes.Const(arg, lineno=value.lineno) for arg in args]
    return nodes.Filter(value, name, constants, [], None, None, lineno=value.lineno)
