"""Who judges jobs: the rules, built-in and the user's own, and the classifier that ships with the program.

Enters: a folder with rules, the features of a job. Leaves: what each judge says, and by what it was said.
"""

import functools
from pathlib import Path

from diagnose._version import __version__
from diagnose.features.catalogue import list_features
from diagnose.judge.classifier import Classifier, load_classifier
from diagnose.judge.judged import Judged
from diagnose.judge.rules import RuleSet, load_rules
from diagnose.model.diagnosis_document import MadeBy
from diagnose.model.feature import Features


def read_rules(folder: Path | None = None) -> RuleSet:
    """Read the built-in rules, and those of the user's folder.

    Raises
    ------
    RuleError
        A rule file is wrong.
    """
    return load_rules(folder, list_features())


def made_by(rules: Path | None = None) -> MadeBy:
    """Say what judges jobs now: the version, and digests of rules and classifier.

    Raises
    ------
    RuleError
        A rule file, or the classifier, is wrong.
    """
    classifier = read_classifier()
    return _sign(read_rules(rules), classifier)


def ask_judges(features: Features, rule_set: RuleSet) -> Judged:
    """Let every rule and the classifier judge a job, each on its own.

    Raises
    ------
    RuleError
        The classifier is wrong.
    """
    classifier = read_classifier()
    return Judged(
        rule_set=rule_set,
        judgements=tuple(rule.judge(features) for rule in rule_set.rules),
        prediction=classifier.judge(features) if classifier else None,
        made_by=_sign(rule_set, classifier),
    )


@functools.cache
def read_classifier() -> Classifier | None:
    """Read the classifier that ships with the program, once; None where none does."""
    return load_classifier()


def _sign(rule_set: RuleSet, classifier: Classifier | None) -> MadeBy:
    """Name the version of the program and of its judges."""
    return MadeBy(__version__, rule_set.digest, classifier.digest if classifier else None)
