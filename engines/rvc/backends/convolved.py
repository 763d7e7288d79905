"""Write the matrix products of an OpenVINO model as convolutions that are one sample wide.

oneDNN multiplies the rows of a sequence by a matrix in blocks of few rows, and reads the whole matrix for each of
them; over 140 frames that wait is most of the time in bf16. Its convolutions of width one go over the same numbers in
a better order: the content encoder takes 80 CPU-ms instead of 107 for 2.8 s, at the same distance from torch. Without
tiles, where the products themselves take longest, products stay as quick (bf16 in vectors) or quicker (AVX2 in fp32:
291 against 374).
"""

from typing import Any

import numpy as np


def convolved(model: Any) -> int:
    """Turn every product of (1, frames, width) and a constant matrix of `model` into a convolution, in place.

    Frames and channels are exchanged before and after it; convolutions keep channels together in memory, so that
    nothing is moved.

    Returns:
        How many were turned.
    """
    from openvino import opset13 as ops

    def constant(*values: int) -> Any:
        return ops.constant(np.array(values, np.int64))

    turned = 0
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul" or not _is_linear(node):
            continue
        rows, matrix = node.input_value(0), node.input_value(1)
        out, inner = matrix.get_shape()
        image = ops.unsqueeze(ops.transpose(rows, constant(0, 2, 1)), constant(2))
        kernel = ops.reshape(matrix, constant(out, inner, 1, 1), special_zero=False)
        made = ops.convolution(image, kernel, [1, 1], [0, 0], [0, 0], [1, 1])
        back = ops.transpose(ops.squeeze(made, constant(2)), constant(0, 2, 1))
        back.set_friendly_name(node.get_friendly_name())
        for reader in node.output(0).get_target_inputs():
            reader.replace_source_output(back.output(0))
        turned += 1
    model.validate_nodes_and_infer_types()
    return turned


def _is_linear(node: Any) -> bool:
    """Whether a product is of (batch, frames, inner) and a constant (out, inner)."""
    rows, matrix = node.input_value(0), node.input_value(1)
    flags = node.get_attributes()
    return (
        matrix.get_node().get_type_name() == "Constant"
        and len(matrix.get_shape()) == 2
        and rows.get_partial_shape().rank.get_length() == 3
        and not flags["transpose_a"]
        and bool(flags["transpose_b"])
    )
