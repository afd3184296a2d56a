"""A character model: `python -m models.transformer` trains it; `--help` lists the options.

A transformer that predicts each character of a text from those before: A. Vaswani et al., Attention Is All You Need
(arXiv:1706.03762, 2017), without the encoder, and with normalisation before each part, as in A. Radford et al.,
Language Models are Unsupervised Multitask Learners (GPT-2, 2019). By default it has two layers of width 128 with four
heads, and reads 64 characters; 437,856 parameters, of which the 8,192 factors of `positions` stay 1.

The text is that of `help()`, which is part of Python; `crossbow.data.characters` makes a data set of another text.
`generate` continues a text with a trained model.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow import Dataflow, Dataset, Gaussian, Phase, SolverConf, SubGraph
from crossbow.data import characters
from crossbow.data.text import ALPHABET, encode
from crossbow.ops import Accuracy, Embedding, InnerProduct, LayerNorm, SoftMax, SoftMaxLoss, Transpose
from crossbow.scripts import Defaults, ModelScript
from crossbow.scripts.data_sources import DataSource
from crossbow.scripts.run_texts import count
from crossbow.scripts.values import add_sizes
from crossbow.types import DataError
from models.layers import TRANSFORMER_DEVIATION, add, check_sizes, positions, transformer_block

LENGTH = 64
"""Number of characters that the model reads."""


def transformer(
    number_of_characters: int = len(ALPHABET), *, layers: int = 2, width: int = 128, heads: int = 4
) -> Dataflow:
    """The training dataflow, for sequences of indices (N, T) with labels (N, T), the characters that follow.

    number_of_characters: number of classes of the data set. layers: number of layers, each of which has an attention
    and two inner products. width: number of features of each position. heads: number of heads of each attention, which
    divides the width.

    Loss (in nats) and accuracy are means over all characters. Raises ConfigurationError for sizes that are not integers
    ≥ 1, and if `heads` does not divide `width`.

    >>> [node.operator.name for node in transformer(layers=1).subgraph.nodes][:4]
    ['embedding', 'positions', 'layer1-norm1', 'layer1-qkv']
    """
    check_sizes(layers=layers, width=width, heads=heads)
    weights = Gaussian(std=TRANSFORMER_DEVIATION)
    x = positions(add("embedding", Embedding(number_of_characters, width, weight_initialiser=weights)))
    head = x.previous[0]
    for number in range(1, layers + 1):
        x = transformer_block(f"layer{number}", width, heads, x, causal=True)
    logits = InnerProduct(number_of_outputs=number_of_characters, axis=-1, weight_initialiser=weights)
    x = add("logits", logits, add("norm", LayerNorm(), x))
    softmax = add("softmax", SoftMax(), add("classes-first", Transpose((0, 2, 1)), x))
    add("loss", SoftMaxLoss(normalisation="full"), softmax)
    add("accuracy", Accuracy(), softmax)
    return Dataflow(SubGraph(head)).set_phase(Phase.TRAIN)


def generate(
    predict: Callable[[NDArray[np.int32]], NDArray[Any]],
    prompt: str,
    count: int,
    *,
    length: int = LENGTH,
    temperature: float = 1.0,
    seed: int = 0,
    alphabet: str = ALPHABET,
) -> str:
    """`count` characters that continue the prompt, drawn one by one from the model's probabilities.

    predict: a `Predictor` of the model, or `context.predict`. It returns the probabilities (1, classes, length) for
    indices (1, length).
    prompt: at least one character. The model reads the last `length` characters of prompt and continuation.
    temperature: number > 0. With smaller values, probable characters are chosen more often.
    seed: the same seed gives the same text.

    Raises DataError for invalid values.
    """
    if not prompt:
        raise DataError("prompt: expected at least one character. Received: ''")
    if not temperature > 0:
        raise DataError(f"temperature: expected a number > 0. Received: {temperature!r}")
    generator = np.random.default_rng(seed)
    indices = encode(prompt, alphabet).tolist()
    given = len(indices)
    for _ in range(count):
        read = indices[-length:]
        x = np.zeros((1, length), np.int32)  # the zeros after the text have no effect, because attention is causal
        x[0, : len(read)] = read
        p = np.asarray(predict(x))[0, :, len(read) - 1].astype(np.float64)
        p = np.exp((np.log(np.maximum(p, 1e-30)) - np.log(p.max())) / temperature)
        indices.append(int(generator.choice(len(p), p=p / p.sum())))
    return "".join(alphabet[index] for index in indices[given:])


def _synthetic(options: argparse.Namespace, source: DataSource) -> Dataset:
    """Random sequences of 64 words, which are the same in every run."""
    generator = np.random.default_rng(0)
    words = ["".join(map(chr, generator.integers(97, 123, size))) for size in generator.integers(1, 9, 64)]
    count = LENGTH * (source.training + source.check) + 1
    text = " ".join(words[number] for number in generator.integers(0, len(words), count // 2 + 1))[:count]
    return characters(text, LENGTH, check_fraction=source.check / (source.training + source.check))


def _add_options(group: argparse._ArgumentGroup) -> None:
    add_sizes(
        group,
        ("layers", 2, "number of layers"),
        ("width", 128, "numbers for each character"),
        ("heads", 4, "heads of each attention, which divide the width"),
    )


SCRIPT = ModelScript(
    name="transformer",
    title="Trains a transformer that predicts the next character (Vaswani et al., 2017: arXiv:1706.03762).",
    paper="arXiv:1706.03762",
    build=lambda options: transformer(options.classes, layers=options.layers, width=options.width, heads=options.heads),
    defaults=Defaults(
        epochs={"topics": 5, "text": 5, "synthetic": 3},
        batch_size=32,
        solver=SolverConf(method="adamw", learning_rate=0.001, weight_decay=0.01),
        image_shape=(LENGTH,),
        number_of_classes=len(ALPHABET),
        examples="sequences of characters",
    ),
    add_options=_add_options,
    variant=lambda options: f"{count(options.layers, 'layer')}, width {options.width}",
    synthetic=_synthetic,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
