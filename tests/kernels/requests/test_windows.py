"""What requests to kernel libraries say by themselves."""

from __future__ import annotations

from crossbow.kernels.requests import WindowGeometry


def test_windows_have_stride_and_dilation_one_and_no_padding_unless_said() -> None:
    geometry = WindowGeometry(kernel=(3, 2))
    assert (geometry.stride, geometry.padding, geometry.dilation) == ((1, 1), ((0, 0), (0, 0)), (1, 1))
