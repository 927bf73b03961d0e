"""Boosted trees of one cause: read from the classifier's file, and walked for a job.

Enters: a part of the file; inputs of a job. Leaves: log odds, and what each input adds to them. Every index in the file is checked
before a tree is walked.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

from diagnose.judge.checked_json import take_entry, take_integers, take_number, take_numbers

#: In the file, `feature` of a leaf.
LEAF = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Trees:
    """Boosted trees of one cause, all nodes in one row; children come after their parents, in the same tree."""

    #: Log odds without any tree.
    baseline: float
    #: Node at which each tree begins.
    roots: list[int]
    #: `feature`, `left`, `right`: input that a node looks at (`LEAF` where none), and its children.
    feature: list[int]
    left: list[int]
    right: list[int]
    #: Up to this value a job goes to the left.
    threshold: list[float]
    #: Whether it goes there when the input is missing.
    missing_left: list[bool]
    #: Log odds of a leaf; elsewhere their mean over the jobs of training below the node.
    expected: list[float]
    #: Baseline and the expected values of all roots.
    bias: float

    @classmethod
    def read(cls, part: Any, place: str, n_inputs: int) -> "Trees":
        """Check and read the trees of a cause.

        Raises
        ------
        ValueError
            They are damaged; the message says where.
        """
        baseline = take_number(take_entry(part, "baseline", place), f"{place}/baseline")
        feature = take_integers(part, "feature", place, low=LEAF, high=n_inputs - 1)
        n_nodes = len(feature)
        roots = take_integers(part, "roots", place, low=0, high=n_nodes - 1)
        left = take_integers(part, "left", place, low=0, high=n_nodes - 1, n=n_nodes)
        right = take_integers(part, "right", place, low=0, high=n_nodes - 1, n=n_nodes)
        missing_left = take_integers(part, "missing_left", place, low=0, high=1, n=n_nodes)
        cover = take_integers(part, "cover", place, low=1, high=2**31, n=n_nodes)
        threshold = take_numbers(part, "threshold", place, n=n_nodes)
        expected = take_numbers(part, "value", place, n=n_nodes)
        if roots[0] != 0 or any(a >= b for a, b in itertools.pairwise(roots)):
            raise ValueError(f"{place}/roots: expected 0 first, then increasing numbers")
        for root, end in zip(roots, [*roots[1:], n_nodes], strict=True):
            children = []
            for node in range(end - 1, root - 1, -1):
                if feature[node] == LEAF:
                    continue
                a, b = left[node], right[node]
                if not (node < a < end and node < b < end):
                    raise ValueError(
                        f"{place}: node {node} has children {a} and {b}; expected nodes after it, below {end}"
                    )
                if cover[node] != cover[a] + cover[b]:
                    raise ValueError(f"{place}/cover: {cover[node]} at node {node}; expected {cover[a] + cover[b]}")
                expected[node] = (cover[a] * expected[a] + cover[b] * expected[b]) / cover[node]
                children += [a, b]
            if sorted(children) != list(range(root + 1, end)):
                raise ValueError(f"{place}: the tree at node {root} has nodes with no parent, or with two")
        bias = baseline + math.fsum(expected[root] for root in roots)
        return cls(baseline, roots, feature, left, right, threshold, [m == 1 for m in missing_left], expected, bias)

    def explain(self, inputs: Sequence[float]) -> tuple[float, dict[int, float]]:
        """Score a job, NaN for inputs that are missing: log odds before calibration, and what each input adds to them.

        An input adds what the expected value changes at the nodes that look at it; with `bias` that sums to the score.

        Source: Saabas, "Random forest interpretation" (2014), for boosted trees.
        """
        added: dict[int, float] = {}
        score = self.baseline
        for root in self.roots:
            node = root
            while (feature := self.feature[node]) != LEAF:
                value = inputs[feature]
                # A missing value is NaN, which is at most nothing.
                goes_left = value <= self.threshold[node] or (self.missing_left[node] and math.isnan(value))
                child = self.left[node] if goes_left else self.right[node]
                added[feature] = added.get(feature, 0.0) + self.expected[child] - self.expected[node]
                node = child
            score += self.expected[node]
        return score, added
