"""What is wrong with jobs that somebody submits, before anything is asked of a disk."""

import os

from myna.control.contract import JobSpec
from myna.daemon.jobs.parameters import problems_of


def problems_in(specs: tuple[JobSpec, ...]) -> list[str]:
    """Everything that is wrong, each naming its field; of thousands the first hundred or so."""
    problems: list[str] = []
    for at, spec in enumerate(specs):
        where = f"jobs[{at}]"
        if spec.kind not in ("convert", "preview"):
            problems.append(f"{where}.kind: {spec.kind!r} is not in this version; convert and preview are")
        for name, path in (("input", spec.input), ("output", spec.output)):
            if path is None:
                problems.append(f"{where}.{name}: a path is needed")
            elif "\0" in path:
                problems.append(f"{where}.{name}: a path can't hold a NUL character")
            elif not os.path.isabs(path):
                problems.append(f"{where}.{name}: a full path is needed: the daemon is in another folder")
        problems += [f"{where}.{problem}" for problem in problems_of(spec.parameters)]
        if len(problems) > 100:
            break
    return problems
