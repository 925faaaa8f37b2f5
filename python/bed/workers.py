"""Tasks in processes of their own, so that a crash or a hang is a result and not the end.

    tasks ──> pool ──> worker 1..n: prepare(); result = work(task) for one task after the other
                 └──< (task, "ok" | "raised" | "crash" | "timeout", result or text)

A worker that dies or is overdue is replaced; its task is not tried again. A task of many steps calls `alive` after each, and is overdue
when one step is.
"""

import dataclasses
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from multiprocessing.connection import wait


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a task. ``value`` is the result, or a text where there is none."""

    task: object
    status: str
    value: object
    seconds: float


_pool = None


def alive():
    """Says, in a worker, that a step of the task is done: its time begins again."""
    if _pool is not None:
        _pool.send(("alive", None))


def _serve(pipe, log, prepare, work):
    global _pool
    _pool = pipe
    os.setpgid(0, 0)
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    context = prepare() if prepare else None
    pipe.send(("ready", None))
    while True:
        task = pipe.recv()
        if task is None:
            return
        try:
            pipe.send(("ok", work(context, task)))
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error}".strip()
            pipe.send(("raised", f"{text} ({os.path.basename(place.filename)}:{place.lineno})"))


class _Worker:
    def __init__(self, context, prepare, work):
        self.log = tempfile.NamedTemporaryFile()
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.log.name, prepare, work))
        self.process.start()
        theirs.close()
        self.task, self.since, self.began, self.done, self.ready = None, time.monotonic(), 0.0, 0, False

    def give(self, task):
        self.task, self.since = task, time.monotonic()
        self.began = self.since
        self.pipe.send(task)

    def last_lines(self, count=3):
        self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, self.log.tell() - 4000))
        lines = [line for line in self.log.read().decode(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-count:])

    def end(self, kill=False):
        if kill:
            for target in (os.killpg, os.kill):
                try:
                    target(self.process.pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    pass
        else:
            try:
                self.pipe.send(None)
            except OSError:
                pass
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()
        self.log.close()


def run(tasks, work, *, prepare=None, jobs=1, limit=60.0, start_limit=300.0, recycle=1, preload=()):
    """Yields an `Outcome` for each task, in the order in which they end.

    ``work(context, task)`` runs in a worker that has called ``prepare()`` for its context, both functions of a module; ``limit``:
    seconds for a task, or for one of its steps; ``recycle``: tasks for one worker; ``preload``: installed modules that are imported once for all
    workers.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    waiting = list(tasks)[::-1]
    workers = []
    try:
        while waiting or any(worker.task is not None for worker in workers):
            while len(workers) < jobs and waiting and len(workers) < len(waiting) + sum(w.task is not None for w in workers):
                workers.append(_Worker(context, prepare, work))
            now = time.monotonic()
            deadline = min(w.since + (limit if w.task is not None else start_limit) for w in workers)
            waitable = {w.pipe: w for w in workers} | {w.process.sentinel: w for w in workers}
            answered = {waitable[x] for x in wait(list(waitable), timeout=max(0.0, deadline - now))}
            for worker in list(workers):
                outcome = _look(worker, worker in answered, limit, start_limit)
                if outcome is None:
                    continue
                status, value = outcome
                if status == "alive":
                    worker.since = time.monotonic()
                    continue
                if status == "ready":
                    worker.ready = True
                elif not worker.ready:
                    worker.end(kill=True)
                    raise RuntimeError(f"a worker did not start: {status}: {value}")
                else:
                    yield Outcome(worker.task, status, value, time.monotonic() - worker.began)
                    worker.task = None
                    worker.done += 1
                if status in ("crash", "timeout") or worker.done >= recycle or not waiting:
                    worker.end(kill=status in ("crash", "timeout"))
                    workers.remove(worker)
                else:
                    worker.give(waiting.pop())
    finally:
        for worker in workers:
            worker.end(kill=True)


def _look(worker, answered, limit, start_limit):
    if answered:
        try:
            if worker.pipe.poll():
                return worker.pipe.recv()
        except (EOFError, OSError):
            pass
        worker.process.join(10)
        code = worker.process.exitcode
        how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        return "crash", f"{how}: {worker.last_lines()}"
    allowed = limit if worker.task is not None else start_limit
    if time.monotonic() - worker.since > allowed:
        return "timeout", f"no answer within {allowed:g} s"
    return None
