"""The solver's options, and what they make of a model's own schedule."""

import argparse

import pytest

from crossbow import ConfigurationError, SolverConf
from crossbow.scripts.parser import Defaults, configurations, new_parser
from crossbow.scripts.solver_options import add_solver, solver_conf, solver_text
from crossbow.solver.configuration import DECAYING_POLICIES, LEARNING_RATE_POLICIES, idle_fields
from tests.scripts.options import confs


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--learning-rate-policy inv --gamma 0.5 --power 2", SolverConf(policy="inv", gamma=0.5, power=2)),
        ("--learning-rate-policy step --step-size 3", SolverConf(policy="step", step_size=3)),
        ("--learning-rate-policy exp --gamma 0.9", SolverConf(policy="exp", gamma=0.9)),
        (
            "--learning-rate-policy lsr --warmup-steps 2 --step-values 5,6 --gamma 0.5",
            SolverConf(policy="lsr", warmup_steps=2, step_values=(5, 6), gamma=0.5),
        ),
        (
            "--learning-rate-policy clr --step-size 3 --maximum-learning-rate 0.5",
            SolverConf(policy="clr", step_size=3, maximum_learning_rate=0.5),
        ),
        (
            "--learning-rate-policy cosine --decay-steps 3 --final-learning-rate 0.001 --learning-rate-step-unit tasks",
            SolverConf(policy="cosine", decay_steps=3, final_learning_rate=0.001),
        ),
        (
            "--learning-rate-policy linear --decay-steps 3",
            SolverConf(policy="linear", decay_steps=3, learning_rate_step_unit="epochs"),
        ),
        (
            "--warmup-steps 2 --learning-rate-step-unit epochs",
            SolverConf(warmup_steps=2, learning_rate_step_unit="epochs"),
        ),
    ],
)
def test_policies(arguments: str, expected: SolverConf) -> None:
    assert confs(f"--learning-rate 0.01 --momentum 0 {arguments}").solver == expected


@pytest.mark.parametrize(("arguments", "epochs"), [("", 7), ("--dataset mnist", 3), ("--epochs 5 --warmup-steps 2", 5)])
@pytest.mark.parametrize("policy", DECAYING_POLICIES)
def test_a_decay_lasts_as_long_as_the_training(policy: str, arguments: str, epochs: int) -> None:
    solver = confs(f"--learning-rate-policy {policy} {arguments}").solver
    assert (solver.decay_steps, solver.learning_rate_step_unit) == (epochs, "epochs")


def test_a_decay_in_other_units_needs_its_length() -> None:
    with pytest.raises(ConfigurationError, match="decay_steps must be an integer ≥ 1 with policy='cosine'"):
        confs("--learning-rate-policy cosine --learning-rate-step-unit tasks")


def test_the_whole_solver() -> None:
    arguments = (
        "--learning-rate 0.1 --learning-rate-policy clr --step-size 3 --maximum-learning-rate 0.5 --momentum 0.75 "
        "--minimum-momentum 0.25 --super-convergence --annihilation-steps 4 --final-learning-rate 0.001 "
        "--learning-rate-step-unit epochs --momentum-method nesterov --weight-decay 0.01 --regularisation l1 "
        "--clip-gradient-norm 2"
    )
    solver = confs(arguments).solver
    assert solver == SolverConf(
        learning_rate=0.1,
        policy="clr",
        step_size=3,
        maximum_learning_rate=0.5,
        minimum_momentum=0.25,
        super_convergence=True,
        annihilation_steps=4,
        final_learning_rate=0.001,
        learning_rate_step_unit="epochs",
        momentum=0.75,
        momentum_method="nesterov",
        weight_decay=0.01,
        regularisation="l1",
        clip_gradient_norm=2,
    )
    assert solver_text(solver) == (
        "learning rate 0.1 (clr to 0.5 and back, 3 each, then to 0.001 in 4, in epochs), momentum 0.75 to 0.25 "
        "(nesterov), weight decay 0.01 (l1), gradient norm at most 2"
    )


def test_methods() -> None:
    """With another method the model's own rate and momentum do not apply, and its weight decay and schedule do."""
    default = SolverConf(learning_rate=0.5, momentum=0.9, weight_decay=0.1, policy="exp", gamma=0.5)

    def solver(arguments: str) -> SolverConf:
        return solver_conf(options_of(arguments, default), default, epochs=7)

    assert solver("") == solver("--method sgd") == default
    expected = SolverConf(method="adam", weight_decay=0.1, policy="exp", gamma=0.5)
    assert solver("--method adam") == expected
    assert expected.learning_rate == 0.001
    options = "--method rmsprop --momentum 0.5 --rho 0.9 --epsilon 0.01 --learning-rate 0.02 --weight-decay 0"
    assert solver(options) == SolverConf(
        method="rmsprop", momentum=0.5, rho=0.9, epsilon=0.01, learning_rate=0.02, policy="exp", gamma=0.5
    )
    with pytest.raises(
        ConfigurationError, match=r"^--momentum does nothing with --method adam\. Received: --momentum 0"
    ):
        solver("--method adam --momentum 0.5")
    with pytest.raises(ConfigurationError, match=r"^--beta1 does nothing with --method sgd"):
        solver("--beta1 0.5")


def options_of(arguments: str, default: SolverConf) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_solver(parser.add_argument_group(), default)
    parser.add_argument("--alpha-steps")
    return parser.parse_args(arguments.split())


def test_the_help_says_for_which_method_a_default_is() -> None:
    parser = argparse.ArgumentParser()
    add_solver(parser.add_argument_group(), SolverConf(learning_rate=0.5, momentum=0.9))
    text = " ".join(parser.format_help().split())
    assert "(default: 0.5 with sgd, else 0.01, or 0.001 with adam, adamw and rmsprop)" in text
    assert "(default: 0.9 with sgd, else 0)" in text


@pytest.mark.parametrize(
    ("solver", "text"),
    [
        (
            SolverConf(method="adam"),
            "adam, learning rate 0.001 (fixed), beta1 0.9, beta2 0.999, epsilon 1e-08, weight decay 0",
        ),
        (
            SolverConf(method="rmsprop", momentum=0.5),
            "rmsprop, learning rate 0.001 (fixed), momentum 0.5, rho 0.99, epsilon 1e-08, weight decay 0",
        ),
        (SolverConf(), "learning rate 0.01 (fixed), momentum 0, weight decay 0"),
        (
            SolverConf(policy="inv"),
            "learning rate 0.01 (inv gamma 0.1 power 0.75 in tasks), momentum 0, weight decay 0",
        ),
        (
            SolverConf(policy="lsr", warmup_steps=2, step_values=(5, 6), momentum=0.9),
            "learning rate 0.01 (lsr gamma 0.1 at 5, 6 warm-up 2 in tasks), momentum 0.9, weight decay 0",
        ),
        (
            SolverConf(policy="clr", step_size=3, maximum_learning_rate=0.5, momentum=0.9, weight_decay=0.1),
            "learning rate 0.01 (clr to 0.5 and back, 3 each in tasks), momentum 0.9, weight decay 0.1",
        ),
        (
            SolverConf(
                policy="clr", step_size=3, maximum_learning_rate=0.5, super_convergence=True, annihilation_steps=1
            ),
            "learning rate 0.01 (clr to 0.5 and back, 3 each, then to 1e-06 in 1, in tasks), momentum 0, "
            "weight decay 0",
        ),
        (
            SolverConf(policy="cosine", decay_steps=40, warmup_steps=2, learning_rate_step_unit="epochs"),
            "learning rate 0.01 (cosine to 0 within 40 warm-up 2 in epochs), momentum 0, weight decay 0",
        ),
    ],
)
def test_a_solver_in_words(solver: SolverConf, text: str) -> None:
    assert solver_text(solver) == text


@pytest.mark.parametrize(
    ("arguments", "policy", "gamma"),
    [
        ("", "inv", 0.003),
        ("--gamma 0.5", "inv", 0.5),
        ("--learning-rate-policy exp", "exp", SolverConf().gamma),
        ("--learning-rate-policy fixed", "fixed", SolverConf().gamma),
        ("--power 0", "inv", SolverConf().gamma),  # beside which gamma does nothing, and nobody has asked for it
        ("--learning-rate-step-unit epochs", "inv", SolverConf().gamma),  # the default is one for tasks
    ],
)
def test_a_models_own_policy(arguments: str, policy: str, gamma: float) -> None:
    solver = SolverConf(learning_rate=0.25, policy="inv", gamma=0.003)
    defaults = Defaults(epochs={"digits": 7}, batch_size=9, solver=solver)
    parser, _ = new_parser("example", "Trains an example.", defaults)
    solver = configurations(parser.parse_args(arguments.split()), defaults).solver
    assert (solver.policy, solver.gamma) == (policy, gamma)
    assert "(default: 0.003 with inv in tasks, else 0.1)" in " ".join(parser.format_help().split())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", SolverConf(policy="multistep", gamma=0.5, step_values=(3, 5), learning_rate_step_unit="epochs")),
        (
            "--gamma 0.2 --step-values 4",
            SolverConf(policy="multistep", gamma=0.2, step_values=(4,), learning_rate_step_unit="epochs"),
        ),
        ("--learning-rate-step-unit tasks --step-values 9", SolverConf(policy="multistep", step_values=(9,))),
        ("--learning-rate-policy fixed", SolverConf()),
        ("--learning-rate-policy step --step-size 7", SolverConf(policy="step", step_size=7)),
    ],
)
def test_a_models_own_steps(arguments: str, expected: SolverConf) -> None:
    solver = SolverConf(policy="multistep", gamma=0.5, step_values=(3, 5), learning_rate_step_unit="epochs")
    defaults = Defaults(epochs={"digits": 7}, batch_size=9, solver=solver)
    assert confs(arguments, defaults).solver == expected
    text = " ".join(new_parser("example", "Trains an example.", defaults)[0].format_help().split())
    for part in (
        "increasing (default: 3,5)",
        "(default: epochs with multistep, epochs with cosine and linear, else tasks)",
        "(default: 0.5 with multistep in epochs, else 0.1)",
    ):
        assert part in text


IDLE = {
    "gamma": "0.1",
    "power": "0.75",
    "step_size": "3",
    "step_values": "3,4",
    "maximum_learning_rate": "0.5",
    "minimum_momentum": "0.1",
    "super_convergence": "",
    "annihilation_steps": "2",
    "decay_steps": "4",
    "final_learning_rate": "0.001",
    "learning_rate_step_unit": "tasks",
    "momentum_method": "polyak",
    "regularisation": "l2",
    "beta1": "0.9",
    "beta2": "0.999",
    "rho": "0.99",
    "epsilon": "1e-08",
}
"""A value for every option that may do nothing; the default's, where it can be said."""


@pytest.mark.parametrize("policy", LEARNING_RATE_POLICIES)
def test_whatever_does_nothing_is_refused_whatever_its_value(policy: str) -> None:
    values = {**vars(SolverConf()), "policy": policy}
    assert idle_fields(values).keys() <= IDLE.keys()
    for name in idle_fields(values):
        option = f"--{name.replace('_', '-')}"
        arguments = f"--learning-rate-policy {policy} --momentum 0 {option} {IDLE[name]}".strip()
        with pytest.raises(ConfigurationError) as caught:
            confs(arguments)
        assert str(caught.value).startswith(f"{option} does nothing with")
        assert str(caught.value).endswith(f" Received: {option} {IDLE[name]}".rstrip())
