"""Tasks for workers that go wrong in every way. Imports nothing heavy."""

import os
import time


def work(_context, task):
    if task == "hangs":
        time.sleep(60)
    if task == "dies":
        os.abort()
    if task == "long":
        from bed import workers

        for _ in range(4):
            time.sleep(2)
            workers.alive()
    if task == "raises":
        raise ValueError("why")
    return task
