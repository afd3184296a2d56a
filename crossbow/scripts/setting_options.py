"""Options derived from settings of configurations. Their names, help, values and defaults come from the fields."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from crossbow.conf import Domain, FieldSetting
from crossbow.domains import Choice, EnumMember, Flag
from crossbow.scripts.values import meant
from crossbow.types import ConfigurationError


def add_settings(
    group: argparse._ArgumentGroup, settings: Mapping[str, FieldSetting], defaults: Mapping[str, str] | None = None
) -> None:
    """Add an option for each setting. The value of an option that is not given is None.

    defaults  texts that replace the default of a setting in the help, by name.
    """
    for name, setting in settings.items():
        default = (defaults or {}).get(name, setting.meaning)
        add_setting(group, setting, [setting.domain], help_text(setting, default))


def add_setting(group: argparse._ArgumentGroup, setting: FieldSetting, domains: Sequence[Domain], text: str) -> None:
    """Add an option with this help, for a value of one of the domains."""
    option, text = f"--{setting.option}", text.replace("%", "%%")
    if isinstance(setting.domain, Flag):
        group.add_argument(option, dest=setting.name, action=argparse.BooleanOptionalAction, help=text)
    else:
        metavar = setting.domain.placeholder
        group.add_argument(option, dest=setting.name, type=reader(domains), metavar=metavar, help=text)


def help_text(setting: FieldSetting, default: str) -> str:
    """The setting's text, its bounds, and the default.

    >>> from crossbow.conf import settings
    >>> from crossbow.solver import SolverConf
    >>> help_text(settings(SolverConf)["momentum"], "0.9")
    'sgd, rmsprop: fraction of the last step that is kept, ≥ 0 and < 1 (default: 0.9)'
    """
    text = ", ".join(filter(None, (as_help(setting.text), setting.domain.bounds)))
    return f"{text} (default: {default})" if default else text


def as_help(text: str) -> str:
    """A docstring's paragraph in the style of help texts: lower case, without a full stop, and with fields as options.

    >>> as_help("Penalty of `weight_decay`."), as_help("L2 norm."), as_help("γ at the start.")
    ('penalty of --weight-decay', 'L2 norm', 'γ at the start')
    """
    text = re.sub(r"`(\w+)`", lambda match: f"--{match[1].replace('_', '-')}", text.removesuffix("."))
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def reader(domains: Sequence[Domain]) -> Callable[[str], Any]:
    """A function that reads a value of the first domain that accepts the text."""

    def read(text: str) -> Any:
        for domain in domains:
            try:
                return domain.read(text)
            except (KeyError, ValueError):
                continue
        forms = " or ".join(dict.fromkeys(domain.form for domain in domains))
        words = [word for domain in domains for word in _words(domain)]
        raise argparse.ArgumentTypeError(f"expected {forms}. Received: {text!r}{meant(text, words)}")

    return read


def _words(domain: Domain) -> Iterable[str]:
    """The possible values of a domain of words."""
    if isinstance(domain, EnumMember):
        return (str(member.value) for member in domain.kind)
    return domain.choices if isinstance(domain, Choice) else ()


def those_given(options: argparse.Namespace, names: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """The values of the options that were given. For the others, the configuration's defaults apply."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def refuse_idle(received: str, where: str, hint: str = "") -> ConfigurationError:
    """The error for an option that has no effect. received: the option, as typed. where: the condition, "with …" or
    "without …"."""
    return ConfigurationError(f"{received.split()[0]} does nothing {where}. Received: {received}{hint and f'. {hint}'}")
