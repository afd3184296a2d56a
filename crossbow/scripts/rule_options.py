"""The options of rules, the rule that they define, and its description."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from typing import Any

from crossbow.conf import FieldSetting, settings
from crossbow.runtime.configuration import ModelConf
from crossbow.scripts.setting_options import add_setting, as_help, reader, refuse_idle, those_given
from crossbow.scripts.values import meant
from crossbow.solver import Pace
from crossbow.synch import RULES, SMA, Rule, RulePhase, RuleSequence, TwoLevel, rule_class
from crossbow.synch.elastic import Elastic
from crossbow.types import ConfigurationError

BEFORE_ANY_STEP = Pace(rate=0.0, momentum=0.0)
"""The pace at which a rule's α has its first value."""


ONE_LEVEL = "none"
"""The value of --between for an exchange between all learners at every tick."""


def add_rule(group: argparse._ArgumentGroup) -> None:
    """Add the option for the rule, and one for every setting of any rule."""
    group.add_argument(
        "--rule",
        type=_rules,
        metavar="RULE",
        default=SMA.name,
        help=f"how learners are combined, see docs/rules.md: {', '.join(RULES)}; or several in turn, each with its "
        "number of merges, as async:100,ssgd:200 (default: %(default)s)",
    )
    group.add_argument(
        "--between",
        type=_between,
        metavar="RULE[:SETTING=VALUE,…]",
        help="two levels: --rule combines the learners of a rank, and this rule with a barrier combines the ranks, as "
        "model-averaging:tau=64 or diloco:tau=50,outer-momentum=0.5; none: one level (default: with CPUs "
        "and one rule with a barrier, ranks on Ray or on several hosts use model averaging, so rarely that the "
        "exchange takes at most 5 %% of the time, as measured; else one level)",
    )
    for having in rule_settings().values():
        domains = list(dict.fromkeys(setting.domain for setting in having.values()))
        add_setting(group, next(iter(having.values())), domains, _help(having))


def rule_settings() -> dict[str, dict[str, FieldSetting]]:
    """Settings of all rules, by the setting's name and the rule's."""
    found: dict[str, dict[str, FieldSetting]] = {}
    for rule, kind in RULES.items():
        for name, setting in settings(kind).items():
            found.setdefault(name, {})[rule] = setting
    return found


def _help(having: dict[str, FieldSetting]) -> str:
    """The help of an option: the text that all rules share, then the bounds and the default of each group of rules that
    have the same.

    >>> print(_help({name: rule_settings()["alpha"][name] for name in ("polyak-ruppert", "easgd")}))
    strength of the correction; polyak-ruppert: ≥ 0 and ≤ 1 (default: 0, none); easgd: > 0 and ≤ 1 (default: 0.5)
    """
    groups: dict[tuple[str, str, str], list[str]] = {}
    for rule, setting in having.items():
        groups.setdefault((as_help(setting.text), setting.domain.bounds, setting.meaning), []).append(rule)
    shared = len(groups) > 1 and len({text for text, _, _ in groups}) == 1
    parts = [as_help(next(iter(having.values())).text)] if shared else []
    for (text, bounds, meaning), rules in groups.items():
        limits = ", ".join(filter(None, ("" if shared else text, bounds)))
        parts.append(f"{', '.join(rules)}: {limits} (default: {meaning})")
    return "; ".join(parts)


def rule_conf(options: argparse.Namespace) -> Rule | RuleSequence | TwoLevel:
    """The rule that the options define. In a sequence, each rule gets --between and the options that apply to it.
    Raises ConfigurationError if the options are invalid, or if one of them has no effect."""
    phases, known = _phases(options), _known(options)
    every = rule_settings()
    given = those_given(options, every)
    for name, value in given.items():
        if not any(name in names for names in known.values()):
            typed = next(iter(every[name].values())).typed(value)
            raise refuse_idle(typed, f"with --rule {options.rule}", hint="; ".join(rule_hints(options)))
    rules = [
        _with_between(
            rule_class(name)(**{option: value for option, value in given.items() if option in known[name]}),
            options.between,
        )
        for name, _, _ in phases
    ]
    if not phases[0][1]:
        return rules[0]
    return RuleSequence(tuple(RulePhase(rule, int(count)) for rule, (_, _, count) in zip(rules, phases, strict=True)))


def _with_between(rule: Rule, between: Rule | str | None) -> Rule | TwoLevel:
    """The rule or, with a rule between ranks, two levels of rules. Raises ConfigurationError if they do not fit."""
    levels: dict[str, Any] = {"within": rule, "between": between}
    return TwoLevel(**levels) if isinstance(between, Rule) else rule


def rule_hints(options: argparse.Namespace) -> list[str]:
    """Sentences on the options of the rule or, in a sequence, of each rule."""
    return [f"Options of {rule}: {_options_text(having.values())}" for rule, having in _known(options).items()]


def _phases(options: argparse.Namespace) -> list[tuple[str, str, str]]:
    """For each rule of a sequence, its name, a colon and its number of merges; for a single rule, its name."""
    return [part.partition(":") for part in options.rule.split(",")]


def _known(options: argparse.Namespace) -> dict[str, dict[str, FieldSetting]]:
    return {name: settings(rule_class(name)) for name, _, _ in _phases(options)}


def _options_text(having: Iterable[FieldSetting]) -> str:
    return ", ".join(f"--{setting.option}" for setting in having) or "none"


def _rules(text: str) -> str:
    """Check a rule's name, or a sequence of names with numbers of merges."""
    text = "".join(text.split())
    phases = [part.split(":") for part in text.split(",")]
    for name, *_ in phases[: 1 if "=" in text else None]:
        try:
            rule_class(name)
        except ConfigurationError:
            raise argparse.ArgumentTypeError(
                f"invalid choice: {name!r} (choose from {', '.join(RULES)}){meant(name, RULES)}"
            ) from None
    if "=" in text:
        raise argparse.ArgumentTypeError(
            f"expected the settings of a rule as options, as --rule diloco --tau 50. Received: {text!r}"
        )
    alone = len(phases) == 1 and len(phases[0]) == 1
    if not alone and not all(len(rest) == 1 and rest[0].isdecimal() and int(rest[0]) for _, *rest in phases):
        raise argparse.ArgumentTypeError(f"expected numbers of merges ≥ 1, as async:100,ssgd:200. Received: {text!r}")
    return text


def _between(text: str) -> Rule | str:
    """The rule that `--between` describes, or `ONE_LEVEL`.

    >>> _between("diloco:tau=50,outer-momentum=0.5")
    DiLoCo(tau=50, outer_learning_rate=0.7, outer_momentum=0.5)
    """
    if text == ONE_LEVEL:
        return text
    name, _, rest = text.partition(":")
    given: dict[str, Any] = {}
    try:
        kind = rule_class(name)
        known = {setting.option: setting for setting in settings(kind).values()}
        for part in filter(None, re.split(r",(?=[a-z][a-z-]*=)", rest)):
            option, _, value = part.partition("=")
            if option not in known:
                allowed = ", ".join(f"{each}=…" for each in known)
                raise argparse.ArgumentTypeError(f"expected settings of {name}: {allowed}. Received: {part!r}")
            given[known[option].name] = reader([known[option].domain])(value)
        return kind(**given)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def rule_text(rule: Rule | RuleSequence | TwoLevel, learners: int, hosts: int = 1) -> str:
    """A rule with its parameters. learners: number of learners that the rule combines. hosts: number of hosts, with
    two levels.

    >>> rule_text(SMA(), 4), rule_text(RULES["ssp"](bound=2), 4)
    ('sma, alpha 0.25, tau 1, base momentum 0', 'ssp, bound 2, weight 1')
    >>> rule_text(RULES["easgd"](alpha_steps=((30, 0.1), (60, 0.05))), 4)
    'easgd, alpha 0.5, tau 1, alpha steps 30:0.1,60:0.05'
    >>> rule_text(RuleSequence((RulePhase(RULES["hogwild"](), 5), RulePhase(RULES["ssgd"](), 2))), 4)
    'hogwild for 5 merges; ssgd for 2 merges; and again'
    >>> rule_text(TwoLevel(SMA(), RULES["model-averaging"](tau=8)), 4, hosts=2)
    'sma, alpha 0.25, tau 1, base momentum 0, between ranks model-averaging, tau 8'
    """
    if isinstance(rule, TwoLevel):
        return f"{rule_text(rule.within, learners)}, between ranks {rule_text(rule.between, hosts)}"
    if isinstance(rule, RuleSequence):
        phases = [f"{rule_text(each, learners, hosts)} for {merges} merges" for each, merges in rule.phases]
        return "; ".join([*phases, "and again"])
    known = settings(type(rule))
    values: dict[str, Any] = {name: getattr(rule, name) for name in known}
    if isinstance(rule, Elastic):
        values["alpha"] = rule.strength(BEFORE_ANY_STEP, learners)
    return ", ".join([rule.name, *(_value_text(known[name], value) for name, value in values.items() if value != ())])


def exchanges_text(model: ModelConf) -> str:
    """Description of the settings of exchanges that differ from their defaults.

    >>> exchanges_text(ModelConf(skip=0.1, local_variables=("*norm*", "*bias"), restart=False))
    ', skip 0.1, local variables *norm*,*bias, no restart'
    """
    unusual = [f"skip {model.skip:g}"] if model.skip else []
    unusual += [f"local variables {','.join(model.local_variables)}"] if model.local_variables else []
    unusual += [] if model.restart else ["no restart"]
    return "".join(f", {text}" for text in unusual)


def _value_text(setting: FieldSetting, value: Any) -> str:
    if value is None:
        text = setting.meaning
    else:
        text = f"{value:.4g}" if isinstance(value, float) else setting.domain.write(value)
    return f"{setting.name.replace('_', ' ')} {text}"
