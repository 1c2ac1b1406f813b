"""Programs in processes of their own that begin where imports end: ten times faster than from a shell."""

import multiprocessing
import os
import runpy
import sys
from collections import namedtuple
from pathlib import Path
from tempfile import TemporaryDirectory

PRELOADED = ["torch._dynamo", "test_operations"]  # the first is what an optimizer imports when it is made
Result = namedtuple("Result", "returncode stdout stderr")


def context():
    """What makes such processes; in them, functions are looked up in modules, which they import then."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(PRELOADED)
    return found


def execute(path, flags, cwd, folder):
    """The child: as `python PATH FLAGS` in that folder, and what it prints in two files."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{folder}/{name}", os.O_CREAT | os.O_WRONLY), number)
    os.chdir(cwd)
    sys.argv = [path, *flags]
    sys.path.insert(0, os.path.dirname(path))
    runpy.run_path(path, run_name="__main__")


def run(path, *flags, cwd="."):
    """As subprocess.run() of a Python program that is given by its path."""
    with TemporaryDirectory() as folder:
        process = context().Process(target=execute, args=(str(path), [*map(str, flags)], str(cwd), folder))
        process.start()
        process.join(300)
        process.kill()  # if it hangs
        printed = [Path(folder, name).read_text() for name in ("stdout", "stderr")]
    return Result(process.exitcode, *printed)
