"""One name for each tensor, whichever way its weight norm was written down."""

from collections.abc import Iterable

_NEW = (".parametrizations.weight.original0", ".parametrizations.weight.original1")
_OLD = (".weight_g", ".weight_v")


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Map either style of weight-norm names, and plain ones, to the one style `weight_g`/`weight_v`."""
    renamed = {}
    for name in names:
        new = name
        for ours, theirs in zip(_OLD, _NEW, strict=True):
            if name.endswith(theirs):
                new = name.removesuffix(theirs) + ours
        renamed[name] = new
    return renamed
