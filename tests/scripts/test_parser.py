from __future__ import annotations

import argparse
import dataclasses
import doctest
import re
from pathlib import Path

import pytest

from crossbow import SMA, SSGD, ConfigurationError, SolverConf
from crossbow.scripts import rule_options as rule_options_module
from crossbow.scripts import setting_options as setting_options_module
from crossbow.scripts.data_sources import KNOWN, DataSource, Known
from crossbow.scripts.parser import Configurations, Defaults, configurations, new_parser
from crossbow.scripts.rule_options import rule_settings, rule_text
from crossbow.scripts.solver_options import solver_text
from crossbow.solver.configuration import LEARNING_RATE_POLICIES, idle_fields
from crossbow.synch import (
    EASGD,
    RULES,
    SSP,
    AsynchronousSGD,
    Default,
    Gossip,
    Grouping,
    Hogwild,
    ModelAveraging,
    PartiallySynchronous,
    PolyakRuppert,
    Rule,
    RuleSequence,
    SynchronousEASGD,
    WeedOut,
)
from tests.data.test_cifar import COUNT
from tests.data.test_cifar100 import binaries as binaries_100
from tests.data.test_mnist import small_files, write

SHARED = Path(__file__).parents[3] / "shared" / "data"
DEFAULTS = Defaults(epochs={"digits": 7, "mnist": 3}, batch_size=9, solver=SolverConf(learning_rate=0.25, momentum=0.5))

REQUIRED = {
    "--dataset",
    "--data-directory",
    "--output-directory",
    "--epochs",
    "--batch-size",
    "--learners",
    "--devices",
    "--rule",
    "--alpha",
    "--alpha-steps",
    "--tau",
    "--learning-rate",
    "--learning-rate-policy",
    "--momentum",
    "--weight-decay",
    "--seed",
    "--target-accuracy",
    "--time-limit",
}
"""What every model script understands; users rely on it."""


def parser() -> argparse.ArgumentParser:
    return new_parser("example", "Trains an example.", DEFAULTS)[0]


def confs(arguments: str = "", defaults: Defaults = DEFAULTS) -> Configurations:
    made = new_parser("example", "Trains an example.", defaults)[0]
    return configurations(made.parse_args(arguments.split()), defaults)


def test_defaults() -> None:
    found = confs()
    assert found.model.batch_size == 9
    assert found.model.rule == SMA()
    assert found.solver == SolverConf(learning_rate=0.25, momentum=0.5)
    assert found.system.devices == ("cpu",)
    assert found.system.learners_per_device == "auto"
    assert found.system.seed == 0
    assert not found.system.check_numerics
    assert found.system.winograd
    options = parser().parse_args([])
    assert options.dataset == "digits"
    assert str(options.output_directory) == "output/example"


def test_every_option_arrives() -> None:
    found = confs(
        "--batch-size 4 --learners 3 --devices cpu:0/2,cpu:1/2 --threads-per-learner 2 --rule sma --alpha 0.25 "
        "--tau 2 --base-momentum 0.5 --learning-rate 0.5 --learning-rate-policy multistep --gamma 0.2 "
        "--step-values 2,5 --learning-rate-step-unit epochs --warmup-steps 1 --momentum 0.75 "
        "--weight-decay 0.001 --seed 7 --kernels reference --precision float64 "
        "--check-numerics --no-winograd"
    )
    assert found.model.batch_size == 4
    assert found.model.rule == SMA(alpha=0.25, tau=2, base_momentum=0.5)
    assert found.system.learners_per_device == 3
    assert found.system.devices == ("cpu:0/2", "cpu:1/2")
    assert found.system.threads_per_learner == 2
    assert found.system.kernels == "reference"
    assert found.system.precision == "float64"
    assert found.system.check_numerics
    assert not found.system.winograd
    assert found.system.seed == 7
    assert found.solver == SolverConf(
        learning_rate=0.5,
        policy="multistep",
        gamma=0.2,
        step_values=(2, 5),
        learning_rate_step_unit="epochs",
        warmup_steps=1,
        momentum=0.75,
        weight_decay=0.001,
    )


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
            "--warmup-steps 2 --learning-rate-step-unit epochs",
            SolverConf(warmup_steps=2, learning_rate_step_unit="epochs"),
        ),
    ],
)
def test_policies(arguments: str, expected: SolverConf) -> None:
    assert confs(f"--learning-rate 0.01 --momentum 0 {arguments}").solver == expected


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


@pytest.mark.parametrize(
    ("solver", "text"),
    [
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
        "(default: epochs with multistep, else tasks)",
        "(default: 0.5 with multistep in epochs, else 0.1)",
    ):
        assert part in text


PICTURES = Defaults(
    epochs={"cifar10": 7, "mnist": 5, "synthetic": 2}, batch_size=9, solver=SolverConf(learning_rate=0.25)
)


def test_the_first_data_set_is_the_default() -> None:
    assert confs(defaults=PICTURES).data == DataSource("cifar10", None, (3, 32, 32), 10, 2048, 512)
    assert confs().data.name == "digits"
    assert confs("--dataset mnist").data.image_shape == (1, 28, 28)
    found = confs("--data-directory there", PICTURES).data
    assert found.directory == Path("there")
    text = " ".join(new_parser("example", "Trains an example.", PICTURES)[0].format_help().split())
    for part in (
        "Trains an example. Without options: CIFAR-10, SMA, one learner per core.",
        "--dataset {cifar10,mnist,synthetic}",
        "cifar10: 60,000 colour images, downloaded once; mnist: 70,000, downloaded once; synthetic: random images",
        "files lie: CIFAR-10: its binaries, its Python archive, or an .npz of JPEG files; or MNIST's four IDX files",
        "synthetic: channels, height and width of an image (default: 3,32,32)",
        "synthetic: number of training examples (default: 2,048)",
        "(default: 7 with cifar10, 5 with mnist, 2 with synthetic)",
    ):
        assert part in text


def test_a_synthetic_data_set_of_any_shape() -> None:
    wanted = dataclasses.replace(PICTURES, image_shape=(1, 4, 4), number_of_classes=7)
    assert confs("--dataset synthetic", wanted).data == DataSource("synthetic", None, (1, 4, 4), 7, 2048, 512)
    options = "--dataset synthetic --image-shape 3,9,8 --classes 20 --training-examples 60 --test-examples 40"
    source = confs(options, wanted).data
    assert source == DataSource("synthetic", None, (3, 9, 8), 20, 60, 40)
    data = source.load()
    assert data.image_shape == (3, 9, 8)
    assert data.number_of_classes == 20
    assert data.check is not None
    assert (len(data.train), len(data.check)) == (60, 40)


@pytest.mark.parametrize(("name", "known"), KNOWN.items())
def test_what_is_known_of_a_data_set_is_so(
    name: str, known: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For those that are there; a directory has them all."""
    if name == "mnist" and not (SHARED / "mnist").is_dir():
        pytest.skip(f"MNIST's files are not in {SHARED}")
    if name == "cifar10" and not (SHARED / "cifar10-jpeg.npz").is_file():
        pytest.skip(f"CIFAR-10's images are not in {SHARED}")
    if name == "fashion_mnist":
        write(tmp_path, small_files())
    if name == "cifar100":
        monkeypatch.setattr("crossbow.data.cifar.IMAGES", COUNT)
        write(tmp_path, binaries_100())
    directories = {"mnist": SHARED / "mnist", "cifar10": SHARED, "fashion_mnist": tmp_path, "cifar100": tmp_path}
    directory = directories.get(name)
    shape = known.image_shape or (2, 5, 5)
    data = DataSource(name, directory, shape, known.number_of_classes, 30, 20).load()
    assert data.image_shape == shape
    assert data.number_of_classes == known.number_of_classes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--classes 7", "--classes does nothing with --dataset cifar10. Received: --classes 7"),
        ("--dataset mnist --image-shape 1,28,28", "--image-shape does nothing with --dataset mnist"),
        ("--training-examples 10", "--training-examples does nothing"),
        ("--image-shape 3,4,4", "--image-shape does nothing with --dataset cifar10. Received: --image-shape 3,4,4"),
        ("--dataset synthetic --data-directory x", "--data-directory belongs to --dataset cifar10 or mnist; synthetic"),
    ],
)
def test_options_of_another_data_set(arguments: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        confs(arguments, PICTURES)


@pytest.mark.parametrize("shape", ["3", "3,32", "3,32,0", "3,-1,4", "3,a,4", "1,2,3,4", "", "3,²,4"])
def test_a_bad_image_shape(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        confs(f"--image-shape={shape}", PICTURES)
    assert f"expected three integers ≥ 1, as 3,224,224. Received: {shape!r}" in capsys.readouterr().err


IDLE = {
    "gamma": "0.1",
    "power": "0.75",
    "step_size": "3",
    "step_values": "3,4",
    "maximum_learning_rate": "0.5",
    "minimum_momentum": "0.1",
    "super_convergence": "",
    "annihilation_steps": "2",
    "final_learning_rate": "0.001",
    "learning_rate_step_unit": "tasks",
    "momentum_method": "polyak",
    "regularisation": "l2",
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


def test_an_option_as_it_is_typed() -> None:
    for module in (setting_options_module, rule_options_module):
        assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("ssgd", SSGD()),
        ("synchronous-easgd --alpha 0.25 --tau 4", SynchronousEASGD(alpha=0.25, tau=4)),
        ("model-averaging --tau 3", ModelAveraging(tau=3)),
        ("polyak-ruppert --alpha 0.5", PolyakRuppert(alpha=0.5)),
        ("sma --alpha-steps 1:0.1 --learning-rate-step-unit epochs", SMA(alpha_steps=((1, 0.1),))),
        ("sma --alpha-steps 30:0.1,60.5:0.05", SMA(alpha_steps=((30, 0.1), (60.5, 0.05)))),
        ("default --tau 2", Default(tau=2)),
        ("hogwild", Hogwild()),
        ("async", AsynchronousSGD()),
        ("async --weight 1/4 --tau 2", AsynchronousSGD(weight=0.25, tau=2)),
        ("async --sends gradient --weight 1/staleness", AsynchronousSGD(weight="1/staleness", sends="gradient")),
        ("ssp --bound 3 --weight 0.5", SSP(bound=3, weight=0.5)),
        ("partially-synchronous --max-advance 4", PartiallySynchronous(max_advance=4)),
        ("weed-out --window 8", WeedOut(window=8)),
        ("easgd --alpha 0.1 --tau 10", EASGD(alpha=0.1, tau=10)),
        ("gossip --probability 0.5", Gossip(probability=0.5)),
        ("grouping --groups 0,2/1", Grouping(((0, 2), (1,)))),
        ("grouping --groups 2", Grouping(2)),
        ("grouping", Grouping()),
        ("async:100,ssgd:200", RuleSequence(((AsynchronousSGD(), 100), (SSGD(), 200)))),
        ("sma:5,easgd:1 --alpha 0.25", RuleSequence(((SMA(alpha=0.25), 5), (EASGD(alpha=0.25), 1)))),
        ("ssgd:7", RuleSequence(((SSGD(), 7),))),
    ],
)
def test_rules(arguments: str, expected: Rule | RuleSequence) -> None:
    found = confs(f"--rule {arguments}").model.rule
    assert found == expected
    assert rule_text(expected, 3).startswith(re.split("[ :]", arguments)[0])


def test_spaces_between_rules_do_not_matter() -> None:
    assert parser().parse_args(["--rule", "async:100, ssgd:200"]).rule == "async:100,ssgd:200"


def test_the_alpha_in_words_is_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "alpha 0.25" in rule_text(SMA(alpha_steps=((30, 0.1),)), 4)  # that with which it begins
    monkeypatch.setattr(SMA, "strength", lambda rule, pace, learners: learners / 8)
    assert "alpha 0.375" in rule_text(SMA(), 3)


def test_every_rule_and_every_parameter_is_an_option() -> None:
    options = vars(parser().parse_args([]))
    assert set(rule_settings()) <= set(options)
    help_text = parser().format_help()
    assert all(name in help_text for name in RULES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--alpha 0", "SMA: alpha must be a finite number > 0 and ≤ 1"),
        ("--alpha 1.5", "Received: alpha=1.5"),
        ("--alpha-steps 30:2", "SMA: alpha_steps must be pairs of a time > 0 and an alpha in (0, 1]"),
        ("--base-momentum 1", "base_momentum must be a finite number ≥ 0 and < 1"),
        ("--momentum 1", "SolverConf: momentum must be a finite number ≥ 0 and < 1. Received: momentum=1.0"),
        ("--learning-rate 0", "learning_rate must be a finite number > 0"),
        ("--weight-decay -1", "weight_decay"),
        ("--learning-rate-policy step", "step_size"),
        ("--learning-rate-policy multistep", "step_values"),
        ("--learning-rate-policy multistep --step-values 5,2", "strictly increasing"),
        # Every option that is accepted does something, or says what is so without it.
        ("--no-restart", "--no-restart does nothing with --learning-rate-policy fixed. Received: --no-restart"),
        ("--rule ssgd --alpha 0.5", "--alpha does nothing with --rule ssgd. Received: --alpha 0.5"),
        ("--rule ssgd --tau 2", "--tau does nothing"),
        ("--rule ssgd --alpha-steps 30:0.1,60:0.05", "Received: --alpha-steps 30:0.1,60:0.05. Options of ssgd"),
        ("--rule ssgd --groups 0,1/2", "Received: --groups 0,1/2. Options of ssgd"),
        (
            "--rule ssp --alpha 1",
            "--alpha does nothing with --rule ssp. Received: --alpha 1. Options of ssp: --bound, ",
        ),
        ("--rule grouping --groups 0,2", "Grouping: groups must be lists of learners from 0 on"),
        ("--rule async --weight 3", "AsynchronousSGD: weight must be a number in (0, 1]"),
        ("--gamma 0.5", "--gamma does nothing with --learning-rate-policy fixed. Received: --gamma 0.5"),
        ("--gamma 0.1", "--gamma does nothing with --learning-rate-policy fixed. Received: --gamma 0.1"),
        ("--learning-rate-policy exp --power 2", "--power does nothing with --learning-rate-policy exp"),
        ("--power 0.75", "--power does nothing with --learning-rate-policy fixed. Received: --power 0.75"),
        (
            "--learning-rate-policy inv --gamma 0 --power 0.75",
            "--power does nothing with --learning-rate-policy inv and --gamma 0. Received: --power 0.75",
        ),
        (
            "--learning-rate-policy inv --power 0 --gamma 0.5",
            "--gamma does nothing with --learning-rate-policy inv and --power 0. Received: --gamma 0.5",
        ),
        ("--learning-rate-policy inv --step-size 2", "--step-size does nothing with --learning-rate-policy inv"),
        ("--step-values 3,5", "with --learning-rate-policy fixed. Received: --step-values 3,5"),
        (
            "--learning-rate-step-unit epochs",
            "--learning-rate-step-unit does nothing with --learning-rate-policy fixed and --warmup-steps 0. "
            "Received: --learning-rate-step-unit epochs",
        ),
        ("--learning-rate-step-unit tasks", "--learning-rate-step-unit does nothing with --learning-rate-policy fixed"),
        (
            "--learning-rate-policy inv --gamma 0 --learning-rate-step-unit epochs",
            "does nothing with --learning-rate-policy inv and --gamma 0 and --warmup-steps 0",
        ),
        ("--maximum-learning-rate 1", "--maximum-learning-rate does nothing with --learning-rate-policy fixed"),
        ("--minimum-momentum 0.1", "--minimum-momentum does nothing with --learning-rate-policy fixed"),
        ("--super-convergence", "with --learning-rate-policy fixed. Received: --super-convergence"),
        ("--annihilation-steps 3", "--annihilation-steps does nothing without --super-convergence. Received:"),
        ("--final-learning-rate 0", "--final-learning-rate does nothing without --super-convergence"),
        ("--momentum 0 --momentum-method nesterov", "--momentum-method does nothing with --momentum 0. Received:"),
        ("--momentum 0 --momentum-method polyak", "--momentum-method does nothing with --momentum 0. Received:"),
        ("--regularisation l1", "--regularisation does nothing with --weight-decay 0. Received: --regularisation l1"),
        ("--regularisation l2", "--regularisation does nothing with --weight-decay 0. Received: --regularisation l2"),
        ("--clip-gradient-norm 0", "SolverConf: clip_gradient_norm must be a finite number > 0 or None"),
        ("--learning-rate-policy lsr --step-values 3", "warmup_steps must be an integer ≥ 1 with policy='lsr'"),
        ("--learning-rate-policy clr --step-size 3", "maximum_learning_rate must be > learning_rate=0.25"),
        (
            "--learning-rate-policy clr --step-size 3 --maximum-learning-rate 1 --super-convergence",
            "annihilation_steps must be an integer ≥ 1 with super_convergence=True",
        ),
        ("--data-directory somewhere", "--data-directory belongs to --dataset mnist"),
    ],
)
def test_bad_configurations(arguments: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        confs(arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--dataset cifar", "argument --dataset: invalid choice: 'cifar'"),
        ("--rule downpour", "argument --rule: invalid choice: 'downpour' (choose from sma, "),
        ("--rule ssgd:5,downpour:3", "argument --rule: invalid choice: 'downpour'"),
        ("--rule ssgd,sma", "expected numbers of merges ≥ 1, as async:100,ssgd:200. Received: 'ssgd,sma'"),
        ("--rule ssgd:0", "expected numbers of merges ≥ 1"),
        ("--alpha-steps 30", "expected times and numbers, as 30:0.1,60:0.05. Received: '30'"),
        ("--alpha-steps 30:x", "expected times and numbers, as 30:0.1,60:0.05. Received: '30:x'"),
        ("--rule ssgd:x", "expected numbers of merges ≥ 1"),
        ("--learners 0", "argument --learners: expected an integer ≥ 1 or 'auto'. Received: '0'"),
        ("--learners many", "expected an integer ≥ 1 or 'auto'. Received: 'many'"),
        ("--epochs 0", "argument --epochs: expected an integer ≥ 1. Received: '0'"),
        ("--epochs 1.5", "expected an integer ≥ 1. Received: '1.5'"),
        ("--batch-size x", "argument --batch-size: expected an integer ≥ 1. Received: 'x'"),
        ("--target-accuracy 98", "argument --target-accuracy: expected a number ≥ 0 and ≤ 1. Received: '98'"),
        ("--time-limit 0", "argument --time-limit: expected a number > 0. Received: '0'"),
        ("--learning-rate nan", "argument --learning-rate: expected a number. Received: 'nan'"),
        ("--step-values 1,x", "argument --step-values: expected integers, separated by commas. Received: '1,x'"),
        ("--seed -1", "argument --seed: expected an integer ≥ 0"),
        ("--output-directory=~nobody-has-this-name/x", "expected a path whose home directory exists. Received: '~nob"),
        ("--learn 2", "unrecognized arguments: --learn 2. Did you mean --learners? Options of sma: --alpha, --tau, "),
        ("--rule ssp --staleness 3", "unrecognized arguments: --staleness 3. Options of ssp: --bound, --weight"),
        (
            "--rule async:2,ssgd:2 x",
            "unrecognized arguments: x. Options of async: --weight, --sends, --tau; Options of",
        ),
    ],
)
def test_bad_values(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parser().parse_args(arguments.split())
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert message in lines[-1]
    assert len(lines) == 2


def test_a_home_directory_that_the_shell_leaves_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert parser().parse_args(["--output-directory=~/runs/1"]).output_directory == tmp_path / "runs" / "1"


def test_help_has_units_and_defaults() -> None:
    text = " ".join(parser().format_help().split())
    for part in (
        "(default: 7 with digits, 3 with mnist)",
        "(default: 9)",
        "(default: 0.25)",
        "SECONDS",
        "a fraction in [0, 1]",
        "(default: auto)",
        "(default: output/example)",
    ):
        assert part in text
    actions = {action.option_strings[-1]: action.help or "" for action in parser()._actions}
    del actions["--help"]
    assert actions.keys() >= REQUIRED
    without = {option for option, text in actions.items() if "default:" not in text}
    needed_by_their_policies = {"--step-size", "--step-values", "--maximum-learning-rate", "--annihilation-steps"}
    assert without == needed_by_their_policies
