"""Lists of what is known not to be right, which may only shrink.

One case a line: its name in fields, then ``#`` and the reason. A failure that is not listed fails the run, and so does a listed case
that passes: its line is to be deleted (``--shrink`` does).
"""

import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent / "known"


def read(path):
    """Cases and reasons of a file; none without the file."""
    path = pathlib.Path(path)
    cases = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        name, _, reason = line.partition("#")
        if name.strip():
            cases[" ".join(name.split())] = reason.strip()
    return cases


def line_of(case, reason):
    """A line of the list."""
    return f"{case} # {' '.join(reason.split())[:160]}"


def shrink(path, passed):
    """Deletes the lines of cases that pass."""
    path = pathlib.Path(path)
    kept = [line for line in path.read_text().splitlines() if " ".join(line.partition("#")[0].split()) not in passed]
    path.write_text("\n".join(kept) + "\n")


def judge(path, failed, passed, whole=True):
    """Compares a run with the list and prints what does not agree: 0 where all does, else 1.

    ``failed``: cases with reasons; ``passed``: cases; ``whole``: whether all of each case was run, so that a pass is one.
    """
    listed = read(path)
    new = {case: reason for case, reason in failed.items() if case not in listed}
    stale = sorted(case for case in passed if case in listed) if whole else []
    if new:
        print(f"{len(new)} cases fail that are not in {path.name}:")
        print("\n".join(line_of(case, reason) for case, reason in sorted(new.items())))
    if stale:
        print(f"{len(stale)} cases of {path.name} pass; delete their lines (--shrink):")
        print("\n".join(stale))
    return 1 if new or stale else 0
