"""The registry of our own CUDA kernels."""

from __future__ import annotations

import crossbow.kernels.requests
from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.requests import Request, Signal, Wait


def test_it_has_all_kernels_but_convolutions_and_those_of_the_host() -> None:
    """Loading the library has registered them; kernels of GPUs support empty tensors and any storage themselves."""
    assert Cuda().rooms.registries[-1] is CUDA
    everything = {
        found
        for name in crossbow.kernels.requests.__all__
        if isinstance(found := getattr(crossbow.kernels.requests, name), type) and issubclass(found, Request)
    }
    left = {request for request in everything if request is not Request and not CUDA.candidates(request)}
    assert {request.__name__ for request in left - {Wait, Signal}} == {
        "ConvolutionForward",
        "ConvolutionBackwardData",
        "ConvolutionBackwardWeights",
    }
    assert (CUDA.takes_empty, CUDA.plain_variables) == (True, False)
