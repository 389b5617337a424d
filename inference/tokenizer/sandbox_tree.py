"""The syntax tree of a template: weave charges into it; tell whether it looks at what messages say.

weave() puts a charge in front of everything that repeats, grows or compares, rewriting the tree in place. The charges
themselves are the filters named <...> in sandbox_filters.
"""

from __future__ import annotations

from jinja2 import nodes
from jinja2.exceptions import TemplateAssertionError

from inference.tokenizer.budget import MAX_INTEGER_BITS

MAX_NODES = 10_000  # templates of models have a few thousand; compiling takes up to the square of them
_BODIES = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)
_FOREIGN = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


def weave(tree: nodes.Template) -> nodes.Template:
    """The same template, paying as it goes. Raises TemplateAssertionError for what can not be made to pay."""
    for found in tree.find_all(_FOREIGN):
        raise TemplateAssertionError("a chat template stands alone: no include, import or extends", found.lineno)
    for constant in tree.find_all(nodes.Const):
        if isinstance(constant.value, int) and constant.value.bit_length() > MAX_INTEGER_BITS:
            raise TemplateAssertionError(f"an integer of more than {MAX_INTEGER_BITS} bits", constant.lineno)
    num_nodes = sum(1 for _ in tree.find_all(nodes.Node))
    if num_nodes > MAX_NODES:
        raise TemplateAssertionError(f"{num_nodes} parts, at most {MAX_NODES} are allowed", 1)
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
    elif isinstance(node, nodes.Getitem):
        node.arg = _deep(node.arg)  # a key is hashed, with all that is in it
    if isinstance(node, nodes.Pair):
        node.key = _deep(node.key)
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


_CAPTURES = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock, nodes.Block, nodes.With)
_LOOP_FACTS = frozenset(("index", "index0", "revindex", "revindex0", "first", "last", "length"))


def is_transparent(tree: nodes.Template) -> bool:
    """Whether contents of messages go to the output as they are and nowhere else: no test, filter or variable sees one.

    Answers false when in doubt. To be called before weave().
    """
    if any(True for _ in tree.find_all(_CAPTURES)):
        return False
    parents = {id(child): node for node in (tree, *tree.find_all(nodes.Node)) for child in node.iter_child_nodes()}
    messages = set()  # names of a single message
    for loop in tree.find_all(nodes.For):
        if isinstance(loop.iter, nodes.Name) and loop.iter.name == "messages" and isinstance(loop.target, nodes.Name):
            messages.add(loop.target.name)
    return all(_is_harmless(name, parents, messages) for name in tree.find_all(nodes.Name))


def _is_harmless(name: nodes.Name, parents: dict[int, nodes.Node], messages: set[str]) -> bool:
    parent = parents[id(name)]
    if name.ctx != "load":
        is_loop_target = isinstance(parent, nodes.For) and parent.target is name
        is_message = name.name in messages
        return is_message == is_loop_target if is_message or name.name == "messages" else True
    if name.name == "loop":
        return isinstance(parent, nodes.Getattr) and parent.attr in _LOOP_FACTS
    if name.name == "messages":
        if isinstance(parent, nodes.For):
            return parent.iter is name
        if isinstance(parent, nodes.Filter):
            return parent.name in ("length", "count")
        is_one = isinstance(parent, nodes.Getitem) and isinstance(parent.arg, nodes.Const | nodes.Neg)
        return is_one and _is_harmless_message(parent, parents)
    return name.name not in messages or _is_harmless_message(name, parents)


def _is_harmless_message(message: nodes.Node, parents: dict[int, nodes.Node]) -> bool:
    """Its role may be used for anything; its content must go to the output, joined with other text at most."""
    parent = parents[id(message)]
    if isinstance(parent, nodes.Getattr):
        field = parent.attr
    elif isinstance(parent, nodes.Getitem) and parent.node is message and isinstance(parent.arg, nodes.Const):
        field = parent.arg.value
    else:
        return False
    if field == "role":
        return True
    node = parents[id(parent)]
    while isinstance(node, nodes.Add | nodes.Concat):
        node = parents[id(node)]
    return field == "content" and isinstance(node, nodes.Output)
