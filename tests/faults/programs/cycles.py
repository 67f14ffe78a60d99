"""Cycles in a graph of labelled edges."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

Edges = dict[str, dict[str, set[str]]]


def prune_to_cycles(edges: Edges, kinds: set[str]) -> Edges:
    """Return the part of the graph in which every node has an edge in and an edge out."""
    graph = {
        start: {target: labels & kinds for target, labels in targets.items() if labels & kinds}
        for start, targets in edges.items()
    }
    while True:
        entered = {target for targets in graph.values() for target in targets}
        kept = {node for node, targets in graph.items() if targets} & entered
        if kept == graph.keys():
            return graph
        graph = {
            node: {target: labels for target, labels in graph[node].items() if target in kept}
            for node in kept
        }


def find_path(graph: Edges, start: str, end: str, kinds: Iterable[str]) -> list[str] | None:
    """Return the shortest path from one node to another, or None if there is none."""
    allowed = set(kinds)
    came: dict[str, str | None] = {start: None}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        if node == end:
            path = [node]
            while (before := came[path[-1]]) is not None:
                path.append(before)
            return path[::-1]
        for target, labels in graph.get(node, {}).items():
            if labels & allowed and target not in came:
                came[target] = node
                queue.append(target)
    return None
