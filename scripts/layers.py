#!/usr/bin/env python3
"""Fail if modules of a crate import each other in a circle, or stand otherwise than docs/design.md draws them.

A module is one file, with the folder of its name. It stands on every module that its code names by `crate::`, `super::` or `self::`; a name that
is handed on (`pub use`) counts where it comes from. In each folder the modules stand in layers; a module and what is in its folder are one
seen from outside, and may name each other. Tests do not count.

A drawing begins with "Within `CRATE`". Each of its lines names modules and, behind three blanks or more, says what they are; one that says nothing
belongs to the layer of the line before. Modules that "Beside these" names may be used by all, and stand on each other, or on what is drawn lowest.

    layers.py [CRATE...]    all of crates/, or some
"""
import functools
import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
USE = re.compile(r"^[ \t]*(pub(?:\([a-z: ]+\))?[ \t]+)?use[ \t]+([^;]+);", re.M)
PATH = re.compile(r"\b((?:crate|super|self)(?:::\w+)+)")


def without_comments_and_tests(text):
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text)
    found = re.search(r"#\[cfg\(test\)\]\s*mod \w+ \{", text)
    return text[: found.start()] if found else text


def spread(use):
    """The paths that `a::{b, c::d}` stands for."""
    use = " ".join(use.split())
    found = re.match(r"([^{]*)\{(.*)\}$", use)
    if not found:
        return [re.sub(r" as \w+$", "", use).strip()]
    head, inside = found.groups()
    parts, depth, part = [], 0, ""
    for letter in inside:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append(part)
            part = ""
        else:
            part += letter
    parts.append(part)
    return [head + path for part in parts if part.strip() for path in spread(part.strip())]


class Crate:
    def __init__(self, folder):
        self.source = folder / "src"
        self.modules = {}
        for file in sorted(self.source.rglob("*.rs")):
            parts = file.relative_to(self.source).with_suffix("").parts
            if parts[-1] in ("main", "tests") or "bin" in parts or "tests" in parts:
                continue
            self.modules[() if parts == ("lib",) else parts] = without_comments_and_tests(file.read_text())
        # What only tests are made of.
        for test in re.findall(r"#\[cfg\(test\)\]\s*mod (\w+);", self.modules.get((), "")):
            self.modules = {module: text for module, text in self.modules.items() if module[:1] != (test,)}

    def resolve(self, module, path):
        """The module that `path`, written in `module`, is of."""
        parts = path.split("::")
        at = ()
        if parts[0] == "self":
            at, parts = module, parts[1:]
        elif parts[0] == "super":
            at = module
            while parts and parts[0] == "super":
                at, parts = at[:-1], parts[1:]
        elif parts[0] == "crate":
            parts = parts[1:]
        while parts and at + (parts[0],) in self.modules:
            at, parts = at + (parts[0],), parts[1:]
        if parts and parts[0] in self.handed_on(at):
            return self.resolve(at, self.handed_on(at)[parts[0]])
        return at, parts[0] if parts else None

    @functools.cache
    def handed_on(self, module):
        """The names that a module has from others, and their paths."""
        found = {}
        for is_public, use in USE.findall(self.modules.get(module, "")):
            for path in spread(use) if is_public else []:
                parts = path.split("::")
                if parts[0] not in ("crate", "super", "self") and module + (parts[0],) in self.modules:
                    path = "self::" + path
                if path.split("::")[0] in ("crate", "super", "self") and parts[-1] not in ("self", "*"):
                    found[parts[-1]] = path
        return found

    def imports(self, module):
        text = self.modules[module]
        paths = [path for _, use in USE.findall(text) for path in spread(use)]
        paths += PATH.findall(USE.sub("", text))
        found = {}
        for path in paths:
            if path.split("::")[0] not in ("crate", "super", "self"):
                # A child's name, as `pub use` of a module's own folder has it.
                if module + (path.split("::")[0],) in self.modules:
                    path = "self::" + path
                else:
                    continue
            target, name = self.resolve(module, path)
            if target != module and target in self.modules:
                found.setdefault(target, set()).add(name or "")
        return found

    def floors(self):
        """Each folder's graph of what stands in it: {folder: {child: {child: names}}}."""
        found = {}
        for module in self.modules:
            for target, names in self.imports(module).items():
                depth = 0
                while depth < min(len(module), len(target)) and module[depth] == target[depth]:
                    depth += 1
                if depth < min(len(module), len(target)):
                    ends = module[: depth + 1], target[: depth + 1]
                    found.setdefault(module[:depth], {}).setdefault(ends[0], {}).setdefault(ends[1], set()).update(
                        f"{'::'.join(module[depth:])}: {name or 'itself'}" for name in names
                    )
        return found


# Crates whose modules are drawn.
DRAWN = ("native", "ext", "cli")


class Drawing:
    """The layers of a crate's modules as docs/design.md has them, from the top."""

    def __init__(self, text, crate):
        self.layers = []
        begin = text.find(f"Within `{crate}`")
        if begin < 0:
            assert crate not in DRAWN, f"docs/design.md does not draw {crate}"
            return
        _, lines, rest = text[begin:].split("```", 2)
        for line in lines.strip("\n").splitlines():
            names, *what = re.split(r" {3,}", line.strip(), maxsplit=1)
            self.layers += [set()] if what or not self.layers else []
            self.layers[-1] |= set(re.findall(r"\w+", names))
        beside = re.match(r"\s*Beside these, known to all that need them: ([^.]*)\.", rest)
        self.beside = set(re.findall(r"\w+", re.sub(r"\(.*?\)", "", beside[1]))) if beside else set()

    def differences(self, graph, modules):
        """What of it is not so."""
        if not self.layers:
            return
        level = {name: number for number, names in enumerate(self.layers) for name in names}
        yield from (f"{name} is not drawn" for name in sorted(modules - set(level) - self.beside))
        yield from (f"{name} is drawn, and is no module" for name in sorted((set(level) | self.beside) - modules))
        for (user,), targets in graph.items():
            for (target,), names in targets.items():
                lowest = len(self.layers) - 1 if user in self.beside else level.get(user, 0)
                if target not in self.beside and level.get(target, lowest) < lowest:
                    yield f"{user} uses {target}, which is drawn above it: {', '.join(sorted(names))}"


def components(graph):
    """Tarjan's strongly connected components of more than one."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph.get(node, ()):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            part = []
            while True:
                part.append(stack.pop())
                if part[-1] == node:
                    break
            if len(part) > 1:
                found.append(part)

    for node in graph:
        if node not in index:
            visit(node)
    return found


def main():
    names = sys.argv[1:] or sorted(path.name for path in (TOP / "crates").iterdir())
    status = 0
    design = (TOP / "docs" / "design.md").read_text()
    for name in names:
        crate = Crate(TOP / "crates" / name)
        floors = crate.floors()
        tops = {module[0] for module in crate.modules if module}
        for what in Drawing(design, name).differences(floors.get((), {}), tops):
            status = 1
            print(f"{name}: {what}")
        for folder, graph in sorted(floors.items()):
            for circle in components(graph):
                status = 1
                print(f"{'::'.join((name, *folder))}: {len(circle)} modules in a circle:")
                for module in sorted(circle):
                    for target in sorted(set(graph[module]) & set(circle)):
                        print(f"  {module[-1]} -> {target[-1]}: {', '.join(sorted(graph[module][target]))}")
    if not status:
        drawn = sum(name in DRAWN for name in names)
        print(f"layers: {len(names)} crates, no circles; {drawn} as drawn")
    return status


sys.exit(main())
