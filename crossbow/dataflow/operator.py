"""An operator: a named kernel (configuration and mathematics). All nodes with the same operator share its variables."""

from __future__ import annotations

import itertools

from crossbow.ops.kernel import Gradient, Kernel
from crossbow.types import DataError

_numbers = itertools.count()


class Operator:
    """`Operator(name, kernel)`, or `Operator(kernel)` with the automatic name Op-<number>.

    Nodes with the same operator share its variables. A gradient operator that the user connects needs its peer:
    `Operator("conv1Gradient", ConvGradient()).set_peer(conv1)`.
    """

    def __init__(self, name: str | Kernel | Gradient, kernel: Kernel | Gradient | None = None) -> None:
        if kernel is None:
            name, kernel = f"Op-{next(_numbers)}", name  # type: ignore[assignment]
        if not isinstance(name, str) or not name:
            raise TypeError(f"an operator's name must be a non-empty string. Received: {name!r}")
        try:
            name.encode()
        except UnicodeEncodeError as error:  # a lone surrogate, which cannot be written to a file
            raise DataError(f"an operator's name must be a text in UTF-8. Received: {name!r}") from error
        if not isinstance(kernel, Kernel | Gradient):
            raise TypeError(
                f"operator {name!r}: expected a kernel, as Conv(number_of_outputs=32). Received: {kernel!r}"
            )
        self.name = name
        self.kernel = kernel
        self.peer: Operator | None = None
        self.numbered = False
        """Whether `chain` generated the name, such as conv1, and may change its number."""

    @property
    def is_gradient(self) -> bool:
        return isinstance(self.kernel, Gradient)

    def set_peer(self, peer: Operator) -> Operator:
        """Set the operator whose gradient this operator computes."""
        if not isinstance(self.kernel, Gradient):
            raise TypeError(f"operator {self.name!r}: only a gradient operator has a peer. Received: {self.kernel!r}")
        if not isinstance(peer, Operator) or not isinstance(peer.kernel, Kernel):
            raise TypeError(f"operator {self.name!r}: the peer must be a forward operator. Received: {peer!r}")
        expected = peer.kernel.gradient(self.kernel.input)
        if type(expected) is not type(self.kernel):
            wanted = "none" if expected is None else type(expected).__name__
            raise TypeError(
                f"operator {self.name!r}: the gradient of {peer.name!r} ({type(peer.kernel).__name__}) is {wanted}. "
                f"Received: {type(self.kernel).__name__}"
            )
        self.peer = peer
        return self

    def __repr__(self) -> str:
        return f"Operator({self.name!r}, {self.kernel!r})"
